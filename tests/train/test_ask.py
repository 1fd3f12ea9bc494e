"""Prompts that a target writes itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.tiny import Models
from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.train import ask
from outrider.train.ask import Opening
from train.tiny import chatting


@pytest.fixture(scope="module")
def llm(models: Models, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(chatting(models.folders["target"], tmp_path_factory.mktemp("chat")), threads=1, max_num_seqs=8)


def quiet(done: int, total: int) -> None:
    pass


def rows(path: Path) -> list[str]:
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()]


def test_as_many_as_asked_for_each_once_and_fit_to_be_read(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "GROUP", 8)
    ask.ask(llm, 20, 0, tmp_path / "a.jsonl", quiet)
    found = rows(tmp_path / "a.jsonl")
    assert len(found) == len(set(found)) == 20
    openings = {each.text.strip() for each in ask.OPENINGS if each.text}
    assert any(prompt.startswith(opening) and prompt != opening for prompt in found for opening in openings)


def test_a_stop_changes_nothing(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "GROUP", 8)
    ask.ask(llm, 20, 0, tmp_path / "whole.jsonl", quiet)

    def stopping(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            ask.ask(llm, 20, 0, tmp_path / "parts.jsonl", stopping)
    ask.ask(llm, 20, 0, tmp_path / "parts.jsonl", quiet)
    assert rows(tmp_path / "parts.jsonl") == rows(tmp_path / "whole.jsonl")
    ask.ask(llm, 20, 1, tmp_path / "other.jsonl", quiet)
    assert rows(tmp_path / "other.jsonl") != rows(tmp_path / "whole.jsonl")


def test_a_target_that_asks_nothing_is_no_endless_loop(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "GROUP", 4)
    monkeypatch.setattr(ask, "OPENINGS", (Opening("", 1),))
    monkeypatch.setattr(ask, "_SHORTEST", 10_000)
    with pytest.raises(ConfigError, match="--self-prompts: the target writes no user turns"):
        ask.ask(llm, 3, 0, tmp_path / "a.jsonl", quiet)


def test_a_template_that_opens_no_turn_is_refused(models: Models, tmp_path: Path) -> None:
    folder = Path(chatting(models.folders["target"], tmp_path))
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    with pytest.raises(ConfigError, match="opens no user's turn"):
        ask.ask(LLM(str(folder), threads=1), 3, 0, tmp_path / "a.jsonl", quiet)
