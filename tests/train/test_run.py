"""All stages of `outrider train` in one folder, from the command line, and killed at any of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.tiny import Models, same
from outrider import SamplingParams
from outrider.cli.main import run
from outrider.errors import ConfigError
from outrider.heads import files
from outrider.heads.config import KINDS, RECURRENT, HeadKind, config_for
from outrider.heads.kinds import make
from outrider.target.model import load_target
from outrider.train.curves import draw
from outrider.train.evaluate import TEMPERATURES
from outrider.train.start import read_target, with_vocabulary
from processes import python
from train.tiny import chatting

OPTIONS = ["--max-tokens", "20", "--draft-vocab", "60", "--epochs", "2", "--batch-rows", "128", "--threads", "1"]

OFTEN = """
import sys
from outrider.cli.main import main
from outrider.train import features, fit, regenerate
regenerate.GROUP, features.SHARD, fit.SAVE = 8, 200, 2
sys.exit(main())
"""  # a command that writes what it has more often than it must


@pytest.fixture(scope="module")
def target(models: Models, tmp_path_factory: pytest.TempPathFactory) -> str:
    return chatting(models.folders["target"], tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"the ab {number} of"}) + "\n" for number in range(40)))
    return path


@pytest.fixture(scope="module")
def done(target: str, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose answers and features are there."""
    out = tmp_path_factory.mktemp("run")
    assert run([*command("eagle3", target, prompts, out), "--stage", "regenerate", "--stage", "features"]) == 0
    return out


def command(kind: str, target: str, prompts: Path, out: Path) -> list[str]:
    return ["train", kind, "--target", target, "--prompts", str(prompts), "--out", str(out), *OPTIONS]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_become_a_head_that_drafts(
    kind: HeadKind, models: Models, target: str, prompts: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = command(kind, target, prompts, done)
    for stage in ("fit", "evaluate"):
        assert run([*arguments, "--stage", stage]) == 0
    assert capsys.readouterr().out.split()[-1] == str(done / kind / "head")
    page = (done / kind / "fit" / "curves.html").read_text()
    assert f"{kind} for " in page
    assert "data:image/svg+xml;base64," in page
    assert (done / kind / "fit" / "curves.png").stat().st_size > 10_000
    config = files.load(done / kind / "head").config
    assert (config.kind, config.draft_vocab_size, config.trained_steps) == (kind, 60, 4)
    assert config.hidden_layers == ((0, 1) if kind == "eagle3" else (1,))
    found = json.loads((done / kind / "evaluation.json").read_text())
    lengths = {float(key): value for key, value in found["by_draft_temperature"].items()}
    assert tuple(lengths) == TEMPERATURES
    assert lengths[config.draft_temperature] == max(lengths.values())
    assert found["sampled"] == pytest.approx(max(lengths.values()), rel=0.02)  # now behind cached prompts
    log = [json.loads(line) for line in (done / kind / "fit" / "log.jsonl").read_text().splitlines()]
    judged = [line["engine"] for line in log if line["split"] == "held out"]
    assert len(judged) == 2
    assert all(1.0 <= value <= 5.0 for figures in judged for value in (figures["chain"], figures["sampled"]))
    assert found["chain"] == pytest.approx(max(figures["chain"] for figures in judged), abs=0.5)
    folders = dict(models.folders)
    models.folders["trained"] = str(done / kind / "head")
    try:
        llm = models.fresh({"method": kind, "model": "trained"})
        params = SamplingParams(max_tokens=20, temperature=0.0)
        same(llm.generate([5, 6, 7], params)[0].outputs[0], models.plain([5, 6, 7], params).outputs[0])
    finally:
        models.folders.clear()
        models.folders.update(folders)


def test_of_several_processes_one_says_where_the_head_is(
    target: str, prompts: Path, done: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(done, out, ignore=shutil.ignore_patterns(*KINDS))
    arguments = [*command("medusa", target, prompts, out), "--stage", "fit"]
    ended = python(["-m", "outrider", *arguments], count=2)
    assert ended.stdout.split() == [str(out / "medusa" / "head")]


def test_the_log_goes_to_tensorboard(
    target: str, prompts: Path, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    out = tmp_path / "run"
    shutil.copytree(done, out, ignore=shutil.ignore_patterns(*KINDS))
    arguments = [*command("medusa", target, prompts, out), "--stage", "fit", "--tensorboard"]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as where it is not installed
    assert run(arguments) == 2
    assert "pip install 'outrider[tensorboard]'" in capsys.readouterr().err
    written: dict[str, list[int]] = {}

    class Writer:
        def __init__(self, folder: str) -> None:
            assert folder == str(out / "medusa" / "fit" / "tensorboard")

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.setdefault(name, []).append(step)

        def close(self) -> None:
            written["closed"] = []

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    assert run(arguments) == 0
    log = [json.loads(line) for line in (out / "medusa" / "fit" / "log.jsonl").read_text().splitlines()]
    ends = [row["step"] for row in log if row["split"] == "held out"]
    assert written["held_out/engine/chain"] == written["held_out/acceptance/1"] == ends
    assert "closed" in written


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_that_drafts_worse_than_it_did_is_refused(
    kind: HeadKind, models: Models, target: str, prompts: Path, done: Path, tmp_path: Path
) -> None:
    if not (done / kind / "head").exists():
        assert run([*command(kind, target, prompts, done), "--stage", "fit"]) == 0
    head = files.load(done / kind / "head")
    assert head.config.canary_agreement > 0.05
    models.folders["shifted"] = str(tmp_path / "head")
    head.set_vocabulary(head.target_ids + 1)  # as of a map that counts from one
    files.save(head, tmp_path / "head")
    try:
        with pytest.raises(ConfigError, match=r"drafts \d+% of its test text right and did \d+%"):
            models.fresh({"method": kind, "model": "shifted"})
    finally:
        del models.folders["shifted"]


def test_prompts_of_all_tasks_are_among_the_first(target: str, tmp_path: Path) -> None:
    files_ = []
    for task in ("one", "two"):
        files_.append(tmp_path / f"{task}.jsonl")
        files_[-1].write_text("".join(json.dumps({"prompt": f"the {task} {n}"}) + "\n" for n in range(20)))
    given = ["--prompts", str(files_[0]), "--prompts", str(files_[1]), "--out", str(tmp_path / "run")]
    assert run(["train", "eagle3", "--target", target, *given, *OPTIONS, "--stage", "regenerate"]) == 0
    lines = (tmp_path / "run" / "answers.jsonl").read_text().splitlines()
    assert {json.loads(line)["task"] for line in lines[:10]} == {"one", "two"}


def test_a_target_can_write_the_prompts_itself(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.train.ask.GROUP", 16)
    arguments = ["train", "eagle3", "--target", target, "--out", str(tmp_path), *OPTIONS]
    assert run(arguments) == 2
    assert "give --prompts FILE, or --self-prompts N" in capsys.readouterr().err
    assert run([*arguments, "--self-prompts", "12", "--dry-run"]) == 0
    assert "texts: about 12" in capsys.readouterr().err
    assert run([*arguments, "--self-prompts", "12"]) == 0
    assert len((tmp_path / "prompts.jsonl").read_text().splitlines()) == 12
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 12
    assert files.load(tmp_path / "eagle3" / "head").config.kind == "eagle3"


def test_a_head_goes_on_from_another(
    target: str, prompts: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = done / "eagle3" / "head"
    if not head.exists():
        assert run([*command("eagle3", target, prompts, done), "--stage", "fit"]) == 0
    fresh = (done / "eagle3" / "fit" / "log.jsonl").read_text().splitlines()
    out = tmp_path / "run"
    shutil.copytree(done, out)
    for vocab in (None, "70"):
        shutil.rmtree(out / "eagle3")
        arguments = [*command("eagle3", target, prompts, out), "--stage", "fit", "--init", str(head)]
        place = arguments.index("--draft-vocab")
        arguments[place : place + 2] = [] if vocab is None else ["--draft-vocab", vocab]
        assert run(arguments) == 0
        before, after = files.load(head), files.load(out / "eagle3" / "head")
        assert torch.equal(before.target_ids, after.target_ids) == (vocab is None)
        assert len(after.target_ids) == int(vocab or 60)
        gone_on = (out / "eagle3" / "fit" / "log.jsonl").read_text().splitlines()
        assert json.loads(gone_on[0])["loss"] < json.loads(fresh[0])["loss"]
    assert run([*command("mtp", target, prompts, out), "--stage", "fit", "--init", str(head)]) == 2
    assert "is a head of kind eagle3" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_another_vocabulary_keeps_the_rows_of_known_tokens(kind: HeadKind, models: Models) -> None:
    target = read_target(models.folders["target"])
    config = load_target(models.folders["target"]).config
    stack = {} if kind in RECURRENT else {"num_heads": 2}
    head = make(config_for(kind, config, "tiny", 40, 64, **stack))
    generator = torch.Generator().manual_seed(0)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    hidden = torch.randn(3, config.hidden_size, generator=generator)
    ids = torch.arange(20, 70)
    other = with_vocabulary(head, ids, target)
    assert torch.equal(other.target_ids, ids)
    torch.testing.assert_close(other.logits(hidden, 0)[:, :20], head.logits(hidden, 0)[:, 20:])


@pytest.mark.parametrize("moved", [False, True])
def test_new_rows_follow_the_way_that_training_moved_the_known_ones(moved: bool, models: Models) -> None:
    target = read_target(models.folders["target"])
    config = load_target(models.folders["target"]).config
    generator, size = torch.Generator().manual_seed(0), int(config.hidden_size)
    way = torch.eye(size) + moved * torch.randn(size, size, generator=generator) / size**0.5
    head = make(config_for("medusa", config, "tiny", 60, 64, num_heads=2))
    head.get_parameter("lm_head.weight").data = target.head[:60] @ way
    rows = with_vocabulary(head, torch.arange(10, 80), target).get_parameter("lm_head.weight")[50:]
    right = target.head[60:80] @ way
    assert torch.dist(rows, right) <= (0.5 * torch.dist(target.head[60:80], right) if moved else 1e-4)


def killed(arguments: list[str], watched: Path, size: int) -> None:
    """Run the command in a process of its own, and kill it once a file has so many bytes."""
    process = subprocess.Popen([sys.executable, "-c", OFTEN, *arguments], stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not (watched.exists() and watched.stat().st_size >= size):
            assert process.poll() is None, process.communicate()[1].decode()
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        process.kill()
        process.wait()


def test_a_run_killed_in_every_stage_ends_bit_equal(target: str, prompts: Path, done: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = command("hydra", target, prompts, out)
    assert run([*command("hydra", target, prompts, done), "--stage", "fit"]) == 0
    killed([*arguments, "--stage", "regenerate"], out / "answers.jsonl", 1)
    assert 0 < len((out / "answers.jsonl").read_text().splitlines()) < 40
    assert run([*arguments, "--stage", "regenerate"]) == 0
    assert (out / "answers.jsonl").read_bytes() == (done / "answers.jsonl").read_bytes()
    killed([*arguments, "--stage", "features"], out / "features" / "manifest.json", 1)
    assert run([*arguments, "--stage", "features"]) == 0
    killed([*arguments, "--stage", "fit"], out / "hydra" / "fit" / "checkpoint.safetensors", 1)
    assert not (out / "hydra" / "head").exists()
    assert run([*arguments, "--stage", "fit"]) == 0
    mine, theirs = (load_file(folder / "hydra" / "head" / "model.safetensors") for folder in (out, done))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_log_without_steps_has_no_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text("")
    with pytest.raises(ConfigError, match="holds no step yet"):
        draw(log, "x")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match="curves need matplotlib"):
        draw(log, "x")


def test_the_report_says_what_a_run_takes(
    target: str, prompts: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command("eagle3", target, prompts, tmp_path), "--dry-run"]) == 0
    before = capsys.readouterr().err
    assert "texts: about 40" in before
    assert "draft vocabulary" not in before
    assert not (tmp_path / "answers.jsonl").exists()
    assert run([*command("eagle3", target, prompts, done), "--dry-run"]) == 0
    after = capsys.readouterr().err
    assert "texts: 40, " in after
    assert "over layers [0, 1]" in after
    assert "disk: 0.0 GiB of" in after


def test_a_vocabulary_that_misses_too_much_is_refused(
    target: str, prompts: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command("eagle3", target, prompts, done), "--draft-vocab", "3", "--dry-run"]) == 2
    assert "--draft-vocab 3 covers" in capsys.readouterr().err


def test_a_folder_of_other_answers_is_refused(
    target: str, prompts: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"prompt": "in the"}) + "\n")
    assert run([*command("eagle3", target, other, done), "--stage", "regenerate"]) == 2
    assert "holds answers with prompts=" in capsys.readouterr().err
    assert run([*command("eagle3", target, prompts, done), "--max-tokens", "9", "--stage", "regenerate"]) == 2
    assert "holds answers with max_tokens=20, not 9" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--epochs", "3"], "holds a fit with epochs=2, not 3"),
        (["--draft-vocab", "50"], "holds a fit with vocabulary="),
        (["--loss", "lk"], "holds a fit with loss='ce', not 'lk'"),
    ],
)
def test_a_fit_of_other_settings_is_not_gone_on_with(
    option: list[str], message: str, target: str, prompts: Path, done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command("hydra", target, prompts, done), "--stage", "fit"]) == 0
    assert run([*command("hydra", target, prompts, done), "--stage", "fit", *option]) == 2
    assert message in capsys.readouterr().err


def test_texts_are_shown_with_what_is_learnt(
    target: str, prompts: Path, done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command("eagle3", target, prompts, done), "--view", "2"]) == 0
    shown = capsys.readouterr().out
    assert len(set(re.findall(r"the ab \d+ of", shown))) == 2
    assert run([*command("eagle3", target, prompts, tmp_path), "--view", "2"]) == 2
    assert "run --stage regenerate first" in capsys.readouterr().err


def test_what_is_not_known_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["train", "eagle3", "--target", "x", "--prompts", "y", "--out", str(tmp_path)]
    assert run(["train", "medusa9", *base[2:]]) == 2
    assert "head 'medusa9' is not known; choose one of: eagle3, eagle, mtp, medusa, hydra" in capsys.readouterr().err
    assert run([*base, "--stage", "cook"]) == 2
    assert "--stage 'cook' is not known; choose among: regenerate, features, fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "eagle3", "model": "eagle3"}, "is a head for llama-2x32"),
        ({"method": "eagle3", "model": "medusa"}, "is a head for method 'medusa', not 'eagle3'"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(
    models: Models, config: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps({**config, "model": models.head(config["model"])})
    command = ["generate", models.folders["small"], "abc", "--raw", "--threads", "1", "--speculative-config", text]
    assert run(command) == 2
    assert message in capsys.readouterr().err
