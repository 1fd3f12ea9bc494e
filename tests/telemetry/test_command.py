"""``outrider trace`` on a tiny model: the page, the record, and what is refused before the model is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine.tiny import VARIANTS, Models
from outrider.cli import trace
from outrider.cli.main import run


@pytest.fixture
def opened(models: Models, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Settings of every engine that the command opened."""
    calls: list[dict[str, Any]] = []

    def open_tiny(model: str, *, threads: int | None, configs: Any, **settings: Any) -> Any:
        calls.append({"model": model, "configs": configs, **settings})
        return models.fresh([config.model_dump(exclude_unset=True) for config in configs])

    monkeypatch.setattr(trace, "open_llm", open_tiny)
    return calls


def test_a_page_is_written(opened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "page.html"
    assert run(["trace", "m", "the abc the abc", "--method", "ngram", "-n", "20", "--compare", "-o", str(out)]) == 0
    assert out.read_text().startswith("<!doctype html>")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "20 token(s) in" in captured.err
    assert opened[0]["enable_prefix_caching"] is False


def test_json_is_the_record_and_a_page_only_with_o(
    opened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = json.dumps(VARIANTS["suffix tree"])
    assert run(["trace", "m", "the abc the abc", "--speculative-config", config, "-n", "9", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["method"], record["verifier"], record["plain"]) == ("suffix", "sample", None)
    assert record["stats"]["num_completion_tokens"] == 9
    assert not list(tmp_path.iterdir())


def test_a_row_of_a_prompt_file(opened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"turns": ["the abc", "again"]}\n{"prompt": "of the", "prediction": "in the ab"}\n')
    assert run(["trace", "m", "--prompts", str(path), "--index", "1", "--method", "prediction", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "of the"
    assert run(["trace", "m", "--prompts", str(path), "--json"]) == 0
    assert "the first of 2 turns" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x", "--prompts", "FILE"], "either a prompt or --prompts"),
        (["--prompts", "FILE", "--index", "7"], "--index 7: .* has 1 prompts; choose 0 to 0"),
        (["x", "-o", "FOLDER"], "cannot be written .*; name another place"),
        (["x", "--speculative-config", '[{"method": "ngram"}, {"method": "suffix"}]'], "one method"),
        (["x", "--method", "prediction"], "needs the expected output"),
        (["x", "--method", "ngram", "--prediction", "y"], "used by prediction only"),
        (["x", "--raw", "--system", "s"], "--system needs the chat template"),
        (["x", "-k", "3"], "-k needs a method"),
    ],
)
def test_what_cannot_be_done_is_refused_early(
    opened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("one\n")
    places = {"FILE": str(path), "FOLDER": str(tmp_path)}
    assert run(["trace", "m", *(places.get(argument, argument) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not opened
