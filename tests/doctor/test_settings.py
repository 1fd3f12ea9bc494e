"""Faults that an engine's settings show, and the ways to hand them in."""

from __future__ import annotations

from pathlib import Path

import pytest

from doctor.conftest import Doctor
from outrider.doctor.settings import read

SPEC = '{"method": "draft_model", "model": "d", "num_speculative_tokens": 4%s}'
HEALTHY = "vllm serve m --max-model-len 8192 --kv-cache-dtype fp8 --speculative-config '%s'"


def test_settings_that_fit_have_no_fault(doctor: Doctor) -> None:
    spec = SPEC % ', "max_model_len": 8192, "kv_cache_dtype": "fp8", "draft_sample_method": "probabilistic"'
    answer = doctor("--engine-config", HEALTHY % spec, "--temperature", "1")
    assert answer.report["findings"] == []
    assert {"draft_context", "number_format", "temperature"} <= set(answer.report["checked"])
    assert answer.status == 0


@pytest.mark.parametrize(
    ("fault", "more", "arguments"),
    [
        ("draft_context", ', "max_model_len": 2048', ()),
        ("number_format", ', "kv_cache_dtype": "bfloat16"', ()),
        ("temperature", "", ("--temperature", "1.0")),
    ],
)
def test_a_planted_fault_is_named_first(doctor: Doctor, fault: str, more: str, arguments: tuple[str, ...]) -> None:
    answer = doctor("--engine-config", HEALTHY % (SPEC % more), *arguments)
    assert answer.first == fault
    assert answer.status == 1


def test_a_cold_request_is_no_fault(doctor: Doctor) -> None:
    assert doctor("--engine-config", SPEC % "", "--temperature", "0").status == 0


def test_a_prefix_cache_that_is_off_is_named(doctor: Doctor) -> None:
    assert doctor("--engine-config", "vllm serve m --no-enable-prefix-caching").first == "prefix_hits_lost"
    assert doctor("--engine-config", "x --model-path m --disable-radix-cache").first == "prefix_hits_lost"


def test_a_draft_context_alone_is_held_against_the_option(doctor: Doctor) -> None:
    spec = SPEC % ', "max_model_len": 2048'
    assert doctor("--engine-config", spec, "--max-model-len", "4096").first == "draft_context"
    assert doctor("--engine-config", spec, "--max-model-len", "2048").status == 0


def test_every_form_is_read(tmp_path: Path) -> None:
    sglang = read(
        "python -m sglang.launch_server --model-path m --context-length 4096 --speculative-algorithm EAGLE3 "
        "--speculative-draft-model-path=d --speculative-num-steps 3"
    )
    assert (sglang.method, sglang.speculative["model"], sglang.target["model"]) == ("eagle3", "d", "m")
    assert sglang.length(sglang.target) == 4096
    path = tmp_path / "x.yaml"
    path.write_text("speculative_config:\n  decoding_type: Eagle3\n  max_draft_len: 3\n  speculative_model: d\n")
    trtllm = read(f"@{path}")
    assert (trtllm.method, trtllm.speculative["num_speculative_tokens"]) == ("eagle3", 3)
    assert read('{"model": "d", "num_speculative_tokens": 3}').method == "draft_model"
    assert read('{"model": "m", "max_model_len": "8k"}').length({"max_model_len": "8k"}) == 8000


@pytest.mark.parametrize("text", ["{", "[1]", "nothing", '{"speculative_config": 3}', "@missing.json", "x '"])
def test_what_is_no_settings_is_refused(doctor: Doctor, text: str) -> None:
    answer = doctor("--engine-config", text)
    assert answer.status == 2
    assert "error: " in answer.err
