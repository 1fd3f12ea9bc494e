"""Recorded requests as prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.advise.traffic import load
from outrider.errors import ConfigError


def _write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_conversation_is_asked_from_its_last_user_message(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]
    (prompt,) = load([_write(tmp_path / "chat.jsonl", [{"messages": messages}])])
    assert prompt.turns == ("c",)
    assert [each["content"] for each in prompt.before] == ["s", "a", "b"]


def test_a_request_log_with_texts_is_read_as_it_stands(tmp_path: Path) -> None:
    rows = [{"route": "/v1/chat", "status": 200, "prompts": ["<s>hello"]}, {"route": "/v1/x", "status": 400}]
    (prompt,) = load([_write(tmp_path / "log.jsonl", rows)])
    assert prompt.rendered
    assert prompt.turns == ("<s>hello",)


def test_a_request_log_without_texts_says_what_to_do(tmp_path: Path) -> None:
    path = _write(tmp_path / "log.jsonl", [{"route": "/v1/chat", "status": 200}])
    with pytest.raises(ConfigError, match="request-log-text"):
        load([path])


def test_other_files_are_read_as_bench_does(tmp_path: Path) -> None:
    path = _write(tmp_path / "questions.jsonl", [{"question_id": 1, "turns": ["a", "b"]}])
    (prompt,) = load([path])
    assert prompt.turns == ("a", "b")


def test_the_limit_spreads_over_a_task(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": str(at)}]} for at in range(10)]
    found = load([_write(tmp_path / "chat.jsonl", rows)], 2)
    assert [prompt.turns[0] for prompt in found] == ["0", "5"]
