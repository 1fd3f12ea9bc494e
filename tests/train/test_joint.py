"""Medusa-2: a target that learns with its heads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from engine.tiny import Models, same
from outrider import LLM, SamplingParams
from outrider.cli.main import run
from outrider.errors import ConfigError
from outrider.heads import files
from outrider.target.model import load_target
from outrider.train import preflight
from outrider.train.adapter import Adapter
from outrider.train.answers import AnswerFile, Sample
from outrider.train.features import FeatureStore
from outrider.train.fit import Fit, FitOptions
from outrider.train.joint import JointFit
from outrider.train.start import read_target
from processes import python
from train.test_run import killed
from train.tiny import chatting

OPTIONS = ["--max-tokens", "20", "--draft-vocab", "60", "--batch-rows", "128", "--threads", "1", "--lr", "5e-3"]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def target(models: Models, tmp_path_factory: pytest.TempPathFactory) -> str:
    return chatting(models.folders["target"], tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"the ab {number} of"}) + "\n" for number in range(40)))
    return path


def command(target: str, prompts: Path, out: Path, *more: str) -> list[str]:
    return ["train", "medusa", "--target", target, "--prompts", str(prompts), "--out", str(out), *OPTIONS, *more]


@pytest.fixture(scope="module")
def done(target: str, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole run."""
    out = tmp_path_factory.mktemp("run")
    assert run(command(target, prompts, out, "--epochs", "2", "--joint", "3")) == 0
    return out


@pytest.fixture
def fitted(done: Path, tmp_path: Path) -> Path:
    """A folder in which all stages but the joint one are done."""
    return Path(shutil.copytree(done, tmp_path / "run", ignore=shutil.ignore_patterns("medusa2")))


def held_out(done: Path) -> list[Sample]:
    return [sample for answered in AnswerFile(done / "answers.jsonl") for sample in answered.samples][:4]


def test_a_whole_run_says_what_it_changes_and_where_it_is(
    target: str, prompts: Path, fitted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(target, prompts, fitted, "--epochs", "2", "--joint", "3")) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == [str(fitted / "medusa2" / "target"), str(fitted / "medusa2" / "head")]
    assert "joint: the whole target is trained through" in printed.err
    assert printed.err.count("what it writes is another model") == 2  # before anything is done, and when it begins
    assert "new target: KL(original || new) " in printed.err


def test_the_new_target_is_an_ordinary_model_folder(target: str, done: Path) -> None:
    folder = done / "medusa2" / "target"
    old, new = (AutoModelForCausalLM.from_pretrained(place).state_dict() for place in (target, folder))
    assert old.keys() == new.keys()
    moved = {name for name in old if not torch.equal(old[name], new[name])}
    assert moved == {name for name in old if "_proj" in name}
    assert (folder / "model.safetensors").stat().st_mode & 0o044 == 0o044  # others may read it
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(target).chat_template
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(target).get_vocab()
    assert (
        GenerationConfig.from_pretrained(folder).eos_token_id == GenerationConfig.from_pretrained(target).eos_token_id
    )


@pytest.fixture
def both(done: Path) -> Iterator[tuple[LLM, LLM]]:
    """The new target with its head, and alone."""
    config = {"method": "medusa", "model": str(done / "medusa2" / "head")}
    new = str(done / "medusa2" / "target")
    with (
        LLM(new, speculative_config=config, dtype="float32", threads=1, strict=True) as drafting,
        LLM(new, dtype="float32", threads=1) as plain,
    ):
        yield drafting, plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_its_heads_leave_its_text_as_it_is(both: tuple[LLM, LLM], temperature: float) -> None:
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=3)
    drafted, plain = (llm.generate([[5, 6, 7], [9, 8]], params) for llm in both)
    for left, right in zip(drafted, plain, strict=True):
        same(left.outputs[0], right.outputs[0])
    assert sum(output.stats.num_draft_tokens for output in drafted)


def test_heads_are_bound_to_the_target_that_they_learnt_with(
    target: str, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = done / "medusa2" / "target"
    assert files.load(done / "medusa2" / "head").config.target == load_target(str(new)).fingerprint
    assert load_target(str(new)).fingerprint != load_target(target).fingerprint
    for model, head in ((target, "medusa2"), (str(new), "medusa")):
        assert run(["heads", "check", str(done / head / "head"), "--target", model]) == 2
        assert "is a head for llama-2x32" in capsys.readouterr().err
    assert run(["heads", "check", str(done / "medusa2" / "head"), "--target", str(new)]) == 0


def test_the_report_is_what_transformers_computes(target: str, done: Path) -> None:
    report = json.loads((done / "medusa2" / "report.json").read_text())
    old, new = (AutoModelForCausalLM.from_pretrained(place) for place in (target, done / "medusa2" / "target"))
    distances, same_, likelihoods = [], [], []
    for sample in held_out(done):
        ids = torch.tensor([sample.token_ids])
        rows = slice(sample.num_prompt_tokens - 1, len(sample.token_ids) - 1)
        with torch.no_grad():
            ours, theirs = (model(ids).logits[0, rows].log_softmax(-1) for model in (old, new))
        distances.append(nn.functional.kl_div(theirs, ours, reduction="none", log_target=True).sum(-1))
        same_.append(ours.argmax(-1) == theirs.argmax(-1))
        told = ids[0, sample.num_prompt_tokens :]
        likelihoods.append(torch.stack([law[torch.arange(len(told)), told] for law in (ours, theirs)]))
    quality = report["quality"]
    assert quality["texts"] == 4
    assert quality["tokens"] == sum(map(len, distances))
    assert quality["kl"] == pytest.approx(float(torch.cat(distances).mean()), rel=0.01)
    assert quality["agreement"] == pytest.approx(float(torch.cat(same_).float().mean()), abs=0.02)
    perplexities = (-torch.cat(likelihoods, 1).mean(1)).exp().tolist()
    assert [quality["perplexity_original"], quality["perplexity_new"]] == pytest.approx(perplexities, rel=0.01)
    log = [json.loads(line) for line in (done / "medusa2" / "fit" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["kl"] == pytest.approx(quality["kl"], rel=0.3)  # in half precision
    for name in ("head", "target"):
        card = (done / "medusa2" / name / "README.md").read_text()
        assert "**This changes the target.**" in card
        assert f"{quality['kl']:.4f}" in card
        assert "mean acceptance length, tree of 16" in card


def test_a_joint_fit_that_is_killed_ends_bit_equal(target: str, prompts: Path, done: Path, fitted: Path) -> None:
    arguments = command(target, prompts, fitted, "--epochs", "2", "--joint", "3", "--stage", "joint")
    killed(arguments, fitted / "medusa2" / "fit" / "checkpoint.safetensors", 1)
    assert not (fitted / "medusa2" / "target").exists()
    assert run(arguments) == 0
    for name in ("target", "head"):
        mine, theirs = (load_file(folder / "medusa2" / name / "model.safetensors") for folder in (fitted, done))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    report = "medusa2/report.json"
    assert json.loads((fitted / report).read_text()) == json.loads((done / report).read_text())


def test_heads_that_are_given_need_no_fit(
    target: str, prompts: Path, fitted: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(fitted / "medusa")
    arguments = command(target, prompts, fitted, "--joint", "1", "--stage", "joint")
    assert run(arguments) == 2
    assert "run --stage fit first, or give --init HEAD" in capsys.readouterr().err
    assert run([*arguments, "--init", str(done / "medusa" / "head")]) == 0
    assert (fitted / "medusa2" / "head" / "model.safetensors").exists()
    arguments[arguments.index("--joint") + 1] = "2"
    assert run([*arguments, "--init", str(done / "medusa" / "head")]) == 2
    assert "holds a joint fit with epochs=1, not 2" in capsys.readouterr().err


def joint(target: str, done: Path, folder: Path, adapter: Adapter, **changes: Any) -> JointFit:
    options = FitOptions(epochs=1, rows=128, longest=64, held_out=4, half=False, **changes)
    head, weights = files.load(done / "medusa" / "head"), read_target(target)
    return JointFit(head, adapter, weights, FeatureStore(done / "features"), options, folder, 0.2)


@pytest.mark.parametrize("loss", ["ce", "lk", "hybrid"])
def test_a_target_that_has_not_learnt_yet_is_the_original(loss: Any, target: str, done: Path, tmp_path: Path) -> None:
    fit = joint(target, done, tmp_path, Adapter(target, 0, CPU), loss=loss)
    alone = Fit(
        files.load(done / "medusa" / "head"),
        read_target(target),
        FeatureStore(done / "features"),
        fit.options,
        tmp_path,
    )
    found, known = fit.evaluate(0, 0), alone.evaluate(0, 0)
    assert found.kl == pytest.approx(0.0, abs=1e-4)
    assert found.loss == pytest.approx(found.kl + 0.2 * known.loss, rel=1e-3)
    assert found.acceptance == pytest.approx(known.acceptance, abs=0.02)


def test_the_teacher_is_not_moved_towards_the_heads(
    target: str, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(embedded: Any, features: Any, steps: int, start: int = 0) -> Iterator[Any]:
        """Heads that do not look at the state, so that its gradient is the teacher's alone."""
        yield from [torch.ones_like(features[:, start:])] * steps

    adapter = Adapter(target, 0, CPU)
    fit = joint(target, done, tmp_path, adapter, prompts=True)
    for parameter in adapter.parameters():
        nn.init.normal_(parameter, std=0.05, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(fit.head, "unroll", blind)
    fit.weight = 1e3
    fit._losses([5, 6], True).loss.backward()
    with_heads = [parameter.grad.clone() for parameter in adapter.parameters()]
    adapter.zero_grad()
    fit.weight = 0.0
    fit._losses([5, 6], True).loss.backward()
    for found, parameter in zip(with_heads, adapter.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad)


def test_two_processes_learn_what_one_does(target: str, prompts: Path, done: Path, fitted: Path) -> None:
    arguments = [*command(target, prompts, fitted, "--epochs", "2", "--joint", "3"), "--stage", "joint"]
    python(["-m", "outrider", *arguments], count=2)
    mine, theirs = (json.loads((place / "medusa2" / "report.json").read_text()) for place in (fitted, done))
    assert mine["steps"] == theirs["steps"]
    old = AutoModelForCausalLM.from_pretrained(target).state_dict()
    one, two = (load_file(place / "medusa2" / "target" / "model.safetensors") for place in (done, fitted))
    moved, apart = (_distance(one, other) for other in (old, two))
    assert apart < 0.1 * moved


def _distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([(one[name] - other[name]).norm() for name in one]).norm())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--stage", "joint"], "--stage joint and --joint-weight need --joint EPOCHS"),
        (["--joint-weight", "0.1"], "--stage joint and --joint-weight need --joint EPOCHS"),
        (["--joint", "1", "--shard"], "--joint does not go with --shard"),
    ],
)
def test_what_does_not_go_together_is_refused(
    more: list[str], message: str, target: str, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command(target, prompts, tmp_path, *more)) == 2
    assert message in capsys.readouterr().err


def test_other_heads_have_no_joint_stage(
    target: str, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(target, prompts, tmp_path, "--joint", "1")
    arguments[1] = "eagle3"
    assert run(arguments) == 2
    assert "--joint is Medusa-2, and 'eagle3' is no medusa head" in capsys.readouterr().err


def test_what_cannot_work_is_refused_before_anything_is_done(
    target: str, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(target, prompts, tmp_path, "--joint", "1")
    with monkeypatch.context() as patch:
        patch.setattr(preflight, "free_memory", lambda device: 1 << 20)
        assert run(arguments) == 2
        assert "lower --batch-rows, or leave --joint out" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr("outrider.train.adapter.find_spec", lambda name: None)
        assert run(arguments) == 2
        assert "pip install 'outrider[train]'" in capsys.readouterr().err
        with pytest.raises(ConfigError, match="needs peft"):
            Adapter(target, 0, CPU)
    assert not (tmp_path / "answers.jsonl").exists()
