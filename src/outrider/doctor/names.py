"""Under which name each engine exports a figure. Counters may have `_total` behind the name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_DRAFTS = {
    "num_drafts": "spec_decode_num_drafts",
    "num_draft_tokens": "spec_decode_num_draft_tokens",
    "num_accepted_tokens": "spec_decode_num_accepted_tokens",
}
_ACCEPTED = "spec_decode_num_accepted_tokens_per_pos"
_LIKE_VLLM = {
    "num_tokens": "generation_tokens",
    "num_prompt_tokens": "prompt_tokens",
    "num_requests": "request_success",
    "num_preemptions": "num_preemptions",
    "num_query_tokens": "prefix_cache_queries",
    "num_hit_tokens": "prefix_cache_hits",
}
_RUNNING = {"num_running": "num_requests_running", "num_waiting": "num_requests_waiting"}


@dataclass(frozen=True, slots=True)
class Engine:
    """``counters`` and ``gauges``: field of ``Figures`` -> name behind the prefix. ``mark``: a name that only this
    engine has, whatever its prefix. ``usage``: share of a cache in use; ``pool``: the label that names it. ``infos``:
    metrics whose labels say how the engine is set."""

    name: str
    prefix: str
    counters: Mapping[str, str]
    gauges: Mapping[str, str]
    accepted: str = ""
    tested: str = ""
    mark: str = ""
    usage: tuple[str, ...] = ()
    infos: tuple[str, ...] = ()
    ignored_methods: frozenset[str] = field(default_factory=frozenset)


ENGINES = (
    Engine(
        name="outrider",
        prefix="outrider:",
        counters=_DRAFTS
        | _LIKE_VLLM
        | {"num_steps": "decode_steps", "draft_seconds": "draft_seconds", "verify_seconds": "verify_seconds"},
        gauges=_RUNNING | {"going_rate": "going_rate", "drift": "spec_decode_acceptance_drift"},
        accepted=_ACCEPTED,
        tested="spec_decode_num_tested_tokens_per_pos",
        mark="decode_steps",
        usage=("kv_cache_usage_perc",),
    ),
    Engine(
        name="vllm",
        prefix="vllm:",
        counters=_DRAFTS | _LIKE_VLLM,
        gauges=_RUNNING,
        accepted=_ACCEPTED,
        usage=("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        infos=("cache_config_info",),
    ),
    Engine(
        name="sglang",
        prefix="sglang:",
        counters={
            "num_drafts": "spec_verify_calls",
            "num_tokens": "generation_tokens",
            "num_prompt_tokens": "prompt_tokens",
            "num_requests": "num_requests",
            "num_preemptions": "num_retracted_requests",
        },
        gauges={
            "stated_rate": "spec_accept_rate",
            "stated_length": "spec_accept_length",
            "stated_k": "spec_num_steps",
            "stated_hit_rate": "cache_hit_rate",
            "num_running": "num_running_reqs",
            "num_waiting": "num_queue_reqs",
        },
        usage=("token_usage",),
    ),
    Engine(
        name="llama.cpp",
        prefix="llamacpp:",
        counters=_DRAFTS | {"num_tokens": "tokens_predicted", "num_prompt_tokens": "prompt_tokens"},
        gauges={"num_running": "requests_processing", "num_waiting": "requests_deferred"},
        accepted=_ACCEPTED,
        usage=("kv_cache_usage_ratio",),
    ),
    Engine(
        name="tensorrt-llm",
        prefix="trtllm_",
        counters={
            "num_draft_tokens": "spec_decode_num_draft_tokens",
            "num_accepted_tokens": "spec_decode_num_accepted_tokens",
            "num_requests": "request_success",
        },
        gauges={
            "stated_length": "spec_decode_acceptance_length",
            "stated_hit_rate": "kv_cache_hit_rate",
            **_RUNNING,
        },
        usage=("kv_cache_utilization",),
        infos=("speculative_config_info", "kv_cache_config_info", "model_config_info"),
    ),
)
