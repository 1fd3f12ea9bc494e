"""The proof: the best few for real, in alternation with plain decoding, against what was predicted of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outrider.advise.candidates import Candidate
from outrider.advise.predict import Prediction, Predictor, subset
from outrider.advise.rig import Rig
from outrider.advise.screen import Screen
from outrider.bench import runner
from outrider.bench.data import Prompt
from outrider.bench.report import summarize
from outrider.bench.runner import PLAIN, Variant


@dataclass(frozen=True, slots=True)
class Proof:
    """One candidate and K: speed-ups over plain decoding that were predicted for the prompts it ran on, and measured,
    with its 95 % interval; tokens a step likewise."""

    label: str
    num_speculative_tokens: int
    predicted: float
    measured: float
    low: float | None
    high: float | None
    predicted_tokens: float
    measured_tokens: float
    num_prompts: int
    equal: int
    num_answers: int
    by_task: dict[str, tuple[float, float]] = field(default_factory=dict)  # predicted, measured

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def best_few(predictions: Sequence[Prediction], count: int) -> list[Prediction]:
    """The best K of each of the ``count`` best candidates, one sequence at a time."""
    best: dict[str, Prediction] = {}
    for each in predictions:
        if each.batch == 1 and (each.label not in best or each.speedup > best[each.label].speedup):
            best[each.label] = each
    return sorted(best.values(), key=lambda each: -each.speedup)[:count]


def run(
    rig: Rig,
    prompts: Sequence[Prompt],
    screen: Screen,
    predictor: Predictor,
    chosen: Sequence[tuple[str, int]],
    progress: Callable[[float, float], None],
) -> list[Proof]:
    """Run ``chosen`` (label, K) on ``prompts``, all of which are in ``screen``."""
    plan = runner.Plan(
        variants=[PLAIN, *(variant(label, k) for label, k in chosen)],
        max_tokens=screen.plan.max_tokens,
        temperature=screen.plan.temperature,
        seed=screen.plan.seed,
        raw=screen.plan.raw,
    )
    results = runner.run(rig.llm, prompts, plan, lambda done, total, what: progress(done, total))
    summary = summarize(results, plan)
    candidates = {each.label: each for each in rig.candidates}
    ids = {prompt.prompt_id for prompt in prompts}
    return [_proof(candidates[label], k, summary, screen, predictor, ids, len(prompts)) for label, k in chosen]


def variant(label: str, k: int) -> Variant:
    """How the runner knows a candidate with K draft tokens."""
    return Variant(f"{label}:{k}", label, k)


def _proof(
    candidate: Candidate, k: int, summary: Any, screen: Screen, predictor: Predictor, ids: set[str], count: int
) -> Proof:
    name = variant(candidate.label, k).label
    cell = summary["all"][name]
    wanted = [text.prompt_id in ids for text in screen.texts]
    tallies = [each for each, use in zip(predictor.tallies(candidate, k), wanted, strict=True) if use]
    by_task = {}
    for task, cells in summary["tasks"].items():
        within = [use and text.task == task for use, text in zip(wanted, screen.texts, strict=True)]
        if any(within) and cells[name]["speedup"]:
            predicted = subset(predictor, candidate, k, screen.texts, within)
            by_task[task] = (predicted, float(cells[name]["speedup"]))
    return Proof(
        label=candidate.label,
        num_speculative_tokens=k,
        predicted=subset(predictor, candidate, k, screen.texts, wanted),
        measured=float(cell["speedup"]),
        low=cell["speedup_low"],
        high=cell["speedup_high"],
        predicted_tokens=sum(each.num_tokens for each in tallies) / sum(each.num_steps for each in tallies),
        measured_tokens=float(cell["mean_acceptance_length"] or 1.0),
        num_prompts=count,
        equal=cell["num_equal"],
        num_answers=cell["num_answers"],
        by_task=by_task,
    )
