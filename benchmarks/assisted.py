"""A target with a draft model, one prompt at a time, against transformers' assisted generation with the same pair.

Outrider runs plain, with the planner on, and with K fixed to each of --fixed; transformers runs with assistant_model
and its default assistant settings. `text equal` counts answers with the tokens of Outrider's plain decoding. Prefill
(of target and draft, on both sides) is apart; the column `call` of the ratios includes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness


def make_systems(args: Any) -> tuple[list[Any], dict[str, Any]]:
    """All systems, Outrider's plain first, and facts of the models for the manifest."""
    from systems import Outrider, Transformers, load_transformers, open_engine, suffix_of

    from outrider import SpeculationParams

    systems: list[Any] = []
    facts: dict[str, Any] = {}
    for exact in harness.exact_values(args):
        end = suffix_of(exact)
        config = {"method": "draft_model", "model": args.draft, "max_model_len": args.draft_context}
        llm = open_engine(args, dtype=args.dtype, exact=exact, configs=[config])
        facts[f"outrider{end}"] = llm.describe()
        systems.append(Outrider(f"outrider plain{end}", llm, seed=args.seed))
        systems.append(Outrider(f"outrider planner{end}", llm, SpeculationParams(method="draft_model"), args.seed))
        for k in args.fixed:
            speculation = SpeculationParams(method="draft_model", num_speculative_tokens=int(k))
            systems.append(Outrider(f"outrider K={k}{end}", llm, speculation, args.seed))
    end_ids = systems[0].llm.get_tokenizer().eos_ids
    for dtype in args.transformers_dtypes:
        loaded, draft = load_transformers(args.model, dtype), load_transformers(args.draft, dtype)
        facts[f"transformers {dtype}"] = loaded.facts()
        if args.transformers_plain:
            systems.append(Transformers(f"transformers plain {dtype}", loaded, end_ids))
        systems.append(Transformers(f"transformers assisted {dtype}", loaded, end_ids, assistant=draft))
    return systems, facts


def pairs_of(labels: Sequence[str]) -> list[tuple[str, str]]:
    """Ratios to show: ours over theirs, ours over ours plain of the same path, theirs over theirs plain."""
    assisted = [label for label in labels if "assisted" in label]
    ours = [label for label in labels if label.startswith("outrider") and " plain" not in label]
    out = [(label, other) for label in ours for other in assisted]
    for label in ours:
        exact_end = " exact=False" if label.endswith(" exact=False") else ""
        out.append((label, f"outrider plain{exact_end}"))
    plains = ((label, label.replace("assisted", "plain")) for label in assisted)
    return [*out, *(pair for pair in plains if pair[1] in labels)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = harness.parser(__doc__ or "", model="", prompts=False)
    parser.add_argument("--draft", required=True, help="the draft model: folder, GGUF file or hub id")
    parser.add_argument("--humaneval", type=Path, required=True, help="HumanEval.jsonl.gz or a question file")
    parser.add_argument("--gsm8k", type=Path, required=True, help="test.jsonl or a question file")
    parser.add_argument("--mt-bench", type=Path, required=True, help="a question file")
    parser.add_argument("--prompts-per-task", type=int, default=4, metavar="N", help="default: %(default)s")
    parser.add_argument("--turns", type=int, default=1, metavar="N", help="of a conversation (default: %(default)s)")
    parser.add_argument("--fixed", type=harness.listed, default=list("123456"), metavar="K,K", help="default: 1 to 6")
    parser.add_argument("--dtype", default="float16", help="of Outrider's target (default: %(default)s)")
    parser.add_argument("--draft-context", type=int, default=2048, metavar="N", help="default: %(default)s")
    parser.add_argument("--transformers-dtypes", type=harness.listed, default=["bfloat16"], metavar="A,B")
    parser.add_argument("--transformers-plain", action="store_true", help="its plain decoding as well")
    harness.add_exact(parser, "yes")
    args = parser.parse_args(argv)
    if not args.model:
        parser.error("--model: give the target")
    harness.start(args)
    from outrider.bench.data import Prompt, load_prompts

    prompts = [
        Prompt(prompt.prompt_id, task, prompt.turns[: args.turns])
        for task, path in (("humaneval", args.humaneval), ("gsm8k", args.gsm8k), ("mt_bench", args.mt_bench))
        for prompt in load_prompts([path], args.prompts_per_task)
    ]
    systems, facts = make_systems(args)
    pairs = pairs_of([system.label for system in systems])
    recorder = harness.Recorder(args, facts)
    results = harness.compare(systems[0].llm, systems, prompts, args, pairs, recorder)
    harness.show(results, systems, pairs)


if __name__ == "__main__":
    main()
