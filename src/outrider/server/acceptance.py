"""The acceptance of one request's drafts, in the shape of vLLM's ``metrics.speculative_decoding``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from outrider.config import MetricsLevel
from outrider.outputs import RequestOutput


def metrics(outputs: Sequence[RequestOutput], level: MetricsLevel) -> dict[str, Any]:
    """The ``metrics`` field of an answer: vLLM reports single samples; null for several, and without speculation."""
    if level == "none":
        return {}
    samples = [sample for output in outputs for sample in output.outputs]
    drafts = samples[0].drafts if len(samples) == 1 else None
    return {"metrics": {"speculative_decoding": None if drafts is None else of_drafts(drafts, level == "detailed")}}


def of_drafts(drafts: Sequence[tuple[int, int]], detailed: bool) -> dict[str, Any]:
    """vLLM's fields from (verified, accepted) of every draft. ``num_spec_tokens`` is the longest draft, as K may change
    from step to step; rates are None where nothing was drafted."""
    drafted, accepted = sum(each for each, _ in drafts), sum(each for _, each in drafts)
    by_length: dict[str, dict[str, int]] = {}
    for (length, count), steps in sorted(Counter(drafts).items()):
        by_length.setdefault(str(length), {})[str(count)] = steps
    out: dict[str, Any] = {
        "mean_acceptance_length": 1.0 + accepted / len(drafts) if drafts else None,
        "draft_acceptance_rate": accepted / drafted if drafted else None,
        "acceptance_histogram": {
            str(count): steps for count, steps in sorted(Counter(each for _, each in drafts).items())
        },
        "acceptance_histogram_by_draft_length": by_length,
        "num_spec_steps": len(drafts),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": max((each for each, _ in drafts), default=0),
    }
    if detailed:
        out |= {"per_step_accepted": [each for _, each in drafts], "per_step_drafted": [each for each, _ in drafts]}
    return out
