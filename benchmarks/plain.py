"""Plain decoding, one prompt at a time: Outrider against transformers' generate, and the cost of n rows of both.

The floor is the bytes of weights that a forward streams over the measured memory bandwidth. Run once with --threads 1
and once with --threads 2.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import harness
from measure import all_threads, row_curves

if TYPE_CHECKING:
    from systems import Loaded

    from outrider import LLM

ROWS = (1, 2, 4, 8, 16)
CONTEXT = 256
BANDWIDTH_BYTES = 1 << 30


class OutriderRows:
    """Forwards of n rows of an Outrider engine's target over ``CONTEXT`` cached tokens."""

    def __init__(self, llm: LLM, most: int = max(ROWS)) -> None:
        """``most``: the largest number of rows."""
        import torch

        from outrider.target.batch import Span
        from outrider.target.costs import spread_tokens

        self._target, self._span = llm._engine.target, Span
        self._tokens = {n: spread_tokens(n, self._target.vocab_size) for n in range(1, most + 1)}
        slots = CONTEXT + 16 * -(-most // 16)
        self._storage = self._target.new_storage(slots, 16)
        self._context = torch.arange(slots, dtype=torch.int32)
        self._target.forward([Span([1] * CONTEXT, self._context, 0, logits=[])], self._storage)

    def run(self, num_rows: int) -> None:
        """One forward with the logits of all rows."""
        self._target.forward([self._span(self._tokens[num_rows], self._context, CONTEXT)], self._storage)

    def reset(self) -> None:
        """Nothing to do: the rows are overwritten."""


class TransformersRows:
    """Forwards of n rows of a transformers model over ``CONTEXT`` cached tokens."""

    def __init__(self, loaded: Loaded) -> None:
        import torch
        from transformers import DynamicCache

        self._model, self._cache = loaded.model, DynamicCache(config=loaded.model.config)
        self._ids = torch.ones(1, max(CONTEXT, *ROWS), dtype=torch.int64)
        with all_threads(), torch.inference_mode():
            self._model(self._ids[:, :CONTEXT], cache=self._cache, use_cache=True, logits_to_keep=1)

    def run(self, num_rows: int) -> None:
        """One forward with the logits of all rows."""
        import torch

        with all_threads(), torch.inference_mode():
            self._model(self._ids[:, :num_rows], cache=self._cache, use_cache=True)

    def reset(self) -> None:
        """Crop the cache back to the context."""
        self._cache.crop(CONTEXT - self._cache.get_seq_length())


def bandwidth(num_bytes: int = BANDWIDTH_BYTES, repeats: int = 7) -> float:
    """Bytes per second of streaming reads with all threads: median of sums or of dot products, whichever is faster.

    Medians, as all times that are compared with it are: a shared machine's memory has bursts.
    """
    import torch

    tensor = torch.ones(num_bytes // 4)
    taken: dict[str, list[float]] = {"sum": [], "dot": []}
    with all_threads():
        for _ in range(repeats):
            for name, read in (("sum", torch.sum), ("dot", lambda x: torch.dot(x, x))):
                begin = time.perf_counter()
                read(tensor)
                taken[name].append(time.perf_counter() - begin)
    return num_bytes / min(statistics.median(seconds) for seconds in taken.values())


def curve(
    engines: dict[str, LLM], models: dict[str, Loaded], rounds: int, rows: Sequence[int] = ROWS
) -> dict[str, Any]:
    """t(n) of all systems, each with its weight bytes and the floor that they set."""
    forwards: dict[str, Any] = {label: OutriderRows(llm, max(rows)) for label, llm in engines.items()}
    forwards |= {label: TransformersRows(loaded) for label, loaded in models.items()}
    bytes_per_second = bandwidth()
    seconds = row_curves(forwards, rows, rounds)
    weights = {label: int(llm.describe()["weight_bytes"]) for label, llm in engines.items()}
    weights |= {label: loaded.weight_bytes() for label, loaded in models.items()}
    cells = {
        label: {
            "milliseconds": [1e3 * value for value in seconds[label]],
            "weight_bytes": weights[label],
            "floor_milliseconds": 1e3 * weights[label] / bytes_per_second,
        }
        for label in forwards
    }
    return {"rows": list(rows), "context": CONTEXT, "bytes_per_second": bytes_per_second, "systems": cells}


def curve_title(facts: dict[str, Any]) -> str:
    """What a table of a curve shows."""
    return (
        f"milliseconds of a forward of n rows over {facts['context']} tokens; "
        f"memory reads {facts['bytes_per_second'] / 1e9:.1f} GB/s; floor = weight bytes / that"
    )


def show_curve(facts: dict[str, Any]) -> None:
    """Print the curve in milliseconds."""
    columns = ("system", *(f"t({n})" for n in facts["rows"]), "floor", "t(1)/floor", "weights MB")
    rows = [
        (
            label,
            *(f"{value:.1f}" for value in cell["milliseconds"]),
            f"{cell['floor_milliseconds']:.1f}",
            f"{cell['milliseconds'][0] / cell['floor_milliseconds']:.2f}",
            f"{cell['weight_bytes'] / 1e6:.0f}",
        )
        for label, cell in facts["systems"].items()
    ]
    harness.print_table(curve_title(facts), columns, rows)


def show_prefill(cells: dict[str, Any]) -> None:
    """Print prefill rates and times to the first token over all prompts."""
    rows = [
        (label, f"{cell['prefill_tokens_per_second']:.0f}", f"{1e3 * cell['time_to_first_token']:.0f}")
        for label, cell in cells.items()
    ]
    harness.print_table("prefill, all prompts", ("system", "prompt tokens/s", "TTFT ms (median)"), rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = harness.parser(__doc__ or "")
    parser.add_argument("--limit-per-task", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--dtypes", type=harness.listed, default=["float16", "bfloat16"], help="of Outrider, a,b")
    parser.add_argument("--transformers-dtypes", type=harness.listed, default=["bfloat16", "float32"], metavar="A,B")
    parser.add_argument("--curve-rounds", type=int, default=9, metavar="N", help="0: without the curve")
    harness.add_exact(parser)
    args = parser.parse_args(argv)
    harness.start(args)
    from systems import Outrider, Transformers, load_transformers, open_engine, suffix_of

    from outrider.bench.data import load_prompts

    prompts = load_prompts(args.prompts, args.limit_per_task)
    engines = {
        f"outrider {dtype}{suffix_of(exact)}": open_engine(args, dtype=dtype, exact=exact)
        for dtype in args.dtypes
        for exact in harness.exact_values(args)
    }
    models = {f"transformers {dtype}": load_transformers(args.model, dtype) for dtype in args.transformers_dtypes}
    first = next(iter(engines.values()))
    end_ids = first.get_tokenizer().eos_ids
    ours = [Outrider(label, llm, seed=args.seed) for label, llm in engines.items()]
    systems: list[Any] = [*ours, *(Transformers(label, loaded, end_ids) for label, loaded in models.items())]
    pairs = [(system.label, label) for system in ours for label in models]
    facts = {label: llm.describe() for label, llm in engines.items()}
    facts |= {label: loaded.facts() for label, loaded in models.items()}
    recorder = harness.Recorder(args, facts)
    extra = {"curve": curve(engines, models, args.curve_rounds)} if args.curve_rounds else {}
    if extra:
        show_curve(extra["curve"])
    results = harness.compare(first, systems, prompts, args, pairs, recorder, extra)
    if results.rows:
        harness.show(results, systems, pairs)
        show_prefill(harness.summary(results, systems, pairs)["all"])


if __name__ == "__main__":
    main()
