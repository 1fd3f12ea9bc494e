"""Regenerated answers: what is written, and that a stop at any moment changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.tiny import Models
from outrider import SamplingParams
from outrider.bench.data import Prompt
from outrider.errors import ConfigError
from outrider.train.answers import Answered, AnswerFile, Sample
from outrider.train.regenerate import Sampling, regenerate

SAMPLING = Sampling(temperatures=(0.0, 1.0), max_tokens=12, seed=3)
PROMPTS = [
    Prompt("a/1", "a", ("the ab of",)),
    Prompt("a/2", "a", ("in ab", "more")),
    Prompt("b/1", "b", ("x" * 500,)),
    Prompt("b/2", "b", ("of the",)),
    Prompt("b/3", "b", ("abc",)),
]


def write(models: Models, path: Path, group: int = 2) -> str:
    llm = models.llm(max_num_seqs=4)
    skipped = regenerate(llm, PROMPTS, SAMPLING, AnswerFile(path), lambda done, total: None, group)
    assert skipped in (0, 1)  # the long one, unless an earlier run came by it
    return path.read_text()


@pytest.fixture(autouse=True)
def template(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = models.llm(max_num_seqs=4).get_tokenizer()

    def encode_chat(messages: list[dict[str, str]]) -> list[int]:
        return list(tokenizer.encode(" ".join(message["content"] for message in messages)))

    monkeypatch.setattr(tokenizer, "encode_chat", encode_chat)


def test_the_target_answers_every_turn(models: Models, tmp_path: Path) -> None:
    write(models, tmp_path / "answers.jsonl")
    answers = list(AnswerFile(tmp_path / "answers.jsonl"))
    assert [answered.prompt_id for answered in answers] == [prompt.prompt_id for prompt in PROMPTS]
    assert [len(answered.samples) for answered in answers] == [1, 2, 0, 1, 1]  # one is longer than the context
    first, second = answers[1].samples
    assert list(second.token_ids[: first.num_prompt_tokens]) == list(first.token_ids[: first.num_prompt_tokens])
    assert second.num_prompt_tokens > len(first.token_ids) - 1
    for number, answered in enumerate(answers):
        for turn, sample in enumerate(answered.samples):
            params = SamplingParams(
                max_tokens=12, temperature=float(number % 2), seed=3 * 1_000_003 + number * 16 + turn
            )
            prompt = list(sample.token_ids[: sample.num_prompt_tokens])
            want = models.plain(prompt, params).outputs[0].token_ids
            assert list(sample.token_ids[sample.num_prompt_tokens :]) == want
            assert sample.temperature == number % 2


@pytest.mark.parametrize("cut", [0, 1, 40, 200, 10_000])
def test_a_run_that_was_stopped_ends_with_the_same_file(models: Models, tmp_path: Path, cut: int) -> None:
    whole = write(models, tmp_path / "whole.jsonl")
    (tmp_path / "cut.jsonl").write_text(whole[:cut])
    assert write(models, tmp_path / "cut.jsonl", group=3) == whole


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path / "answers.jsonl")
    file.append([Answered("a", "t", [Sample([1, 2, 3], 1, 0.0)])])
    with file.path.open("a") as out:
        out.write('{"prompt_id": 3}\n')
    with pytest.raises(ConfigError, match="line 2: holds no answer"):
        list(file)
    assert len(file) == 2
