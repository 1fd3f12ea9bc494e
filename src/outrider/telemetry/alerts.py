"""Prometheus' alert rules for a server, and a configuration that scrapes one and loads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RULES_FILE = "outrider-alerts.yml"
BY = "model_name, method"


@dataclass(frozen=True, slots=True)
class Limits:
    """What alerts hold against. ``acceptance``: conditional, by position, so that no K and no tree moves it;
    ``tokens_per_step``: of steps with a draft, the target's own token among them; ``draft_seconds``: of which one step
    in a hundred takes more."""

    acceptance: float = 0.5
    tokens_per_step: float = 2.0
    draft_seconds: float = 0.025


def conditional_acceptance(prefix: str, window: str, where: str = "", by: str = BY) -> str:
    """PromQL: accepted / tested positions, all before them accepted."""
    return _ratio(prefix, "accepted_tokens_per_pos", "tested_tokens_per_pos", window, where, by)


def tokens_per_step(prefix: str, window: str, where: str = "", by: str = BY) -> str:
    """PromQL: vLLM's mean acceptance length."""
    return "1 + " + _ratio(prefix, "accepted_tokens", "drafts", window, where, by)


def draft_quantile(prefix: str, quantile: float, window: str, where: str = "") -> str:
    """PromQL: seconds of drafting in a step."""
    rate = f"rate({prefix}draft_latency_seconds_bucket{where}[{window}])"
    return f"histogram_quantile({quantile}, sum by (le, {BY}) ({rate}))"


def rules(prefix: str, limits: Limits) -> dict[str, Any]:
    """One group of rules, ready for YAML. Nothing is said while nothing is drafted: 0 / 0 is over no limit."""
    return {
        "groups": [
            {
                "name": "outrider",
                "rules": [
                    _rule(
                        "OutriderLowAcceptance",
                        f"{conditional_acceptance(prefix, '5m')} < {limits.acceptance:g}",
                        "5m",
                        "{{ $labels.method }} on {{ $labels.model_name }}: {{ $value | humanizePercentage }} of the "
                        "drafted tokens are accepted where all before them were",
                        f"Fewer than {limits.acceptance:.0%} for five minutes. Speculation may cost more than it "
                        "brings: compare the methods with `outrider bench`.",
                    ),
                    _rule(
                        "OutriderFewTokensPerStep",
                        f"{tokens_per_step(prefix, '5m')} < {limits.tokens_per_step:g}",
                        "5m",
                        "{{ $labels.method }} on {{ $labels.model_name }}: {{ $value | humanize }} tokens a step",
                        f"Steps with a draft bring fewer than {limits.tokens_per_step:g} tokens, the target's own one "
                        "included.",
                    ),
                    _rule(
                        "OutriderSlowDrafts",
                        f"{draft_quantile(prefix, 0.99, '5m')} > {limits.draft_seconds:g}",
                        "5m",
                        "{{ $labels.method }} on {{ $labels.model_name }}: drafting takes up to "
                        "{{ $value | humanizeDuration }}",
                        f"One step in a hundred drafts for more than {1e3 * limits.draft_seconds:g} ms.",
                    ),
                    _rule(
                        "OutriderAcceptanceDrift",
                        f"{prefix}spec_decode_acceptance_drift > 1",
                        "5m",
                        "{{ $labels.method }} on {{ $labels.model_name }}: acceptance has fallen for good",
                        "It is a quarter lower than it was at first. The prompts have changed, or the model: train or "
                        "adapt the draft head anew.",
                    ),
                ],
            }
        ]
    }


def scraping(target: str) -> dict[str, Any]:
    """A configuration of Prometheus for the server at ``target`` (host:port)."""
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [RULES_FILE],
        "scrape_configs": [{"job_name": "outrider", "static_configs": [{"targets": [target]}]}],
    }


def _rule(name: str, expression: str, lasting: str, summary: str, description: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expression,
        "for": lasting,
        "labels": {"severity": "warning"},
        "annotations": {"summary": summary, "description": description},
    }


def _ratio(prefix: str, part: str, whole: str, window: str, where: str, by: str) -> str:
    sums = [f"sum by ({by}) (rate({prefix}spec_decode_num_{name}_total{where}[{window}]))" for name in (part, whole)]
    return " / ".join(sums)
