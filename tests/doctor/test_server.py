"""The command against a running server, and its page of documentation."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from doctor.conftest import Doctor
from engine.tiny import Models
from outrider.doctor.diagnoses.table import DIAGNOSES
from server.conftest import serving, tiny

ASK = {"prompt": "the ab of the cd of the ab of the", "max_tokens": 60, "temperature": 0.0, "ignore_eos": True}
DOCS = Path(__file__).parents[2] / "docs" / "doctor.md"


@pytest.fixture(scope="module")
def folder(models: Models) -> str:
    """The tiny target."""
    return models.folders["target"]


def test_a_server_that_never_drafts_is_told_so(doctor: Doctor, folder: str) -> None:
    with serving(tiny(folder, speculative_config={"method": "prediction"})) as (address, _):
        for _ in range(3):  # without a prediction there is nothing to draft
            httpx.post(f"{address}/v1/completions", json=ASK).raise_for_status()
        answer = doctor(address)
    assert answer.first == "speculation_off", answer.out
    assert answer.status == 1
    values = {line["what"]: line["value"] for line in answer.report["findings"][0]["evidence"]}
    assert (values["draft tokens"], values["tokens generated meanwhile"]) == ("0", "180")
    assert "since its start" in answer.report["notes"][0]


def test_a_window_of_a_server_is_that_of_its_requests(doctor: Doctor, folder: str) -> None:
    with serving(tiny(folder), metrics_prefix="vllm:") as (address, _):
        httpx.post(f"{address}/v1/completions", json=ASK).raise_for_status()
        answer = doctor(address, "--window", "0.2")
    assert answer.status == 0
    seen = {line["what"]: line["value"] for line in answer.report["seen"]}
    assert seen["tokens generated"] == "0"  # those of the request were generated before
    assert "going_rate" in str(answer.report["seen"])  # ours, whatever its prefix


def test_every_diagnosis_is_documented_and_explains_those_that_exist() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for row in DIAGNOSES.values():
        assert f"| `{row.name}` | {row.summary} |" in text
        assert set(row.explains) <= DIAGNOSES.keys()
        assert row.name not in row.explains
