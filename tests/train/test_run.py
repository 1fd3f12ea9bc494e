"""All stages of `outrider train` in one folder, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.tiny import Models, same
from outrider import SamplingParams
from outrider.cli.main import run
from outrider.heads import files
from outrider.target.tokenizer import Tokenizer


@pytest.fixture(autouse=True)
def template(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode_chat(self: Tokenizer, messages: list[dict[str, str]]) -> list[int]:
        return list(self.encode(" ".join(message["content"] for message in messages)))

    monkeypatch.setattr(Tokenizer, "encode_chat", encode_chat)


def test_prompts_become_a_head_that_drafts(models: Models, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"the ab {number} of"}) + "\n" for number in range(30)))
    out = tmp_path / "run"
    command = ["train", "eagle3", "--target", models.folders["target"], "--prompts", str(prompts), "--out", str(out)]
    options = ["--max-tokens", "20", "--draft-vocab", "60", "--epochs", "2", "--batch-rows", "128", "--threads", "1"]
    for stage in ("regenerate", "features", "fit"):
        assert run([*command, *options, "--stage", stage]) == 0
    config = files.read_config(out / "head")
    assert (config.draft_vocab_size, config.trained_steps, config.hidden_layers) == (60, 4, (0, 1))
    log = [json.loads(line) for line in (out / "fit" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["split"] == "held out"
    folders = dict(models.folders)
    models.folders["trained"] = str(out / "head")
    try:
        llm = models.fresh({"method": "eagle3", "model": "trained"})
        params = SamplingParams(max_tokens=20, temperature=0.0)
        same(llm.generate([5, 6, 7], params)[0].outputs[0], models.plain([5, 6, 7], params).outputs[0])
    finally:
        models.folders.clear()
        models.folders.update(folders)


def test_what_is_not_known_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["train", "eagle3", "--target", "x", "--prompts", "y", "--out", str(tmp_path)]
    assert run(["train", "medusa9", *base[2:]]) == 2
    assert "head 'medusa9' is not known; choose one of: eagle3" in capsys.readouterr().err
    assert run([*base, "--stage", "cook"]) == 2
    assert "--stage 'cook' is not known; choose among: regenerate, features, fit" in capsys.readouterr().err


def test_a_head_of_another_target_is_refused(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.dumps({"method": "eagle3", "model": models.head})
    command = ["generate", models.folders["small"], "abc", "--raw", "--threads", "1", "--speculative-config", config]
    assert run(command) == 2
    assert "is a head for llama-2x32" in capsys.readouterr().err
