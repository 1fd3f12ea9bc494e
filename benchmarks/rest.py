"""Time of a look-up in datastores of method `rest`: search and sample, then a whole draft, at places of given prompts.

The prompts are tokenised and cut at even places; each place is one look-up with the context before it, in random order.
The planner is not involved: drafts have up to `--tokens` nodes.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np


def places(texts: Sequence[Sequence[int]], count: int, seed: int = 0) -> list[list[int]]:
    """``count`` beginnings of ``texts`` of two tokens or more, evenly over all of them, shuffled."""
    ends = [(number, end) for number, ids in enumerate(texts) for end in range(2, len(ids) + 1)]
    chosen = [ends[index * len(ends) // count] for index in range(min(count, len(ends)))]
    random.Random(seed).shuffle(chosen)
    return [list(texts[number][:end]) for number, end in chosen]


def timed(call: Callable[[Any], Any], inputs: Sequence[Any]) -> tuple[list[float], list[Any]]:
    """Seconds and results of ``call`` for each of ``inputs``."""
    seconds, results = [], []
    for each in inputs:
        began = time.perf_counter()
        results.append(call(each))
        seconds.append(time.perf_counter() - began)
    return seconds, results


def quantiles(seconds: Sequence[float]) -> str:
    """Median, 95 % and largest, in milliseconds."""
    values = np.quantile(np.array(seconds) * 1e3, [0.5, 0.95, 1.0])
    return "median {:.3f} ms, 95 % {:.3f} ms, largest {:.3f} ms".format(*values)


def read(path: Path) -> list[str]:
    """The texts of a file."""
    from outrider.bench.data import load_prompts

    return ["\n\n".join(prompt.turns) for prompt in load_prompts([path])]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datastore", nargs="+", help="folders that `outrider index build` wrote")
    parser.add_argument("--prompts", type=Path, required=True, help="texts whose places are looked up")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer (default: %(default)s)")
    parser.add_argument("--lookups", type=int, default=2000, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=16, help="nodes of a draft (default: %(default)s)")
    args = parser.parse_args(argv)
    from outrider.config import SpeculativeConfig
    from outrider.drafters import registry
    from outrider.drafters.rest import RestDrafter
    from outrider.drafters.retrieval import retrieve
    from outrider.target.load import load_tokenizer
    from outrider.target.vocab import fingerprint

    tokenizer = load_tokenizer(args.model)
    context = registry.DrafterContext(
        len(tokenizer), 1 << 20, tokenizer.eos_ids, tokenizer_fingerprint=lambda: fingerprint(tokenizer)
    )
    config = SpeculativeConfig(method="rest", datastore=args.datastore)
    began = time.perf_counter()
    drafter = registry.build(config, context)
    assert isinstance(drafter, RestDrafter)
    print(f"opened in {time.perf_counter() - began:.2f} s")
    for store in drafter.stores:
        print(f"{store.path}: {store.header.num_tokens:,} tokens, {store.header.num_bytes / 1e6:.1f} MB")
    inputs = places(tokenizer.encode_batch(read(args.prompts)), args.lookups)

    def look_up(tokens: list[int]) -> int:
        context = tokens[-config.rest_max_context :]
        return retrieve(drafter.stores, context, config.rest_min_context, config.rest_max_continuations, 10)[0]

    def draft(tokens: list[int]) -> int:
        seq: Any = SimpleNamespace(seq_id=0, token_ids=tokens)
        return len(drafter.draft(seq, drafter.start(seq), args.tokens))

    for name, call in (("look-up", look_up), ("draft", draft)):
        seconds, results = timed(call, inputs)
        none = np.mean(np.equal(results, 0))
        print(f"{name}: {quantiles(seconds)}; mean result {np.mean(results):.2f}, none {none:.1%}")


if __name__ == "__main__":
    main()
