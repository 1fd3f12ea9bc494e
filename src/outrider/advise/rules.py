"""Common rules of thumb, and what these prompts and this machine say about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from outrider.advise.candidates import Candidate
from outrider.advise.predict import Prediction, Predictor, subset
from outrider.advise.screen import Screen

Verdict = Literal["holds", "does not hold", "not tested"]
CHAT = frozenset(("mt_bench", "chat", "writing", "roleplay", "humanities", "alpaca", "stem"))
RETRIEVAL = frozenset(("rag", "summarization", "qa", "retrieval"))
_PAYS = 1.05
_CLOSE = 0.98
_FLOOR = 0.65
_HOT = 0.7


@dataclass(frozen=True, slots=True)
class Rule:
    """``says``: the rule; ``figure``: what decided, in words."""

    says: str
    verdict: Verdict
    figure: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the rules look at: predictions for one sequence at a time, and the best of them."""

    predictor: Predictor
    screen: Screen
    candidates: Sequence[Candidate]
    predictions: Sequence[Prediction]
    best: Prediction

    def candidate(self, label: str) -> Candidate:
        """By its label."""
        return next(each for each in self.candidates if each.label == label)

    def tops(self, task: str) -> dict[str, float]:
        """By label the highest speed-up of any K on a task."""
        out: dict[str, float] = {}
        for each in self.predictions:
            out[each.label] = max(out.get(each.label, 0.0), each.by_task.get(task, 0.0))
        return out


def judge(evidence: Evidence) -> list[Rule]:
    """All rules."""
    return [rule(evidence) for rule in _RULES]


def _floor(evidence: Evidence) -> Rule:
    says = "Speculation needs 65 to 70 % of the draft tokens accepted."
    paying = [
        each
        for each in evidence.predictions
        if each.speedup > _PAYS and each.acceptance_rate is not None and each.acceptance_rate < _FLOOR
    ]
    best = evidence.best
    even = "" if best.break_even is None else f"; {_name(best)} breaks even at {best.break_even:.0%} at every position"
    if paying:
        least = min(paying, key=lambda each: each.acceptance_rate or 0.0)
        return Rule(
            says,
            "does not hold",
            f"{_name(least)} is expected at {least.speedup:.2f} times plain decoding with {least.acceptance_rate:.0%} "
            f"accepted{even}",
        )
    seen = [each for each in evidence.predictions if (each.acceptance_rate or 1.0) < _FLOOR]
    if not seen:
        return Rule(says, "not tested", f"nothing here has less than {_FLOOR:.0%} accepted{even}")
    return Rule(says, "holds", f"none of {len(seen)} settings with less than {_FLOOR:.0%} accepted pays{even}")


def _five(evidence: Evidence) -> Rule:
    says = "Five draft tokens are a good default."
    best = evidence.best
    if evidence.candidate(best.label).is_tree:
        return Rule(says, "not tested", f"{_name(best)} is best, and drafts a tree")
    same = [each for each in evidence.predictions if each.label == best.label]
    five = next((each for each in same if each.num_speculative_tokens == 5), None)
    if five is None:
        return Rule(says, "not tested", f"{best.label} makes no drafts of five tokens")
    verdict: Verdict = "holds" if five.speedup >= _CLOSE * best.speedup else "does not hold"
    return Rule(says, verdict, f"{best.label}: {five.speedup:.2f} with 5, {best.speedup:.2f} with {_k(best)}, its best")


def _hot(evidence: Evidence) -> Rule:
    says = "Above a temperature of 0.7 speculation does not pay."
    temperature, best = evidence.screen.plan.temperature, evidence.best
    if temperature > _HOT:
        verdict: Verdict = "does not hold" if best.speedup > _PAYS else "holds"
        return Rule(says, verdict, f"at {temperature:g}, {_name(best)} is expected at {best.speedup:.2f}")
    heard = [text.agreement[best.label] for text in evidence.screen.texts if best.label in text.agreement]
    count = sum(each.num_positions for each in heard)
    if not count or temperature > 0:
        return Rule(says, "not tested", f"these answers were drawn at {temperature:g}: run it with -t 1")
    top, shared = (sum(each.sums[at] for each in heard) / count for at in (0, 3))
    return Rule(
        says,
        "not tested",
        f"these answers are greedy; behind their tokens {best.label}'s first token is the target's own draw "
        f"{shared:.0%} of the time at 1, and its likeliest one {top:.0%}: run it with -t 1 to be sure",
    )


def _short(evidence: Evidence) -> Rule:
    says = "Short prompts are not worth it."
    texts, best = evidence.screen.texts, evidence.best
    lengths = sorted(len(text.prompt_ids) for text in texts)
    middle = lengths[len(lengths) // 2]
    short = [len(text.prompt_ids) < middle for text in texts]
    if sum(short) < 3 or sum(short) > len(short) - 3:
        return Rule(says, "not tested", f"all prompts have about {middle} tokens")
    args = evidence.predictor, evidence.candidate(best.label), best.num_speculative_tokens, texts
    less, more = subset(*args, short), subset(*args, [not each for each in short])
    verdict: Verdict = "holds" if less <= 1.0 else "does not hold"
    return Rule(says, verdict, f"{_name(best)}: {less:.2f} under {middle} prompt tokens, {more:.2f} from there on")


def _family(says: str, tasks: frozenset[str], mine: Callable[[str], bool], what: str) -> Callable[[Evidence], Rule]:
    def rule(evidence: Evidence) -> Rule:
        here = [task for task in evidence.screen.tasks if task in tasks]
        if not here:
            return Rule(says, "not tested", f"no task is called {', '.join(sorted(tasks))}")
        if not any(mine(each.method) for each in evidence.candidates):
            return Rule(says, "not tested", f"{what} is not among the candidates")
        figures, wins = [], 0
        for task in here:
            tops = evidence.tops(task)
            own = max((label for label in tops if mine(evidence.candidate(label).method)), key=tops.__getitem__)
            first = max(tops, key=tops.__getitem__)
            wins += tops[own] >= _CLOSE * tops[first]
            figures.append(f"{task}: {own} {tops[own]:.2f}" + ("" if own == first else f", {first} {tops[first]:.2f}"))
        verdict: Verdict = "holds" if 2 * wins > len(here) else "does not hold"
        return Rule(says, verdict, "; ".join(figures))

    return rule


def _name(prediction: Prediction) -> str:
    return f"{prediction.label} with {_k(prediction)}"


def _k(prediction: Prediction) -> str:
    return str(prediction.num_speculative_tokens)


_RULES: tuple[Callable[[Evidence], Rule], ...] = (
    _floor,
    _five,
    _hot,
    _short,
    _family("EAGLE is the choice for chat.", CHAT, lambda method: method.startswith("eagle"), "an EAGLE head"),
    _family(
        "N-gram lookup is the choice for retrieval and summaries.",
        RETRIEVAL,
        lambda method: method in ("ngram", "suffix"),
        "a lookup",
    ),
)
