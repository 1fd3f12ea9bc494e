"""``/metrics`` and ``/stats``: what they count is what clients got."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from server.conftest import serving, tiny

ASK: dict[str, Any] = {"prompt": "the ab of the cd of the ab of the", "max_tokens": 24, "temperature": 0.0}
SUFFIX = {"method": "suffix", "num_speculative_tokens": 4}


def scrape(address: str) -> dict[tuple[str, ...], float]:
    """Samples by name and label values, model_name left out."""
    text = httpx.get(f"{address}/metrics").raise_for_status().text
    return {
        (sample.name, *(value for key, value in sorted(sample.labels.items()) if key != "model_name")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_are_those_of_the_answers(folder: str) -> None:
    with serving(tiny(folder, speculative_config=SUFFIX)) as (address, _):
        answers = [httpx.post(f"{address}/v1/completions", json=ASK).json() for _ in range(3)]
        got = scrape(address)
        stats = httpx.get(f"{address}/stats").json()
    suffix = stats["methods"]["suffix"]
    tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert got["outrider:generation_tokens_total", "suffix"] == suffix["num_tokens"] == tokens
    prompt = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    assert got["outrider:prompt_tokens_total", "suffix"] == got["outrider:prefix_cache_queries_total",] == prompt
    cached = sum(answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers)
    assert got["outrider:prefix_cache_hits_total",] == stats["prefix_cache"]["hit_tokens"] == cached
    assert got["outrider:request_success_total", "length"] == 3
    drafts, drafted, accepted = (
        got[f"outrider:spec_decode_num_{name}_total", "suffix"]
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    )
    assert 0 < accepted <= drafted
    assert drafts <= drafted
    per_position = [got["outrider:spec_decode_num_accepted_tokens_per_pos_total", "suffix", "0"]]
    assert per_position[0] <= drafts
    assert sum(suffix["accepted_per_position"]) == accepted
    assert tokens == 3 + got["outrider:decode_steps_total", "suffix"] + accepted
    assert suffix["draft_acceptance_rate"] == accepted / drafted
    assert suffix["mean_acceptance_length"] == pytest.approx(1 + accepted / drafts)
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert got[f"outrider:{name}_count",] == 3
    assert got["outrider:kv_cache_usage_perc", "target"] == 0
    assert got["outrider:kv_cache_budget_usage_perc",] == 0
    assert got["outrider:num_requests_running",] == 0
    assert got["outrider:batch_fill",] == 1.0
    assert got["outrider:batch_rows_total",] == stats["batch"]["rows"] > tokens


def test_without_speculation_nothing_is_said_about_drafts(folder: str) -> None:
    with serving(tiny(folder, speculative_config=None), metrics_prefix="vllm:") as (address, _):
        httpx.post(f"{address}/v1/completions", json=ASK).raise_for_status()
        got = scrape(address)
    assert got["vllm:generation_tokens_total", "plain"] == 24
    assert not [key for key in got if "spec_decode" in key[0] or "draft_latency" in key[0]]


def test_a_request_without_speculation_adds_nothing_to_a_method(folder: str) -> None:
    with serving(tiny(folder)) as (address, _):
        httpx.post(f"{address}/v1/completions", json={**ASK, "speculation": {"enabled": False}}).raise_for_status()
        got = scrape(address)
    assert got["outrider:generation_tokens_total", "plain"] == 24
    assert got["outrider:spec_decode_num_drafts_total", "suffix"] == 0
    assert ("outrider:spec_decode_num_drafts_total", "plain") not in got
