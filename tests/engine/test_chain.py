"""A greedy chain of EAGLE-3 that the kernels draft in one call, against the same level by level."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.tiny import Models, idle, ids, same
from outrider import SamplingParams, native
from outrider.core.draft import Draft
from outrider.drafters.base import DraftNoise, DraftSequence
from outrider.drafters.eagle import EagleDrafter
from outrider.heads import files

pytestmark = pytest.mark.skipif(native.library() is None, reason="there is no compiler")

CONFIGS: list[dict[str, Any]] = [
    {"num_speculative_tokens": 6},
    {},
    {"num_speculative_tokens": 8, "draft_confidence_threshold": 0.1},
    {"num_speculative_tokens": 8, "draft_stop_rejection": 0.98},
]


def compare(llm: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on every proposal is made both ways and must be equal; the levels that were drafted in one call."""
    propose, run_on, lengths = EagleDrafter.propose, EagleDrafter._run_on, []

    def both(
        self: EagleDrafter, seqs: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise
    ) -> list[Draft]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EagleDrafter, "_run_on", lambda *_: 0)
            slow = propose(self, seqs, budgets, noise)
        fast = propose(self, seqs, budgets, noise)
        for one, other in zip(slow, fast, strict=True):
            assert one.tokens == other.tokens
            assert one.parents == other.parents
            assert one.scores == pytest.approx(other.scores, abs=1e-4)
        return fast

    def counted(self: EagleDrafter, *args: Any) -> int:
        lengths.append(run_on(self, *args))
        return lengths[-1]

    monkeypatch.setattr(EagleDrafter, "propose", both)
    monkeypatch.setattr(EagleDrafter, "_run_on", counted)
    return lengths


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("config", CONFIGS, ids=["K=6", "automatic", "confidence", "rejection"])
def test_both_ways_draft_the_same(
    models: Models, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], dtype: str
) -> None:
    llm = models.fresh({"method": "eagle3", "model": "head:eagle3", **config}, dtype=dtype)
    lengths = compare(llm, monkeypatch)
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    for seed in range(3):
        llm.generate(ids(20, seed=seed), params)
    assert max(lengths, default=0) > 1
    idle(llm)


@pytest.mark.parametrize("changes", [{"norm_output": True}, {"norm_before_residual": True}], ids=str)
def test_heads_that_hand_down_otherwise(
    models: Models, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, bool]
) -> None:
    head = files.load(Path(models.head("eagle3")))
    head.config = head.config.model_copy(update=changes)
    files.save(head, tmp_path)
    monkeypatch.setitem(models.folders, "changed", str(tmp_path))
    llm = models.fresh({"method": "eagle3", "model": "changed", "num_speculative_tokens": 6})
    lengths = compare(llm, monkeypatch)
    llm.generate(ids(20), SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True))
    assert max(lengths) == 5


def test_sampled_drafts_trees_and_batches_go_level_by_level(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = SamplingParams(max_tokens=12, temperature=0.0)
    for config, params, count in (
        ({"num_speculative_tokens": 6}, greedy.model_copy(update={"temperature": 1.0, "seed": 3}), 1),
        ({"tree": [3, 2, 1]}, greedy, 1),
        ({"num_speculative_tokens": 6}, greedy, 3),
        ({"num_speculative_tokens": 6}, greedy.model_copy(update={"repetition_penalty": 1.2}), 1),
    ):
        llm = models.fresh({"method": "eagle3", "model": "head:eagle3", **config})
        lengths = compare(llm, monkeypatch)
        prompts = [ids(20, seed=seed) for seed in range(count)]
        for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True):
            same(output.outputs[0], models.plain(prompt, params).outputs[0])
        assert count > 1 or sum(lengths) == 0  # of a batch one may be left alone
        monkeypatch.undo()


def test_a_damaged_chain_is_an_error_of_the_drafter(models: Models) -> None:
    llm = models.fresh({"method": "eagle3", "model": "head:eagle3", "num_speculative_tokens": 6}, strict=False)
    (method,) = llm._engine.drafting.methods.values()
    links = method.drafter._links
    bad = torch.full_like(links.hidden_norm, torch.nan)
    method.drafter._links = dataclasses.replace(links, hidden_norm=bad)
    params = SamplingParams(max_tokens=12, temperature=0.0)
    output = llm.generate(ids(20), params)[0]
    same(output.outputs[0], models.plain(ids(20), params).outputs[0])
    assert "NaN" in " ".join(output.speculation)
    idle(llm)
