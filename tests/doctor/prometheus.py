"""Metrics in the shape of each engine, with figures of a healthy server; a test changes what its fault changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

HEALTHY = (0.80, 0.62, 0.48, 0.37)  # P(first i + 1 accepted)
DRAFTS = 10_000


def counts(per_position: Sequence[float] = HEALTHY, drafts: float = DRAFTS) -> dict[str, float]:
    """What drafts of fixed length count, under vLLM's names."""
    return {
        "spec_decode_num_drafts": drafts,
        "spec_decode_num_draft_tokens": drafts * len(per_position),
        "spec_decode_num_accepted_tokens": drafts * sum(per_position),
        **{
            f'spec_decode_num_accepted_tokens_per_pos{{position="{position}"}}': drafts * share
            for position, share in enumerate(per_position)
        },
    }


def vllm(per_position: Sequence[float] = HEALTHY, drafts: float = DRAFTS, **changes: float | None) -> str:
    """vLLM's page; None as a value leaves a metric out."""
    values: dict[str, float | None] = {
        **counts(per_position, drafts),
        "generation_tokens": drafts * (1 + sum(per_position)),
        "prompt_tokens": 400_000,
        "request_success": 500,
        "num_requests_running": 4,
        "num_requests_waiting": 0,
        "num_preemptions": 0,
        "kv_cache_usage_perc": 0.4,
        "prefix_cache_queries": 400_000,
        "prefix_cache_hits": 240_000,
        **changes,
    }
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return page("vllm:", values, gauges, {"engine": "0", "model_name": "m"})


def outrider(
    per_position: Sequence[float] = HEALTHY,
    drafts: float = DRAFTS,
    method: str = "draft_model",
    pools: Mapping[str, float] | None = None,
    **changes: float | None,
) -> str:
    """Our own page."""
    tokens = drafts * (1 + sum(per_position))
    tested = (1.0, *per_position)[: len(per_position)]
    by_method: dict[str, float | None] = {
        **counts(per_position, drafts),
        **{
            f'spec_decode_num_tested_tokens_per_pos{{position="{position}"}}': drafts * share
            for position, share in enumerate(tested)
        },
        "generation_tokens": tokens,
        "prompt_tokens": 400_000,
        "decode_steps": drafts,
        "draft_seconds": 0.002 * drafts * len(per_position),
        "verify_seconds": 0.04 * drafts,
        "spec_decode_acceptance_drift": 0.1,
    }
    values: dict[str, float | None] = {
        "request_success": 500,
        "num_requests_running": 4,
        "num_requests_waiting": 0,
        "num_preemptions": 0,
        "prefix_cache_queries": 400_000,
        "prefix_cache_hits": 240_000,
        "going_rate": 1.7,
    }
    for key, value in changes.items():
        (by_method if key in by_method else values)[key] = value
    gauges = ("spec_decode_acceptance_drift", "num_requests_running", "num_requests_waiting", "going_rate")
    usage: dict[str, float | None] = {
        f'kv_cache_usage_perc{{pool="{pool}"}}': share for pool, share in (pools or {"target": 0.4}).items()
    }
    return (
        page("outrider:", by_method, gauges, {"model_name": "m", "method": method})
        + page("outrider:", values, gauges, {"model_name": "m"})
        + page("outrider:", usage, tuple(usage), {"model_name": "m"})
    )


def llama_cpp(per_position: Sequence[float] = HEALTHY, drafts: float = DRAFTS) -> str:
    """llama.cpp's page."""
    values: dict[str, float | None] = {
        **counts(per_position, drafts),
        "tokens_predicted": drafts * (1 + sum(per_position)),
        "prompt_tokens": 400_000,
        "requests_processing": 1,
        "requests_deferred": 0,
    }
    return page("llamacpp:", values, ("requests_processing", "requests_deferred"), {})


def sglang(length: float = 3.2, rate: float = 0.55, **changes: float | None) -> str:
    """SGLang's page: gauges of acceptance, and no counters of drafts."""
    values: dict[str, float | None] = {
        "spec_accept_length": length,
        "spec_accept_rate": rate,
        "spec_num_steps": 4,
        "generation_tokens": 50_000,
        "prompt_tokens": 400_000,
        "num_requests": 500,
        "num_running_reqs": 4,
        "num_queue_reqs": 0,
        "token_usage": 0.4,
        "cache_hit_rate": 0.5,
        **changes,
    }
    counters = ("generation_tokens", "prompt_tokens", "num_requests")
    return page("sglang:", values, tuple(key for key in values if key not in counters), {"model_name": "m"})


def trtllm(drafted: float = 40_000, accepted: float = 22_000, **changes: float | None) -> str:
    """TensorRT-LLM's page."""
    values: dict[str, float | None] = {
        "spec_decode_num_draft_tokens": drafted,
        "spec_decode_num_accepted_tokens": accepted,
        "spec_decode_acceptance_length": 1 + 4 * accepted / drafted if drafted else 1.0,
        "request_success": 500,
        "num_requests_running": 4,
        "num_requests_waiting": 0,
        "kv_cache_utilization": 0.4,
        **changes,
    }
    gauges = ("spec_decode_acceptance_length", "num_requests_running", "num_requests_waiting", "kv_cache_utilization")
    info = '# TYPE trtllm_speculative_config_info gauge\ntrtllm_speculative_config_info{spec_enabled="True"} 1\n'
    return page("trtllm_", values, gauges, {"model_name": "m"}) + info


def page(prefix: str, values: Mapping[str, float | None], gauges: Sequence[str], labels: Mapping[str, str]) -> str:
    """Samples with their types; names may have labels of their own. Counters get `_total`."""
    lines = []
    for key, value in values.items():
        name, _, own = key.partition("{")
        if value is None:
            continue
        counter = key not in gauges and name not in gauges
        full = f"{prefix}{name}{'_total' if counter else ''}"
        pairs = [f'{label}="{text}"' for label, text in labels.items()] + ([own.rstrip("}")] if own else [])
        lines.append(f"# TYPE {full} {'counter' if counter else 'gauge'}")
        lines.append(f"{full}{{{','.join(pairs)}}} {value}")
    return "\n".join(lines) + "\n"
