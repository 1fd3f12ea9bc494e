"""``metrics.speculative_decoding``: vLLM's fields, in whole answers and at the end of streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from outrider.server.acceptance import of_drafts
from server.conftest import serving, tiny

SUFFIX = {"method": "suffix", "num_speculative_tokens": 4}
ASK: dict[str, Any] = {"prompt": "the ab of the cd of the ab of the", "max_tokens": 24, "temperature": 0.0}


@pytest.fixture(scope="module")
def address(folder: str) -> Iterator[str]:
    """Of a server that drafts four tokens at most, and says of every request how that went, but for details."""
    with serving(tiny(folder, speculative_config=SUFFIX), request_metrics="summary") as (started, _):
        yield started


def ask(address: str, **fields: Any) -> dict[str, Any]:
    """A whole answer."""
    answer: dict[str, Any] = httpx.post(f"{address}/v1/completions", json={**ASK, **fields}).raise_for_status().json()
    return answer


def chunks(address: str, **fields: Any) -> list[dict[str, Any]]:
    """Those of a streamed answer."""
    with httpx.stream("POST", f"{address}/v1/completions", json={**ASK, "stream": True, **fields}) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_rates_and_histograms_follow_from_the_drafts() -> None:
    got = of_drafts([(4, 4), (4, 0), (2, 0), (4, 0)], detailed=True)
    assert got == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 4 / 14,
        "acceptance_histogram": {"0": 3, "4": 1},
        "acceptance_histogram_by_draft_length": {"2": {"0": 1}, "4": {"0": 2, "4": 1}},
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 4,
        "num_draft_tokens": 14,
        "num_spec_tokens": 4,
        "per_step_accepted": [4, 0, 0, 0],
        "per_step_drafted": [4, 4, 2, 4],
    }
    nothing = of_drafts([], detailed=False)
    assert nothing["mean_acceptance_length"] is nothing["draft_acceptance_rate"] is None
    assert "per_step_accepted" not in nothing


def test_a_request_says_how_much_it_wants(address: str) -> None:
    summary = ask(address)["metrics"]["speculative_decoding"]
    assert summary["num_spec_steps"] == sum(summary["acceptance_histogram"].values()) > 0
    detailed = ask(address, speculation={"metrics": "detailed"})["metrics"]["speculative_decoding"]
    assert sum(detailed["per_step_accepted"]) == detailed["num_accepted_draft_tokens"]
    assert len(detailed["per_step_drafted"]) == detailed["num_spec_steps"]
    assert max(detailed["per_step_drafted"]) <= 4
    assert "metrics" not in ask(address, speculation={"metrics": "none"})
    wrong = httpx.post(f"{address}/v1/completions", json={**ASK, "speculation": {"metrics": "all"}})
    assert wrong.status_code == 400


def test_it_is_null_without_speculation_and_for_several_samples(address: str) -> None:
    for fields in ({"speculation": {"enabled": False}}, {"n": 2, "temperature": 1.0}):
        assert ask(address, **fields)["metrics"] == {"speculative_decoding": None}


def test_streams_end_with_it(address: str) -> None:
    whole = ask(address)["metrics"]
    *rest, last = chunks(address, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 24
    assert set(last["metrics"]["speculative_decoding"]) == set(whole["speculative_decoding"])
    assert not any("metrics" in chunk for chunk in rest)
    assert "metrics" in chunks(address, speculation={"metrics": "summary"})[-1]
    assert all(chunk["choices"] for chunk in chunks(address))  # nobody asked for a chunk without choices
