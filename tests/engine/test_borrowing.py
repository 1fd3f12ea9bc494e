"""The target's cache borrows what a draft model's leaves idle: more plain requests at a time, the same texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from engine.tiny import Models, ids, same
from outrider import SamplingParams, SpeculationParams
from outrider.cache.pages import can_give_back

DRAFT = {"method": "draft_model", "model": "draft", "num_speculative_tokens": 3}
PROMPTS = [ids(20, seed=seed) for seed in range(6)]
OWN = 128  # tokens: eight blocks, and every answer takes two
TOKENS = 12


class Watch:
    """A meter: the most sequences and blocks in a step, and the bytes beside the budget."""

    def __init__(self, llm: Any) -> None:
        self._pool = llm._engine.scheduler.pool
        self.sequences = self.blocks = 0
        self.usage = 0.0

    def step(self, work: Sequence[Any], times: Any) -> None:
        self.sequences = max(self.sequences, len(work))
        self.blocks = max(self.blocks, self._pool.num_held)
        self.usage = max(self.usage, self._pool.budget.usage)


@pytest.mark.skipif(not can_give_back(torch.device("cpu")), reason="pages cannot be given back here")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_plain_requests_borrow_and_those_that_draft_do_not(models: Models, temperature: float) -> None:
    llm = models.fresh(DRAFT, kv_cache_tokens=OWN, max_num_seqs=8, enable_prefix_caching=False)
    assert llm.describe()["kv_cache_tokens"] == OWN
    base = SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=3, ignore_eos=True)
    seen = {}
    for enabled in (False, True, False):
        params = base.model_copy(update={"speculation": SpeculationParams(enabled=enabled)})
        watch = seen[enabled] = Watch(llm)
        llm.meter(watch)
        for prompt, answer in zip(PROMPTS, llm.generate(PROMPTS, params), strict=True):
            same(answer.outputs[0], models.plain(prompt, base).outputs[0])
        load = llm.load()
        assert load.cache_usage == 0
        assert all(pool.num_used == 0 for pool in load.pools.values())
    assert (seen[False].sequences, seen[False].blocks) == (6, 12)
    assert seen[True].sequences == 3
    assert max(watch.usage for watch in seen.values()) <= 1
