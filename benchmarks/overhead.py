"""Share of a step that is not a model forward: one prompt at a time, ngram with K fixed, at each temperature.

Every step after prefill is timed from outside, and within it the call of the drafters and the target's forward; the
rest is the engine's own work. `loop` is time of the call outside of steps, as a share of the steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import harness

if TYPE_CHECKING:
    from outrider import LLM


@dataclass(slots=True)
class StepTimes:
    """Seconds of decoding steps and of their parts, in the order of the steps; ``outside``: seconds of no step."""

    step: list[float] = field(default_factory=list)
    forward: list[float] = field(default_factory=list)
    draft: list[float] = field(default_factory=list)
    outside: float = 0.0

    def shares(self) -> dict[str, float]:
        """Parts as shares of the steps: pooled, and the median of single steps for what is no forward."""
        total = sum(self.step)
        pairs = list(zip(self.step, self.forward, strict=True))
        return {
            "num_steps": len(self.step),
            "step_ms": 1e3 * statistics.median(self.step),
            "verify": sum(self.forward) / total,
            "draft": sum(self.draft) / total,
            "rest": 1.0 - (sum(self.forward) + sum(self.draft)) / total,
            "no_forward": 1.0 - sum(self.forward) / total,
            "no_forward_median": statistics.median(1.0 - forward / step for step, forward in pairs),
            "loop": self.outside / total,
        }


class Probe:
    """Wraps an engine's step, drafting and forward with timers."""

    def __init__(self, llm: LLM) -> None:
        self.times = StepTimes()
        self.in_steps = 0.0  # prefill steps included
        self._forward = self._draft = 0.0
        self._engine = cast(Any, llm._engine)
        self._step = self._engine.step
        self._engine.step = self._timed_step
        self._engine.target.forward = self._timed(self._engine.target.forward, "_forward")
        self._engine.drafting.propose = self._timed(self._engine.drafting.propose, "_draft")

    def _timed(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            try:
                return call(*arguments, **options)
            finally:
                setattr(self, part, getattr(self, part) + time.perf_counter() - begin)

        return timed

    def _timed_step(self) -> Any:
        decoding = any(seq.output_ids for seq in self._engine.scheduler.running)
        self._forward = self._draft = 0.0
        begin = time.perf_counter()
        out = self._step()
        seconds = time.perf_counter() - begin
        self.in_steps += seconds
        if decoding:
            self.times.step.append(seconds)
            self.times.forward.append(self._forward)
            self.times.draft.append(self._draft)
        return out


def measure(llm: LLM, probe: Probe, prompts: Sequence[list[int]], sampling: Sequence[Any]) -> StepTimes:
    """Times of all decoding steps over ``prompts`` (one at a time)."""
    probe.times = StepTimes()
    for ids, params in zip(prompts, sampling, strict=True):
        probe.in_steps = 0.0
        began = time.perf_counter()
        llm.generate([{"prompt_token_ids": ids}], params, use_tqdm=False)
        probe.times.outside += time.perf_counter() - began - probe.in_steps
    return probe.times


def show(cells: dict[str, dict[str, float]]) -> None:
    """Print the shares."""
    names = ("verify", "draft", "rest", "no_forward", "no_forward_median", "loop")
    rows = [
        (label, f"{cell['num_steps']}", f"{cell['step_ms']:.2f}", *(f"{100 * cell[name]:.1f}%" for name in names))
        for label, cell in cells.items()
    ]
    title = "shares of the step (pooled; no_forward_median: median of single steps)"
    harness.print_table(title, ("setting", "steps", "ms (median)", *names), rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = harness.parser(__doc__ or "", max_tokens=128)
    parser.add_argument("--limit-per-task", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--method", default="ngram", help="default: %(default)s")
    parser.add_argument("-k", type=int, default=5, help="num_speculative_tokens (default: %(default)s)")
    parser.add_argument("--dtypes", type=harness.listed, default=["float16"], metavar="A,B", help="of the target")
    parser.add_argument("--temperatures", type=harness.listed, default=["0", "1"], metavar="T,T")
    harness.add_exact(parser)
    args = parser.parse_args(argv)
    harness.start(args)
    from systems import open_engine, suffix_of

    from outrider import SamplingParams
    from outrider.bench.data import load_prompts
    from outrider.bench.runner import encode

    chosen = load_prompts(args.prompts, args.limit_per_task)
    config = {"method": args.method, "num_speculative_tokens": args.k}
    engines = {
        f"{dtype}{suffix_of(exact)}": open_engine(args, dtype=dtype, exact=exact, configs=[config])
        for dtype in args.dtypes
        for exact in harness.exact_values(args)
    }
    recorder = harness.Recorder(args, {label: llm.describe() for label, llm in engines.items()})
    cells: dict[str, dict[str, float]] = {}
    for label, llm in engines.items():
        prompts = [encode(llm, [{"role": "user", "content": p.turns[0]}], raw=False) for p in chosen]
        probe = Probe(llm)
        for temperature in args.temperatures:
            sampling = [
                SamplingParams(temperature=float(temperature), max_tokens=args.max_new_tokens, seed=args.seed + index)
                for index in range(len(prompts))
            ]
            measure(llm, probe, prompts[:1], sampling[:1])  # warm-up
            cells[f"{label} T={temperature}"] = measure(llm, probe, prompts, sampling).shares()
            recorder.summary({"method": args.method, "num_speculative_tokens": args.k, "settings": cells})
            harness.say(f"{label} T={temperature}: done")
    show(cells)


if __name__ == "__main__":
    main()
