"""Faults that the records of single requests show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from doctor import prometheus as pages
from doctor.conftest import Doctor
from outrider.doctor.records import read
from outrider.server.acceptance import of_drafts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where records go."""
    return tmp_path / "calls.jsonl"


def written(path: Path, rows: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """The arguments that name a file with ``rows``."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "--records", str(path)


def row(drafted: int, accepted: int, **more: Any) -> dict[str, Any]:
    """As our request log has it."""
    counts = {"drafts": drafted // 4, "draft_tokens": drafted, "accepted_tokens": accepted}
    return {"id": "x", "method": "draft_model", "prompt_tokens": 10, "completion_tokens": 50, **counts, **more}


# long answers draft badly, short ones well: 30 % of the tokens, 70 % as a mean
UNEVEN = [*(row(40, 36) for _ in range(30)), *(row(4000, 1000, completion_tokens=4000) for _ in range(10))]


def test_a_mean_of_requests_is_told_from_the_pooled_rate(doctor: Doctor, path: Path) -> None:
    records = written(path, UNEVEN[::3] + UNEVEN[1::3] + UNEVEN[2::3])
    answer = doctor(*records, "--reported-acceptance", "0.73")
    assert answer.first == "counted_by_request"
    values = [line["value"] for line in answer.report["findings"][0]["evidence"]]
    assert values == ["73.0 %", "11,080 / 41,200 = 26.9 %", "73.7 %"]
    assert doctor(*records, "--reported-acceptance", "0.27").first != "counted_by_request"


def test_an_engines_gauge_is_held_against_the_records(doctor: Doctor, path: Path) -> None:
    rows = written(path, UNEVEN[::3] + UNEVEN[1::3] + UNEVEN[2::3])
    assert doctor(*rows, pages=(pages.sglang(rate=0.74),)).first == "counted_by_request"


def test_a_steady_log_has_no_fault(doctor: Doctor, path: Path) -> None:
    rows = [row(100, 60, temperature=float(number % 2)) for number in range(40)]
    answer = doctor(*written(path, rows))
    assert answer.status == 0, answer.out
    assert {"drift", "temperature", "weights_not_loaded"} <= set(answer.report["checked"])


def test_hot_requests_that_accept_less_are_named(doctor: Doctor, path: Path) -> None:
    rows = [row(100, 65 if number % 2 else 25, temperature=0.0 if number % 2 else 1.0) for number in range(40)]
    answer = doctor(*written(path, rows))
    assert answer.first == "temperature"
    assert [line["value"] for line in answer.report["findings"][0]["evidence"]] == ["65.0 %", "25.0 %"]


def test_few_drafts_are_no_verdict_on_the_temperature_or_on_drift(doctor: Doctor, path: Path) -> None:
    short = [row(10, 6, temperature=0.0), row(20, 1, temperature=1.0), row(51, 2, temperature=1.0)]
    answer = doctor(*written(path, short))
    assert answer.status == 0, answer.out
    lacking = {each["diagnosis"]: each["lacks"] for each in answer.report["unchecked"]}
    assert "at least 100 drafts" in lacking["temperature"]
    falling = [row(8, 8 if number < 20 else 0) for number in range(40)]
    answer = doctor(*written(path, falling))
    assert answer.status == 0, answer.out
    assert "drift" in {each["diagnosis"] for each in answer.report["unchecked"]}


def test_later_requests_that_accept_less_are_drift(doctor: Doctor, path: Path) -> None:
    rows = [row(100, 65 if number < 20 else 30) for number in range(40)]
    assert doctor(*written(path, rows)).first == "drift"


def test_detailed_metrics_show_positions(doctor: Doctor, path: Path) -> None:
    drafts = [(8, 1)] * 60 + [(8, 0)] * 30 + [(8, 2)] * 30
    answers = [{"metrics": {"speculative_decoding": of_drafts(drafts, detailed)}} for detailed in (True, False)]
    answer = doctor(*written(path, answers))
    assert answer.first == "k_too_long"
    assert "of 8 positions only the first 2 pay" in answer.report["findings"][0]["fault"]
    figures = read(path).figures()
    assert figures.tested_per_position == (240.0, 180.0, 60.0, 0, 0, 0, 0, 0)
    assert figures.accepted_per_position == (180.0, 60.0, 0, 0, 0, 0, 0, 0)


def test_sglang_meta_info_is_read_and_other_lines_are_counted(path: Path) -> None:
    info = {"spec_verify_ct": 10, "spec_num_proposed_drafts": 30, "spec_num_correct_drafts": 12, "prompt_tokens": 5}
    written(path, [{"meta_info": info}, {"status": 404, "route": "unknown"}])
    records = read(path)
    assert records.left_out == 1
    assert (records.rows[0].num_drafts, records.rows[0].rate, records.rows[0].prompt_tokens) == (10, 0.4, 5)


def test_records_that_say_nothing_are_refused(doctor: Doctor, path: Path) -> None:
    answer = doctor(*written(path, [{"status": 404}]))
    assert answer.status == 2
    assert "none of 1 lines says what was drafted" in answer.err
    path.write_text("{")
    assert "line 1: no JSON; give a file of JSON lines" in doctor("--records", str(path)).err
