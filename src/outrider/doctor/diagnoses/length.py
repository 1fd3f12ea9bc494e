"""More tokens are drafted than pay: what the last positions bring is less than they cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.figures import Figures
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, percent

_NAME = "k_too_long"
_GAIN = 0.03  # of speed that a shorter draft brings
_FEWER = 2  # positions


def best_length(per_position: Sequence[float], cost: float) -> tuple[int, list[float]]:
    """The number of tokens with the most (tokens a step) / (time of a step), and that ratio for 0, 1, .. tokens.

    per_position: P(first i + 1 accepted). cost: of one more position, as a share of a plain step.
    (1 + sum of P) / (1 + K cost), as in Leviathan et al. 2023 (arXiv 2211.17192) with measured P.
    """
    speeds, tokens = [1.0], 1.0
    for count, chance in enumerate(per_position, 1):
        tokens += chance
        speeds.append(tokens / (1.0 + count * cost))
    return max(range(len(speeds)), key=speeds.__getitem__), speeds


def _check(case: Case) -> Iterable[Finding]:
    lacking = ""
    for figures in case.drafting:
        if len(figures.per_position) < 2:
            lacking = f"accepted tokens by position ({figures.source}: {figures.engine} does not count them)"
            continue
        yield from _of(case.enough(figures), case)
    if lacking:
        raise Lacking(lacking)


def _of(figures: Figures, case: Case) -> Iterable[Finding]:
    cost, source = figures.token_cost, figures.origin("draft_seconds", "verify_seconds")
    if cost is None:
        cost, source = case.limits.position_cost, "assumed; --position-cost"
    positions = figures.per_position
    best, speeds = best_length(positions, cost)
    last = len(positions)
    if best == 0 or last - best < _FEWER or speeds[best] < speeds[last] * (1.0 + _GAIN):
        return
    shown = ", ".join(percent(chance) for chance in positions)
    per_position = figures.origin("accepted_per_position")
    evidence = [
        Evidence(
            f"accepted at positions 1 to {last}", shown, f"pays from {percent(speeds[best] * cost)} on", per_position
        ),
        Evidence("cost of one more position", percent(cost), "of a plain step", source),
        Evidence(f"speed with K = {last}, reckoned", f"{speeds[last]:.2f}", f"{speeds[best]:.2f} with K = {best}"),
    ]
    fault = f"drafts are too long: of {last} positions only the first {best} pay"
    method = f" ({figures.method})" if figures.method else ""
    yield finding(_NAME, fault + method, Certainty.LIKELY, evidence, 2 * (speeds[best] / speeds[last] - 1.0))


DIAGNOSIS = Diagnosis(
    _NAME,
    "K is too long: the last positions do not pay",
    "accepted tokens by position, against what a position costs (timed by our own server, else assumed)",
    "lower num_speculative_tokens to the length that pays, or let it be planned: leave it out here, "
    "num_speculative_tokens_per_batch_size in vLLM, --speculative-adaptive in SGLang",
    _check,
)
