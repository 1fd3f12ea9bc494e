"""Online distillation: texts stay the same whatever happens to the head, and the head learns what it drafts for."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.tiny import Models, ids
from outrider import LLM, SamplingParams
from outrider.core.draft import Draft
from outrider.drafters.eagle import EagleDrafter
from outrider.engine import heads
from outrider.errors import ConfigError
from outrider.heads import files
from outrider.heads.base import TargetWeights
from outrider.heads.config import HeadKind
from outrider.heads.decoder import HeadDecoder
from outrider.train.features import Text
from outrider.train.online import Distiller, OnlineOptions, _Trial
from outrider.train.online_worker import complete, grown

QUICK = OnlineOptions(buffer=24, every=12, epochs=2, lr=3e-3, share=1.0, gain=-1.0, trial=30)


def engine(models: Models, kind: HeadKind = "eagle3") -> tuple[LLM, EagleDrafter]:
    llm = models.fresh({"method": kind, "model": f"head:{kind}", "num_speculative_tokens": 3})
    (method,) = llm._engine.drafting.methods.values()
    assert isinstance(method.drafter, EagleDrafter)
    return llm, method.drafter


def changed(llm: LLM, models: Models, kind: HeadKind, noise: float) -> HeadDecoder:
    """A head with ``noise`` on its weights; one of zeros without."""
    head = files.load(Path(models.head(kind)))
    for parameter in head.parameters():
        parameter.data = parameter.data + noise * torch.randn(parameter.shape) if noise else 0.0 * parameter.data
    packed = heads.pack(llm._engine.target, head, "float32")
    assert isinstance(packed, HeadDecoder)
    return packed


def answers(llm: LLM, seeds: range, temperature: float = 0.0) -> list[list[int]]:
    params = [SamplingParams(max_tokens=24, temperature=temperature, seed=seed) for seed in seeds]
    return [output.outputs[0].token_ids for output in llm.generate([ids(9, seed) for seed in seeds], params)]


@pytest.mark.parametrize("kind", ["eagle3", "mtp"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_swapping_heads_at_any_step_changes_no_text(kind: HeadKind, temperature: float, models: Models) -> None:
    llm, drafter = engine(models, kind)
    assert isinstance(drafter.head, HeadDecoder)
    packed = [drafter.head, changed(llm, models, kind, 0.1)]
    rng, swaps = random.Random(1), 0

    def swap(draft: Draft, emitted: Any) -> None:
        nonlocal swaps
        if rng.random() < 0.4:
            swaps += 1
            drafter.swap(rng.choice(packed))

    llm._engine.planner.watchers.append(swap)
    found = answers(llm, range(8), temperature)
    assert swaps > 20
    assert found == answers(models.llm(max_num_seqs=16), range(8), temperature)


def test_a_swapped_head_drafts_as_if_it_had_always_been_there(models: Models) -> None:
    drafted: dict[str, list[list[int]]] = {"always": [], "late": []}
    for name, steps in drafted.items():
        llm, drafter = engine(models)
        right = drafter.head
        if name == "late":
            drafter.swap(changed(llm, models, "eagle3", 0.0))

        def watch(draft: Draft, emitted: Any, steps: Any = steps, drafter: Any = drafter, right: Any = right) -> None:
            steps.append([len(emitted), *draft.tokens])
            if len(steps) == 3:
                drafter.swap(right)

        llm._engine.planner.watchers.append(watch)
        answers(llm, range(1))
    ends = [steps[-3:] for steps in drafted.values()]
    assert ends[0] == ends[1]
    assert drafted["always"][0] != drafted["late"][0]


def test_a_head_is_trained_on_what_was_served_and_taken(models: Models, tmp_path: Path) -> None:
    llm, drafter = engine(models)
    plain = models.llm(max_num_seqs=16)
    patient = replace(QUICK, trial=400)  # more steps than one round of answers has: what is taken stays for a while
    with Distiller(llm, tmp_path, patient) as distiller:
        before, seed, deadline = drafter.head, 0, time.monotonic() + 600

        def serve_until(*names: str) -> None:
            nonlocal seed
            while not any(event["event"] in names for event in distiller.events):
                assert time.monotonic() < deadline, distiller.events
                assert answers(llm, range(seed, seed + 4)) == answers(plain, range(seed, seed + 4))
                seed += 4

        serve_until("taken", "failed")
        first, second = [event for event in distiller.events if event["event"] != "drift"][:2]
        assert (first["event"], second["event"]) == ("training", "taken"), (tmp_path / "round-1/log.txt").read_text()
        row = torch.ones(1, files.load(Path(models.head("eagle3"))).fc.in_features)
        assert isinstance(before, HeadDecoder)
        assert isinstance(drafter.head, HeadDecoder)
        assert not torch.equal(drafter.head._fc(row), before._fc(row))
        serve_until("kept", "rolled back")
        assert len(distiller._buffer) <= QUICK.buffer
    assert drafter._collector is None
    assert answers(llm, range(3)) == answers(plain, range(3))


def test_a_head_that_is_worse_on_live_traffic_is_given_back(models: Models, tmp_path: Path) -> None:
    llm, drafter = engine(models)
    with Distiller(llm, tmp_path, QUICK) as distiller:
        good = drafter.head
        distiller._new = -1000  # no training meanwhile
        answers(llm, range(8))
        assert distiller.accepted > 0.05
        assert isinstance(good, HeadDecoder)
        distiller._trial = _Trial(good, distiller._head_folder, distiller.accepted)
        distiller._swap(changed(llm, models, "eagle3", 0.0), tmp_path / "bad")
        answers(llm, range(8, 24))
        assert distiller.events[-1]["event"] == "rolled back"
        assert drafter.head is good


def test_what_serving_does_not_compute_is_added() -> None:
    generator = torch.Generator().manual_seed(1)
    head, last = torch.randn(50, 8, generator=generator), torch.randn(700, 8, generator=generator).half()
    zeros = torch.zeros(700)
    text = Text(zeros.int(), last, last, zeros, zeros.int(), 3)
    found = complete(text, TargetWeights(head, head, torch.ones(8), None, None, frozenset()))
    logits = last.float() @ head.T
    torch.testing.assert_close(found.log_sum, logits.logsumexp(-1))
    assert found.best.tolist() == logits.argmax(-1).tolist()
    assert found.num_prompt_tokens == 3


def test_tokens_that_traffic_has_often_get_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.train.online_worker._GROWTH", 2)
    none = torch.empty(0)
    tokens = torch.tensor([9, 9, 9, 9, 1, 7, 7, 7, 5, 5, 5, 5, 3, 3, 2, 8, 8, 8])
    text = Text(tokens, none, none, none, none, num_prompt_tokens=4)
    assert grown(torch.tensor([1, 2]), [text]).tolist() == [1, 2, 5, 7]  # 9 is the prompt's, 3 seldom, 8 one too many


def test_an_engine_without_such_a_head_is_refused(models: Models, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a recurrent head as a method of its own"):
        Distiller(models.llm({"method": "ngram", "prompt_lookup_min": 1}), tmp_path)
