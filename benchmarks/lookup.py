"""Lookup drafters with the planner on, one prompt at a time, against transformers' prompt lookup.

Every prompt is answered by Outrider (plain, ngram, suffix) and by transformers (plain, prompt_lookup_num_tokens=10 with
max_matching_ngram_size at its default). `text equal` counts answers with the tokens of Outrider's first plain system.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import harness

METHODS = ("ngram", "suffix")
LOOKUP_TOKENS = 10


def pairs_of(exact: Sequence[bool], dtypes: Sequence[str]) -> list[tuple[str, str]]:
    """Ratios to show: ours over ours plain, ours over theirs, theirs over theirs plain."""
    from systems import suffix_of

    lookups = [f"transformers lookup {dtype}" for dtype in dtypes]
    ours = [(f"outrider {method}{suffix_of(value)}", value) for value in exact for method in METHODS]
    out = [(label, f"outrider plain{suffix_of(value)}") for label, value in ours]
    out += [(label, lookup) for label, _ in ours for lookup in lookups]
    return [*out, *((lookup, lookup.replace("lookup", "plain")) for lookup in lookups)]


def make_systems(args: Any) -> tuple[list[Any], dict[str, Any]]:
    """All systems, Outrider's plain first, and facts of the models for the manifest."""
    from systems import Outrider, Transformers, load_transformers, open_engine, suffix_of

    from outrider import SpeculationParams

    systems: list[Any] = []
    facts: dict[str, Any] = {}
    for exact in harness.exact_values(args):
        llm = open_engine(args, dtype=args.dtype, exact=exact, configs=[{"method": method} for method in METHODS])
        facts[f"outrider{suffix_of(exact)}"] = llm.describe()
        systems.append(Outrider(f"outrider plain{suffix_of(exact)}", llm, seed=args.seed))
        for method in METHODS:
            label = f"outrider {method}{suffix_of(exact)}"
            systems.append(Outrider(label, llm, SpeculationParams(method=method), args.seed))
    end_ids = systems[0].llm.get_tokenizer().eos_ids
    for dtype in args.transformers_dtypes:
        loaded = load_transformers(args.model, dtype)
        facts[f"transformers {dtype}"] = loaded.facts()
        systems.append(Transformers(f"transformers plain {dtype}", loaded, end_ids))
        options = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
        systems.append(Transformers(f"transformers lookup {dtype}", loaded, end_ids, options))
    return systems, facts


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = harness.parser(__doc__ or "")
    parser.add_argument("--limit-per-task", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--dtype", default="float16", help="of Outrider (default: %(default)s)")
    parser.add_argument("--transformers-dtypes", type=harness.listed, default=["bfloat16", "float32"], metavar="A,B")
    harness.add_exact(parser)
    args = parser.parse_args(argv)
    harness.start(args)
    from outrider.bench.data import load_prompts

    prompts = load_prompts(args.prompts, args.limit_per_task)
    systems, facts = make_systems(args)
    pairs = pairs_of(harness.exact_values(args), args.transformers_dtypes)
    recorder = harness.Recorder(args, facts)
    results = harness.compare(systems[0].llm, systems, prompts, args, pairs, recorder)
    harness.show(results, systems, pairs)
    if results.rows:
        lookups = [system.label for system in systems if "lookup" in system.label]
        print(f"faster of transformers' lookups: {harness.fastest(results.rows, lookups)}")


if __name__ == "__main__":
    main()
