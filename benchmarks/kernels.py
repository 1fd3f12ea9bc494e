"""The cost of n rows in every weight format, against the bytes of weights over the measured memory bandwidth.

All formats take turns in one run; medians. With --exact both, what exactness costs is shown as well. `prefill` is a
forward of 512 rows without context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import harness
from measure import row_curves
from plain import curve, curve_title

ROWS = (1, 2, 4, 8, 16, 32)
CHUNK = 512


class PrefillRows:
    """A forward of ``CHUNK`` rows from an empty cache."""

    def __init__(self, target: Any) -> None:
        import torch

        from outrider.target.batch import Span

        self._target, self._storage = target, target.new_storage(CHUNK, 16)
        self._span = Span([1] * CHUNK, torch.arange(CHUNK, dtype=torch.int32), 0, logits=[CHUNK - 1])

    def run(self, num_rows: int) -> None:
        """The whole chunk, whatever ``num_rows``."""
        self._target.forward([self._span], self._storage)

    def reset(self) -> None:
        """Nothing to do: the rows are overwritten."""


def measure(engines: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Milliseconds of n rows and prompt tokens/s of each engine, with its weight bytes and the floor they set."""
    facts = curve(engines, {}, rounds, ROWS)
    chunks = {label: PrefillRows(llm._engine.target) for label, llm in engines.items()}
    for label, seconds in row_curves(chunks, (CHUNK,), max(2, rounds // 4)).items():
        facts["systems"][label]["prefill_tokens_per_second"] = CHUNK / seconds[0]
    return facts


def show(facts: dict[str, Any]) -> None:
    """Print the curve, and its ratios to one row and to the floor."""
    columns = (
        "format",
        *(f"t({n})" for n in facts["rows"]),
        "weights MB",
        "floor",
        "t(1)/floor",
        "t(8)/t(1)",
        "t(16)/t(1)",
        "prefill tokens/s",
    )
    rows = []
    for label, cell in facts["systems"].items():
        times = dict(zip(facts["rows"], cell["milliseconds"], strict=True))
        rows.append(
            (
                label,
                *(f"{value:.2f}" for value in times.values()),
                f"{cell['weight_bytes'] / 1e6:.0f}",
                f"{cell['floor_milliseconds']:.2f}",
                f"{times[1] / cell['floor_milliseconds']:.2f}",
                f"{times[8] / times[1]:.2f}",
                f"{times[16] / times[1]:.2f}",
                f"{cell['prefill_tokens_per_second']:.0f}",
            )
        )
    harness.print_table(curve_title(facts), columns, rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = harness.parser(__doc__ or "")
    parser.add_argument("--dtypes", type=harness.listed, default=["float16", "int8", "int4", "gguf"], metavar="A,B")
    parser.add_argument("--curve-rounds", type=int, default=21, metavar="N", help="default: %(default)s")
    harness.add_exact(parser)
    args = parser.parse_args(argv)
    harness.start(args)
    from systems import open_engine, suffix_of

    engines = {
        f"{dtype}{suffix_of(exact)}": open_engine(args, dtype=dtype, exact=exact)
        for dtype in args.dtypes
        for exact in harness.exact_values(args)
    }
    recorder = harness.Recorder(args, {label: llm.describe() for label, llm in engines.items()})
    facts = measure(engines, args.curve_rounds)
    recorder.summary({"curve": facts})
    show(facts)


if __name__ == "__main__":
    main()
