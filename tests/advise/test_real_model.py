"""The whole run on the small real model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.cli.main import run

pytestmark = pytest.mark.real_model


def test_a_run_leaves_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Count from one to ten.\nSay hello three times.\nName three colours.\n")
    out = tmp_path / "advice"
    command = ["advise", "--target", "smollm2-135m", "--prompts", str(prompts), "--no-trees", "--prove", "1"]
    assert run([*command, "--prove-prompts", "1", "-n", "12", "--concurrency", "1,4", "-o", str(out), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert json.loads((out / "advice.json").read_text())["recommendation"] == value["recommendation"]
    assert {"eagle3", "ngram", "medusa"} <= set(value["acceptance"])
    assert value["proofs"][0]["equal"] == value["proofs"][0]["num_answers"]
    assert value["acceptance"]["eagle3"]["agreement"]["overlap"] > 0.2
    assert (out / "advice.html").read_text().startswith("<!doctype html>")
    assert json.loads((out / "costs.json").read_text())["format"] == "outrider costs 1"
