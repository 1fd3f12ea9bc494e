"""Faults that metrics show, planted in pages of every engine: each is named first, and a healthy page has none."""

from __future__ import annotations

import pytest

from doctor import prometheus as pages
from doctor.conftest import Doctor

FALLING = (0.7, 0.35, 0.12, 0.02, 0.008, 0.001, 0.0005)
NEVER = (0.01, 0.001, 0.0, 0.0)

HEALTHY = {
    "vllm": pages.vllm(),
    "outrider": pages.outrider(),
    "llama.cpp": pages.llama_cpp(),
    "sglang": pages.sglang(),
    "tensorrt-llm": pages.trtllm(),
}
PLANTED = {
    "K of 7 at vLLM": ("k_too_long", pages.vllm(FALLING)),
    "K of 7 at llama.cpp": ("k_too_long", pages.llama_cpp(FALLING)),
    "K of 7, timed": ("k_too_long", pages.outrider(FALLING)),
    "400 requests run": ("load_too_high", pages.vllm(num_requests_running=400, num_requests_waiting=90)),
    "400 requests run at SGLang": ("load_too_high", pages.sglang(num_running_reqs=400)),
    "slower than plain": ("load_too_high", pages.outrider(num_requests_running=32, going_rate=0.8)),
    "preempted": ("draft_starved", pages.vllm(num_preemptions=60, kv_cache_usage_perc=0.99)),
    "retracted": ("draft_starved", pages.sglang(num_retracted_requests=60, token_usage=0.99).replace(
        "num_retracted_requests{", "num_retracted_requests_total{")),
    "the draft's pool is full": ("draft_starved", pages.outrider(pools={"target": 0.5, "draft_model": 1.0})),
    "nothing is drafted": ("speculation_off", pages.vllm((0.0, 0.0), 0, generation_tokens=5000)),
    "nothing is drafted here": ("speculation_off", pages.outrider((), 0, decode_steps=5000, generation_tokens=5000)),
    "nothing is drafted at SGLang": ("speculation_off", pages.sglang(0.0, 0.0)),
    "random weights": ("weights_not_loaded", pages.vllm(NEVER)),
    "random weights here": ("weights_not_loaded", pages.outrider(NEVER, method="eagle3")),
    "random weights at SGLang": ("weights_not_loaded", pages.sglang(1.02, 0.005)),
    "random weights at TensorRT-LLM": ("weights_not_loaded", pages.trtllm(40_000, 100)),
    "a draft as slow as its target": ("draft_slow", pages.outrider(draft_seconds=0.03 * 4 * pages.DRAFTS)),
    "drift": ("drift", pages.outrider(spec_decode_acceptance_drift=1.4)),
    "seldom right": ("low_acceptance", pages.vllm((0.2,))),
    "no prefix cache": ("prefix_hits_lost", pages.vllm() + (
        '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{enable_prefix_caching="False"} 1\n')),
}  # fmt: skip


@pytest.mark.parametrize("engine", HEALTHY)
def test_a_healthy_server_has_no_fault(doctor: Doctor, engine: str) -> None:
    answer = doctor(pages=(HEALTHY[engine],))
    assert answer.report["findings"] == []
    assert answer.status == 0
    seen = {line["what"]: line["value"] for line in answer.report["seen"]}
    assert any("draft acceptance rate" in what for what in seen)
    assert seen["requests running"] == ("1" if engine == "llama.cpp" else "4")


def test_a_healthy_server_is_told_so_in_words(doctor: Doctor) -> None:
    answer = doctor(pages=(pages.vllm(),), as_json=False)
    assert answer.out.startswith("no fault found")
    assert "draft acceptance rate: 56.8 % [vllm:spec_decode_num_accepted_tokens_total" in answer.out
    assert "drift: two scrapes" in answer.out  # what could not be looked for is said


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_named_first(doctor: Doctor, name: str) -> None:
    fault, page = PLANTED[name]
    answer = doctor(pages=(page,))
    assert answer.first == fault
    assert answer.status == 1
    found = answer.report["findings"][0]
    assert found["evidence"]
    assert found["remedy"]
    assert any(line["source"] for line in found["evidence"])


def test_what_follows_from_a_fault_is_said_behind_it(doctor: Doctor) -> None:
    answer = doctor(pages=(pages.vllm(NEVER, num_requests_running=400),))
    findings = answer.report["findings"]
    assert answer.first == "weights_not_loaded"
    assert {found["diagnosis"]: found["follows_from"] for found in findings[1:]} == {
        "load_too_high": "weights_not_loaded",
        "low_acceptance": "weights_not_loaded",
    }


def test_the_cost_of_a_position_decides(doctor: Doctor) -> None:
    page = pages.vllm((0.8, 0.5, 0.3, 0.2, 0.15, 0.1))
    assert doctor("--position-cost", "0.2", pages=(page,)).first == "k_too_long"
    assert doctor("--position-cost", "0.01", pages=(page,)).first == ""


def test_n_grams_have_no_weights_that_could_be_wrong(doctor: Doctor) -> None:
    spec = '{"method": "ngram", "num_speculative_tokens": 4}'
    answer = doctor("--engine-config", spec, pages=(pages.vllm((0.03, 0.02, 0.02, 0.02)),))
    assert answer.first != "weights_not_loaded"
    assert "ngram" in {each["diagnosis"]: each["lacks"] for each in answer.report["unchecked"]}["weights_not_loaded"]


def test_few_drafts_are_no_evidence(doctor: Doctor) -> None:
    answer = doctor(pages=(pages.vllm(NEVER, 40),))
    assert answer.status == 0
    assert "at least 100 drafts" in {e["diagnosis"]: e["lacks"] for e in answer.report["unchecked"]}["k_too_long"]


def test_a_server_without_speculation_is_told_what_is_missing(doctor: Doctor) -> None:
    page = "".join(
        line + "\n" for line in pages.vllm().splitlines() if "spec_decode" not in line
    )  # vLLM has no such metrics then
    answer = doctor(pages=(page,))
    assert answer.status == 0
    lacks = {each["diagnosis"]: each["lacks"] for each in answer.report["unchecked"]}
    assert "speculation is not configured there" in lacks["speculation_off"]
    configured = doctor("--engine-config", '{"method": "eagle3", "model": "d"}', pages=(page,))
    assert configured.first == "speculation_off"
