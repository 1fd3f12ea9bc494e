"""``/metrics`` for Prometheus, and ``/stats``, the same counts as JSON for pages that show them live."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from outrider.server.service import Service
from outrider.telemetry.counters import MethodCounts
from outrider.telemetry.prometheus import EngineCollector

_COUNTS = (
    *("num_steps", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_prompt_tokens", "num_tokens"),
    *("prefill_seconds", "draft_seconds", "verify_seconds", "overhead_seconds"),
    *("accepted_per_position", "tested_per_position"),
    *("draft_acceptance_rate", "mean_acceptance_length", "conditional_acceptance"),
)


def router(service: Service) -> APIRouter:
    """Their routes; no key is asked for, as no request's content can be read off them."""
    routes, settings = APIRouter(), service.settings
    registry = CollectorRegistry()
    counters, load = service.runner.counters, service.llm.load
    registry.register(EngineCollector(counters, load, settings.model, settings.metrics_prefix))
    ProcessCollector(registry=registry)

    @routes.get("/metrics")
    def metrics(http: HttpRequest) -> Response:
        """All metrics, in Prometheus' format or in OpenMetrics'."""
        encode, kind = choose_encoder(http.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": kind})

    @routes.get("/stats")
    def stats() -> dict[str, Any]:
        """The counts since the start, and what runs right now."""
        return snapshot(service)

    return routes


def snapshot(service: Service) -> dict[str, Any]:
    """Counts and load as plain values. Times are seconds; rates are None where nothing was counted."""
    now, load = service.runner.counters.snapshot(), service.llm.load()
    requests = now.requests
    pools = {
        name: {"num_blocks": pool.num_blocks, "num_used": pool.num_used, "block_size": pool.block_size,
               "usage": pool.usage}
        for name, pool in load.pools.items()
    }  # fmt: skip
    return {
        "model": service.settings.model,
        "uptime": now.uptime,
        "tokens_per_second": now.tokens_per_second,
        "going_rate": load.speed_up,
        "methods": {name: _method(counts) for name, counts in now.methods.items()},
        "requests": {"running": load.num_running, "waiting": load.num_waiting, "finished": requests.finished},
        "num_preemptions": load.num_preemptions,
        "kv_cache": pools,
        "prefix_cache": {"query_tokens": requests.num_query_tokens, "hit_tokens": requests.num_hit_tokens},
        "batch": {
            "num_steps": now.num_steps,
            "last_rows": now.last_rows,
            "last_sequences": now.last_sequences,
            "rows": load.num_rows,
            "rows_computed": load.num_rows_computed,
        },
    }


def _method(counts: MethodCounts) -> dict[str, Any]:
    return {name: getattr(counts, name) for name in _COUNTS} | {"drift": counts.drift.level}
