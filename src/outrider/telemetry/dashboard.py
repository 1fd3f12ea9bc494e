"""A Grafana dashboard of a server: what speculation brings, what requests wait for, what fills the caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from outrider.telemetry.alerts import conditional_acceptance, draft_quantile, tokens_per_step

_WHERE = '{model_name=~"$model"}'
_WINDOW = "$__rate_interval"
_WIDTH, _HEIGHT, _ACROSS = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One graph: its lines are (PromQL, legend)."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    about: str = ""
    stacked: bool = False


def dashboard(prefix: str) -> dict[str, Any]:
    """The dashboard, ready for JSON."""
    return {
        "title": "Outrider",
        "uid": "outrider",
        "tags": ["outrider", "speculative decoding"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables(prefix)},
        "panels": [_panel(number, each) for number, each in enumerate(panels(prefix))],
    }


def panels(prefix: str) -> list[Panel]:
    """All graphs, in the order in which they are read."""
    return [*_speculation(prefix), *_requests(prefix), *_engine(prefix)]


def _speculation(p: str) -> Iterator[Panel]:
    yield Panel("Tokens per second", "short", ((_rate(f"{p}generation_tokens_total", "method"), "{{method}}"),))
    yield Panel(
        "Acceptance by position",
        "percentunit",
        ((conditional_acceptance(p, _WINDOW, _WHERE, "method, position"), "{{method}} {{position}}"),),
        "Conditional: of the drafts that went on after so many accepted tokens.",
    )
    yield Panel(
        "Tokens per step with a draft",
        "short",
        ((tokens_per_step(p, _WINDOW, _WHERE), "{{method}}"),),
        "Accepted tokens and the target's own one: vLLM's mean acceptance length.",
    )
    drafts, steps = _rate(f"{p}spec_decode_num_drafts_total", "method"), _rate(f"{p}decode_steps_total", "method")
    yield Panel("Steps with a draft", "percentunit", ((f"{drafts} / {steps}", "{{method}}"),))
    parts = ("prefill", "draft", "verify", "overhead")
    yield Panel(
        "Where the time goes",
        "s",
        tuple((_rate(f"{p}{part}_seconds_total"), part) for part in parts),
        "Seconds in every second.",
        stacked=True,
    )
    yield Panel(
        "Drafting in a step",
        "s",
        tuple((draft_quantile(p, q, _WINDOW, _WHERE), f"P{100 * q:g} {{{{method}}}}") for q in (0.5, 0.99)),
    )
    drift = f"max by (method) ({p}spec_decode_acceptance_drift{_WHERE})"
    yield Panel("Drift of acceptance", "short", ((drift, "{{method}}"),), "Over 1: acceptance has fallen for good.")
    yield Panel(
        "Against plain decoding",
        "short",
        ((f"avg by (model_name) ({p}going_rate{_WHERE})", "times as fast"),),
        "As the planner reckons from its cost curve.",
    )


def _requests(p: str) -> Iterator[Panel]:
    for title, name in (
        ("Time to first token", "time_to_first_token_seconds"),
        ("Time between tokens", "inter_token_latency_seconds"),
        ("Whole requests", "e2e_request_latency_seconds"),
        ("Waiting in the queue", "request_queue_time_seconds"),
    ):
        rate = f"sum by (le) (rate({p}{name}_bucket{_WHERE}[{_WINDOW}]))"
        yield Panel(title, "s", tuple((f"histogram_quantile({q}, {rate})", f"P{100 * q:g}") for q in (0.5, 0.95, 0.99)))
    states = tuple((f"sum({p}num_requests_{state}{_WHERE})", state) for state in ("running", "waiting"))
    yield Panel("Running and waiting", "short", states, stacked=True)
    ends = _rate(f"{p}request_success_total", "finished_reason")
    yield Panel("Requests that end", "reqps", ((ends, "{{finished_reason}}"),), stacked=True)
    calls = _rate(f"{p}http_requests_total", "route, status")
    yield Panel("Calls", "reqps", ((calls, "{{status}} {{route}}"),), stacked=True)


def _engine(p: str) -> Iterator[Panel]:
    usage = f"max by (pool) ({p}kv_cache_usage_perc{_WHERE})"
    together = f"max({p}kv_cache_budget_usage_perc{_WHERE})"
    yield Panel("Caches in use", "percentunit", ((usage, "{{pool}}"), (together, "all together")))
    hits, queries = _rate(f"{p}prefix_cache_hits_total"), _rate(f"{p}prefix_cache_queries_total")
    yield Panel("Prompt tokens found in the cache", "percentunit", ((f"{hits} / {queries}", "share"),))
    rows, steps = (("batch_rows", "of sequences"), ("batch_rows_computed", "computed")), _rate(f"{p}engine_steps_total")
    yield Panel(
        "Rows of a step", "short", tuple((f"{_rate(f'{p}{name}_total')} / {steps}", word) for name, word in rows)
    )
    yield Panel("Preemptions", "cps", ((_rate(f"{p}num_preemptions_total"), "sequences"),))


def _rate(name: str, by: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}(rate({name}{_WHERE}[{_WINDOW}]))"


def _variables(prefix: str) -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "model",
            "label": "Model",
            "type": "query",
            "datasource": _SOURCE,
            "query": f"label_values({prefix}engine_steps_total, model_name)",
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
        },
    ]


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    custom = {"fillOpacity": 15, "stacking": {"mode": "normal" if panel.stacked else "none"}}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % _ACROSS * _WIDTH, "y": number // _ACROSS * _HEIGHT, "w": _WIDTH, "h": _HEIGHT
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
            for index, (expression, legend) in enumerate(panel.lines)
        ],
    }  # fmt: skip
