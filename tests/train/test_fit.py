"""Features and fit: alignment, an overfitted batch, a run that is resumed bit by bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.tiny import Models, ids
from outrider import SamplingParams
from outrider.errors import ConfigError
from outrider.heads.config import HeadKind
from outrider.target.batch import Span
from outrider.train import batches, vocabulary
from outrider.train.answers import Sample
from outrider.train.entropy import cross_entropy
from outrider.train.features import FeatureStore, extract
from outrider.train.fit import Fit
from outrider.train.objective import LossName, _judge, _Teacher, head_losses
from train.tiny import OPTIONS, prepared


@pytest.fixture(scope="module")
def samples(models: Models) -> list[Sample]:
    llm = models.llm(max_num_seqs=16)
    asked = [ids(9, seed) for seed in range(40)]
    params = [SamplingParams(max_tokens=30, temperature=float(seed % 2), seed=seed) for seed in range(40)]
    outputs = llm.generate(asked, params)
    return [
        Sample([*prompt, *output.outputs[0].token_ids], len(prompt), 0.0)
        for prompt, output in zip(asked, outputs, strict=True)
    ]


def fit(models: Models, samples: list[Sample], folder: Path, vocab: int = 80, **changes: Any) -> Fit:
    folder.mkdir(exist_ok=True)
    target = models.llm(max_num_seqs=16)._engine.target
    return prepared(models.folders["target"], target, samples, folder, replace(OPTIONS, **changes), vocab)


def test_features_are_what_the_target_computes(models: Models, samples: list[Sample], tmp_path: Path) -> None:
    target = models.llm(max_num_seqs=16)._engine.target
    store = FeatureStore(tmp_path)
    extract(target, samples, (0, 1), store, lambda done, total: None)
    store.verify()
    reader = FeatureStore(tmp_path).reader()
    assert len(reader) == store.num_texts == len(samples)
    for number in (0, 7, len(samples) - 1):
        text, sample = reader[number], samples[number]
        storage, context = target.new_storage(64, 16), torch.arange(64, dtype=torch.int32)
        output = target.forward([Span(sample.token_ids, context, 0)], storage, (0, 1))
        assert text.tokens.tolist() == list(sample.token_ids)
        assert text.num_prompt_tokens == sample.num_prompt_tokens
        assert output.hidden is not None
        torch.testing.assert_close(text.features.float(), output.hidden, atol=5e-3, rtol=5e-3)
        assert text.best.tolist() == output.logits.argmax(-1).tolist()
        head = target.loaded.model.get_output_embeddings()
        assert head is not None
        torch.testing.assert_close(text.log_sum, output.logits.logsumexp(-1))


def test_a_stopped_extraction_goes_on_and_damage_is_found(
    models: Models, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = models.llm(max_num_seqs=16)._engine.target
    monkeypatch.setattr("outrider.train.features.SHARD", 200)
    whole, cut = FeatureStore(tmp_path / "whole"), FeatureStore(tmp_path / "cut")
    extract(target, samples, (0, 1), whole, lambda done, total: None)
    extract(target, samples[:17], (0, 1), cut, lambda done, total: None)
    again = FeatureStore(tmp_path / "cut")
    extract(target, samples, (0, 1), again, lambda done, total: None)
    assert again.lengths() == whole.lengths()
    assert torch.equal(again.reader()[30].features, whole.reader()[30].features)
    again.verify()
    shard = tmp_path / "cut" / again.facts["shards"][0]["file"]
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    with pytest.raises(ConfigError, match="missing or damaged"):
        again.verify()
    again.describe(target="a")
    with pytest.raises(ConfigError, match="target='a', not 'b'"):
        again.describe(target="b")


def test_rows_of_a_batch_are_aligned(models: Models, samples: list[Sample], tmp_path: Path) -> None:
    store = FeatureStore(tmp_path)
    extract(models.llm(max_num_seqs=16)._engine.target, samples[:3], (0, 1), store, lambda done, total: None)
    reader = store.reader()
    batch = batches.collate(reader, [0, 1, 2], 64)
    for place in range(3):
        text = reader[place]
        count = len(text.tokens) - 1
        assert batch.tokens[place, :count].tolist() == text.tokens[1:].tolist()
        assert torch.equal(batch.features[place, :count], text.features[:-1])
        assert torch.equal(batch.last[place, :count], text.last[1:])
        assert batch.best[place, :count].tolist() == text.best[1:].tolist()
        rows = batch.mask[place].nonzero()[:, 0].tolist()
        assert [row + 2 for row in rows] == list(range(text.num_prompt_tokens, len(text.tokens)))


def test_prompts_can_be_learnt_too(models: Models, samples: list[Sample], tmp_path: Path) -> None:
    run = fit(models, samples[:20], tmp_path, prompts=True)
    indices = run._plan(0)[0]
    batch = batches.collate(run._reader, indices, 64, whole=True)
    for place, index in enumerate(indices):
        count = len(run._reader[index].tokens)
        assert batch.mask[place].nonzero()[:, 0].tolist() == list(range(count - 2))
    answers, all_ = (run._losses(indices, whole).trials[0] for whole in (False, True))
    assert 0 < answers < all_
    assert torch.equal(run._step(indices, 0).trials[0], all_)


def test_every_text_that_teaches_is_in_one_batch_of_its_length() -> None:
    lengths = [5, 100, 37, 8, 90, 41, 12, 64, 7]
    prompts = [2, 9, 3, 3, 90, 3, 3, 3, 3]  # number 4 is all prompt
    plan = batches.plan(lengths, prompts, 100, seed=1, epoch=0)
    assert sorted(index for batch in plan for index in batch) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert all(len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= 100 for batch in plan)
    assert plan == batches.plan(lengths, prompts, 100, seed=1, epoch=0)
    assert plan != batches.plan(lengths, prompts, 100, seed=1, epoch=1)


def test_one_batch_can_be_learnt_by_heart(models: Models, samples: list[Sample], tmp_path: Path) -> None:
    few = samples[:2]
    options = {"epochs": 500, "rows": 4096, "held_out": 1, "lr": 5e-3, "num_steps": 3}
    run = fit(models, [few[0], *few], tmp_path, vocab=1000, **options)  # all of it
    run._rows = 4.0 * run._rows  # the tiny target's law is flat, and near ties take long to learn
    run.run(lambda line, total: None)
    batch = batches.collate(run._reader, run._plan(0)[0], 64)
    with torch.no_grad():  # in float32, as it drafts
        losses = head_losses(run.head, batch, run._embedding, run._rows, 3)
        missed = head_losses(run.head, batch, run._embedding, run._rows, 3, loss="lk").loss
    assert min(losses.trials) > 10
    assert float(missed) < 0.003  # -log of what the target takes of it, whatever it draws, summed over the steps
    assert min(losses.hits / losses.trials) > 0.95  # features are kept in half precision: near ties may turn


@pytest.mark.parametrize("kind", ["eagle3", "medusa"])
def test_hits_are_those_of_chains_that_are_right_so_far(
    kind: HeadKind, models: Models, samples: list[Sample], tmp_path: Path
) -> None:
    target = models.llm(max_num_seqs=16)._engine.target
    run = prepared(models.folders["target"], target, samples, tmp_path, OPTIONS, kind=kind)
    batch = batches.collate(run._reader, [5, 6, 7], 64, run.head.config.normed)
    with torch.no_grad():
        losses = head_losses(run.head, batch, run._embedding, run._rows, 3)
        embedded = run._embedding[batch.tokens].float()
        steps = list(run.head.unroll(embedded, batch.features.float(), 3))
        drafted = [run.head.target_ids[run.head.logits(hidden, k).argmax(-1)] for k, hidden in enumerate(steps)]
    hits, trials = [0, 0, 0], [0, 0, 0]
    for text, row in batch.mask.nonzero().tolist():
        for step in range(3):
            if row + step >= batch.mask.shape[1] or not batch.mask[text, row + step]:
                break
            trials[step] += 1
            if drafted[step][text, row] != batch.best[text, row + step]:
                break
            hits[step] += 1
    assert losses.trials.tolist() == trials
    assert losses.hits.tolist() == hits


@pytest.mark.parametrize("rows", [7, 300])
def test_rows_in_parts_change_no_gradient(rows: int) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 5, generator=generator).requires_grad_()
    matrix = torch.randn(30, 5, generator=generator).requires_grad_()
    law = torch.randn(rows, 30, generator=generator).softmax(-1)
    weight = torch.rand(rows, generator=generator)
    logits = x @ matrix.T
    slow = -(law * logits.log_softmax(-1)).sum(-1)
    fast, best = cross_entropy(x, matrix, law)
    torch.testing.assert_close(fast, slow)
    assert torch.equal(best, logits.argmax(-1))
    mine, theirs = (torch.autograd.grad((each * weight).sum(), (x, matrix)) for each in (fast, slow))
    torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("loss", ["ce", "lk", "hybrid"])
def test_every_loss_is_least_at_the_targets_law(
    loss: LossName, models: Models, samples: list[Sample], tmp_path: Path
) -> None:
    run = fit(models, samples[:6], tmp_path, vocab=1000, rows=4096, held_out=1)
    batch = batches.collate(run._reader, [1, 2, 3], 64)
    teacher = _Teacher.of(run.head, batch, run._rows)
    law = teacher.law.clone()
    matrix = SimpleNamespace(weight=torch.eye(law.shape[1]))
    head: Any = SimpleNamespace(leave=lambda x: x, vocabulary=lambda step: matrix, logits=lambda x, step: x)

    def value(law: torch.Tensor) -> float:
        return float(_judge(head, law.log(), 0, teacher, loss)[0].mean())

    generator = torch.Generator().manual_seed(1)
    for amount in (0.05, 0.3):
        other = (law.log() + amount * torch.randn(law.shape, generator=generator)).softmax(-1)
        assert value(law) < value(other)
    uniform = torch.full_like(law, 1.0 / law.shape[1])
    assert value(other) < value(uniform)


def test_a_resumed_run_is_bit_equal(
    models: Models, samples: list[Sample], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.train.fit.SAVE", 3)
    whole = fit(models, samples, tmp_path / "whole", epochs=3)
    whole.run(lambda line, total: None)

    class Stopped(Exception):
        pass

    stopped = fit(models, samples, tmp_path / "stopped", epochs=3)
    step = stopped._step
    calls = 0

    def stop(indices: Any, number: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise Stopped
        return step(indices, number)

    monkeypatch.setattr(stopped, "_step", stop)
    with pytest.raises(Stopped):
        stopped.run(lambda line, total: None)
    resumed = fit(models, samples, tmp_path / "stopped", epochs=3)
    resumed.run(lambda line, total: None)
    for name, tensor in whole.head.state_dict().items():
        assert torch.equal(tensor, resumed.head.state_dict()[name]), name


def test_the_draft_vocabulary_is_what_is_written_most() -> None:
    rows = [Sample([9, 9, 5, 5, 7], 2, 0.0), Sample([9, 7, 5, 3], 1, 0.0)]
    chosen = vocabulary.choose(rows, 3, 10, forced=(8,))
    assert chosen.ids.tolist() == [5, 7, 8]
    assert chosen.coverage == pytest.approx(5 / 6)
    assert vocabulary.choose(rows, 20, 10, ()).ids.tolist() == list(range(10))
