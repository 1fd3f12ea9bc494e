"""Several processes against one: the same losses and the same head, but for the order of sums."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.tiny import Models
from outrider.heads.config import KINDS, HeadKind
from outrider.train import batches
from outrider.train.answers import Answered, AnswerFile, Sample
from outrider.train.fit import Fit
from outrider.train.workers import Workers
from processes import python
from train.tiny import OPTIONS, prepared

STEPS = """
import json, sys
from dataclasses import replace
from pathlib import Path
from outrider.train.workers import Workers
from outrider.target.model import load_target
from outrider.train.answers import AnswerFile
from train.tiny import OPTIONS, prepared
model, folder, kind, shard = sys.argv[1:]
workers = Workers.join()
samples = [sample for answered in AnswerFile(Path(folder) / "answers.jsonl") for sample in answered.samples]
options = replace(OPTIONS, epochs=3, rows=200, half=False, lr=1e-3, shard=bool(shard))
target = load_target(model, dtype="float32")
own = Path(folder) / f"{workers.count}-{workers.rank}"
own.mkdir(exist_ok=True)
if (first := own.with_name("2-0") / "checkpoint.safetensors").exists():  # a second run, of all in one folder
    own = first.parent
fit = prepared(model, target, samples, own, options, kind=kind, workers=workers)
fit.run(lambda line, total: None)
workers.leave()
"""


@pytest.fixture(scope="module")
def samples(models: Models) -> list[Sample]:
    return models.samples[:40]


@pytest.mark.parametrize(("kind", "shard"), [("eagle3", ""), ("mtp", ""), ("hydra", ""), ("eagle", "shard")])
def test_two_processes_train_as_one(
    kind: str, shard: str, models: Models, samples: list[Sample], tmp_path: Path
) -> None:
    AnswerFile(tmp_path / "answers.jsonl").append([Answered("a", "t", samples)])
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    arguments = [str(script), models.folders["target"], str(tmp_path), kind, shard]
    for count in (1, 2):
        python(arguments, count)
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        for name in ("1-0", "2-0")
    )
    assert len(one) == len(two) > 3
    for mine, theirs in zip(one, two, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-4)
        assert theirs["acceptance"] == pytest.approx(mine["acceptance"], abs=0.02)
    assert not (tmp_path / "2-1" / "log.jsonl").exists()
    heads = [load_file(tmp_path / name / "checkpoint.safetensors") for name in ("1-0", "2-0")]
    worst = max(
        float((heads[0][name].float() - heads[1][name].float()).abs().max())
        for name in heads[0]
        if name.startswith("head.")
    )
    assert worst < 1e-2
    python(arguments, count=2)  # a run that is done reads its state and writes it again
    for name, tensor in load_file(tmp_path / "2-0" / "checkpoint.safetensors").items():
        assert torch.equal(tensor, heads[1][name]), name


def test_a_process_without_texts_of_its_own_adds_nothing(models: Models, samples: list[Sample], tmp_path: Path) -> None:
    target = models.llm(max_num_seqs=16)._engine.target
    fit = prepared(models.folders["target"], target, samples, tmp_path, OPTIONS)
    fit._workers = _Counted(1, 2)
    losses = fit._losses([7])
    losses.loss.backward()  # type: ignore[no-untyped-call]
    assert float(losses.loss.detach()) == 0.0
    assert all(not bool(p.grad.abs().any()) for p in fit.head.parameters() if p.grad is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_of_parts_add_up(kind: HeadKind, models: Models, samples: list[Sample], tmp_path: Path) -> None:
    target = models.llm(max_num_seqs=16)._engine.target
    fit = prepared(models.folders["target"], target, samples, tmp_path, replace(OPTIONS, half=False), kind=kind)
    texts = fit._plan(0)[0]
    whole = _gradients(fit, texts, Workers())
    counts = [batches.collate(fit._reader, texts, 64).mask[:, step:].sum() for step in range(OPTIONS.num_steps)]
    parts = []
    for rank in range(2):
        workers = _Counted(rank, 2)
        object.__setattr__(workers, "counts", torch.stack(counts))
        parts.append(_gradients(fit, texts, workers))
    for name, gradient in whole.items():
        together = parts[0][name] + parts[1][name]
        assert float((together - gradient).abs().max()) <= 1e-5 * float(gradient.abs().max()), name


def _gradients(fit: Fit, texts: list[int], workers: Workers) -> dict[str, torch.Tensor]:
    fit.head.zero_grad()
    fit._workers = workers
    fit._losses(texts).loss.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.clone() for name, p in fit.head.named_parameters() if p.grad is not None}


class _Counted(Workers):
    """One of two, the other of which is not there; its sums are ``counts``."""

    __slots__ = ("counts",)

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """What both have."""
        counts = getattr(self, "counts", None)
        for tensor in tensors:
            if counts is not None:
                tensor.copy_(counts)


def test_alone_a_process_is_the_first_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    workers = Workers.join()
    assert (workers.rank, workers.count, workers.first) == (0, 1, True)
    assert workers.share([1, 2, 3]) == [1, 2, 3]
    tensor = torch.ones(2)
    workers.sum([tensor])
    assert tensor.tolist() == [1.0, 1.0]
