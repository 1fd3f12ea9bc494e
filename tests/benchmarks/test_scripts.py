"""What the scripts compute from counts and times, without a model."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import acceptance
import assisted
import harness
import overhead
import pytest
import rest
import throughput
import torch

from outrider.bench.runner import Results, Row
from outrider.core.draft import Draft
from outrider.core.noise import gumbel_argmax
from outrider.outputs import RequestStats


def row(system: str, seconds: float, task: str = "qa") -> Row:
    stats = RequestStats(num_first_tokens=1, prefill_seconds=1.0, verify_seconds=seconds, time_to_first_token=1.0)
    return Row("p", task, 0, system, 5, [7] * 5, "", "length", True, stats)


class Named:
    def __init__(self, label: str) -> None:
        self.label = label

    def answer(self, token_ids: list[int], max_tokens: int, index: int, salt: str) -> tuple[list[int], RequestStats]:
        raise NotImplementedError


def test_ratios_per_task_and_over_all() -> None:
    rows = [row("a", 1.0), row("b", 2.0), row("a", 1.0, "rag"), row("b", 4.0, "rag")]
    (entry,) = harness.ratios(rows, [("a", "b")])
    assert {task: cell["pooled"] for task, cell in entry["tasks"].items()} == {"qa": 2.0, "rag": 4.0, "all": 3.0}
    assert harness.fastest(rows, ["b", "a"]) == "a"


def test_show_prints_every_system_and_pair(capsys: pytest.CaptureFixture[str]) -> None:
    results = Results([row("a", 1.0), row("b", 2.0)])
    harness.show(results, [Named("a"), Named("b")], [("a", "b")])
    out = capsys.readouterr().out
    assert "speed" in out
    assert "2.00" in out


def test_recorder_keeps_rows_and_the_latest_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["plain.py"])
    args = argparse.Namespace(json=str(tmp_path / "out"), threads=1, prompts=[Path("x")])
    recorder = harness.Recorder(args, {"system": {"dtype": "float16"}})
    recorder.rows([{"a": 1}])
    recorder.summary({"done": 1})
    recorder.rows([{"a": 2}])
    recorder.summary({"done": 2})
    folder = tmp_path / "out"
    assert [json.loads(line)["a"] for line in (folder / "prompts.jsonl").read_text().splitlines()] == [1, 2]
    assert json.loads((folder / "summary.json").read_text()) == {"done": 2}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["arguments"] | {"threads": 1, "prompts": ["x"], "script": "plain.py"} == manifest["arguments"]


def test_pairs_of_assisted_compare_within_a_path() -> None:
    labels = ["outrider plain", "outrider K=2", "outrider plain exact=False", "outrider K=2 exact=False"]
    pairs = assisted.pairs_of([*labels, "transformers assisted bfloat16"])
    assert ("outrider K=2", "outrider plain") in pairs
    assert ("outrider K=2 exact=False", "outrider plain exact=False") in pairs
    assert ("outrider K=2", "transformers assisted bfloat16") in pairs
    assert all("plain bfloat16" not in other for _, other in pairs)


def test_step_shares() -> None:
    times = overhead.StepTimes([2.0, 4.0], [1.0, 3.8], [0.5, 0.0], outside=0.6)
    shares = times.shares()
    assert shares["verify"] == pytest.approx(0.8)
    assert shares["no_forward"] == pytest.approx(0.2)
    assert shares["rest"] == pytest.approx(0.2 - 0.5 / 6)
    assert shares["no_forward_median"] == pytest.approx((0.5 + 0.05) / 2)
    assert shares["loop"] == pytest.approx(0.1)


def test_throughput_cells_count_tokens_and_equal_answers() -> None:
    cell = throughput.Cell()
    cell.add([[1, 2, 3], [4]], 2.0, [[1, 2, 9], [4]])
    cell.add([[1, 2]], 1.0, [[1, 2]])
    assert (cell.num_tokens, cell.num_equal, cell.num_answers, cell.num_common) == (6, 2, 3, 5)
    assert cell.rate == pytest.approx(2.0)
    assert cell.rates == [2.0, 2.0]


def test_position_scores_of_equal_and_of_disjoint_laws() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 0.5])
    token = gumbel_argmax(logits, 3, 11)
    p = torch.softmax(logits.double(), 0)
    same = acceptance.position_scores(logits, logits, token, 3, 11)
    assert same == pytest.approx([1.0, 1.0, 1.0, float(p.max()), float((p * p).sum()), 1.0])
    low, high = torch.tensor([0.0, 0.0, -1e9, -1e9]), torch.tensor([-1e9, -1e9, 0.0, 0.0])
    assert acceptance.position_scores(low, high, 0, 3, 11)[1:5] == pytest.approx([0.0, 0.0, 0.0, 0.0])


def test_teacher_summary_is_pooled_over_positions() -> None:
    summary = acceptance.teacher_summary([[10.0, 8.0, 9.0, 7.0, 6.0, 10.0], [30.0, 24.0, 23.0, 21.0, 18.0, 30.0]])
    assert summary["positions"] == 40
    assert summary["shared noise"]["mean"] == pytest.approx(0.8)
    assert summary["shared noise / rejection"]["mean"] == pytest.approx(1.0)
    assert summary["shared noise / argmax draft"]["low"] == pytest.approx(24 / 21)


def test_engine_summary_counts_what_was_tested() -> None:
    shared, rejected = RequestStats(), RequestStats()
    draft = Draft(tokens=[1, 2, 3, 4])
    shared.add_step(draft, [0, 1, 2, 3], 5)
    shared.add_step(draft, [0], 2)
    rejected.add_step(draft, [], 1)
    rejected.add_step(draft, [0], 2)
    cells = acceptance.engine_summary({"shared noise": [shared], "rejection": [rejected], "argmax draft": []}, 4)
    assert set(cells) == {"shared noise", "rejection"}
    assert cells["shared noise"]["tested"] == pytest.approx(5 / 6)
    assert cells["shared noise"]["chain"] == pytest.approx(5 / 8)
    assert cells["rejection"]["first"] == pytest.approx(1 / 2)
    assert cells["rejection"]["shared noise / this"] == pytest.approx((5 / 6) / (1 / 3))


def test_argmax_noise_ignores_the_noise() -> None:
    noise = acceptance.ArgmaxNoise()
    assert noise.candidates(object(), torch.tensor([0.1, 3.0, 2.0]), 5, 2) == [1, 2]
    with pytest.raises(NotImplementedError):
        noise.sample(object(), torch.zeros(3), 5, 0)


def test_places_of_look_ups_are_even_and_have_a_context() -> None:
    texts = [list(range(100, 111)), [1], list(range(200, 211))]
    chosen = rest.places(texts, 4)
    assert sorted(chosen) == [texts[0][:2], texts[0][:7], texts[2][:2], texts[2][:7]]
    assert len(rest.places(texts, 1000)) == 20
