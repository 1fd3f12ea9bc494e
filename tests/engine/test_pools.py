"""Token recycling, lookahead and Ouroboros in an engine: what they learn from rows equals the target's own words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from engine.tiny import CHEAP, VARIANTS, Fixed, Models, idle, ids, same
from outrider import LLM, SamplingParams
from outrider.core.draft import Draft
from outrider.drafters.base import Committed, DraftSequence
from outrider.drafters.ouroboros import Ouroboros
from outrider.target.costs import CostCurve

PROMPT = ids(60, seed=4, period=9)
PARAMS = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def logits(models: Models) -> Any:
    """``tokens -> logits`` [tokens, vocab], by transformers' own forward."""
    net = LlamaForCausalLM.from_pretrained(models.folders["target"], dtype=torch.float32).eval()

    def run(tokens: list[int]) -> Tensor:
        with torch.inference_mode():
            return net(torch.tensor([tokens])).logits[0]

    return run


def record(llm: LLM) -> list[tuple[list[int], Committed]]:
    """What the only drafter of ``llm`` observes: the text before each step, and the step."""
    (method,) = llm._engine.drafting.methods.values()
    seen: list[tuple[list[int], Committed]] = []
    observe = method.drafter.observe

    def watch(seq: DraftSequence, committed: Committed) -> None:
        seen.append((list(seq.token_ids[: -len(committed.token_ids)]), committed))
        observe(seq, committed)

    method.drafter.observe = watch  # type: ignore[method-assign]
    return seen


def test_a_probe_row_sees_the_text_and_its_own_ancestors(models: Models, logits: Any) -> None:
    llm = models.fresh({**VARIANTS["lookahead"], "lookahead_window": 3, "num_speculative_tokens": 6})
    seen = record(llm)
    same(llm.generate(PROMPT, PARAMS)[0].outputs[0], models.plain(PROMPT, PARAMS).outputs[0])
    checked = 0
    for text, committed in seen[:12]:
        draft, top = committed.draft, committed.row_top
        assert draft is not None
        assert draft.probes is not None
        assert top is not None
        probes = Draft(draft.probes.tokens, draft.probes.parents)
        for node in range(len(probes)):
            level, column = divmod(node, 3)
            path = [*range(column + 1), *(3 * i + column for i in range(1, level + 1))]
            want = logits(text + [probes.tokens[n] for n in path])[-1]
            assert top[1 + len(draft) + node].tolist() == [int(want.argmax())]
            checked += 1
    assert checked > 60
    idle(llm)


def test_rows_of_the_matrix_are_the_targets_best_ids(models: Models, logits: Any) -> None:
    llm = models.fresh({**VARIANTS["token_recycling"], "token_recycling_topk": 4, "num_speculative_tokens": 8})
    seen = record(llm)
    same(llm.generate(PROMPT, PARAMS)[0].outputs[0], models.plain(PROMPT, PARAMS).outputs[0])
    matrix = llm._engine.drafting.methods["token_recycling"].drafter.matrices.get("")  # type: ignore[attr-defined]
    drafted = 0
    for text, committed in seen[-3:]:
        assert committed.draft is not None
        assert committed.row_top is not None
        for row in range(1 + len(committed.draft)):
            path = [committed.draft.tokens[n] for n in committed.draft.path(row - 1)]
            assert committed.row_top[row].tolist() == logits(text + path)[-1].topk(4).indices.tolist()
        drafted += len(committed.draft)
    assert drafted
    text, committed = seen[-1]
    root = text[-1]
    assert committed.row_top is not None
    assert matrix.following(root)[0] == committed.row_top[0].tolist()


def test_probes_are_left_out_where_rows_are_dear(models: Models) -> None:
    llm = models.fresh({"method": "lookahead", "lookahead_pool_from_prompt": False}, enable_prefix_caching=False)
    llm._engine.planner.curve = CostCurve((1, 64), (0.01, 0.64))
    same(llm.generate(PROMPT, PARAMS)[0].outputs[0], models.plain(PROMPT, PARAMS).outputs[0])
    assert llm._engine.num_rows <= 1.02 * (len(PROMPT) + 39)


class Counted:
    """A forward that counts its calls."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run, self.calls = run, 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self.run(*arguments)


def ouroboros(models: Models, **options: Any) -> tuple[LLM, Ouroboros]:
    llm = models.fresh({**VARIANTS["ouroboros"], "num_speculative_tokens": 6, **options})
    drafter = llm._engine.drafting.methods["ouroboros"].drafter
    assert isinstance(drafter, Ouroboros)
    return llm, drafter


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_phrases_save_forwards_and_leave_the_chain_as_it_was(models: Models, temperature: float) -> None:
    params = PARAMS.model_copy(update={"temperature": temperature, "seed": 3})
    chains: list[list[list[int]]] = []
    forwards = []
    for tried in (True, False):
        llm, drafter = ouroboros(models)
        drafter._curve = Fixed(CostCurve((1, 64), (1.0, 1.001 if tried else 64.0)))
        seen = record(llm)
        counted = Counted(drafter.model.forward)
        drafter.model.forward = counted  # type: ignore[method-assign]
        for _ in range(2):  # the second time the pool knows the answer
            same(llm.generate(PROMPT, params)[0].outputs[0], models.plain(PROMPT, params).outputs[0])
        del drafter.model.forward  # type: ignore[method-assign]
        forwards.append(counted.calls)
        drafts = [committed.draft for _, committed in seen if committed.draft is not None]
        chains.append(
            [[draft.tokens[n] for n in range(len(draft)) if draft.source_of(n) == "ouroboros"] for draft in drafts]
        )
        idle(llm)
    assert forwards[0] < forwards[1]
    assert chains[0] == chains[1]


def test_branches_hang_below_the_last_token_of_the_chain(models: Models) -> None:
    llm, drafter = ouroboros(models, ouroboros_phrases=2, ouroboros_ngram=4)
    seen = record(llm)
    for _ in range(2):
        llm.generate(PROMPT, PARAMS)
    branched = 0
    for _, committed in seen:
        draft = committed.draft
        assert draft is not None
        chain = sum(draft.source_of(node) == "ouroboros" for node in range(len(draft)))
        assert chain <= 6
        assert all(draft.parent(node) == node - 1 for node in range(chain))
        assert all(draft.parent(node) >= chain - 1 for node in range(chain, len(draft)))
        assert len(draft) - chain <= drafter.extra_tokens == 6
        branched += len(draft) > chain
    assert branched > 5


def test_rejected_rows_correct_the_pool(models: Models, logits: Any) -> None:
    llm, drafter = ouroboros(models, ouroboros_ngram=3, model="long draft")
    seen = record(llm)
    llm.generate(PROMPT, PARAMS)
    pool, checked = drafter.pools.get(""), 0
    assert pool is not None
    for text, committed in seen:
        draft, rejected = committed.draft, committed.num_accepted
        if draft is None or sum(draft.source_of(n) == "ouroboros" for n in range(len(draft))) < rejected + 2:
            continue
        rows = logits([*text, *draft.tokens[: rejected + 2]])[-2:]
        phrase = tuple(int(row.argmax()) for row in rows)
        kept = [each for each, _ in pool.after(draft.tokens[rejected])]
        assert phrase in kept or len(kept) == 8
        checked += 1
    assert checked


def test_a_pool_outlives_its_request_within_its_salt_if_it_may(models: Models) -> None:
    for keep in (True, False):
        llm, drafter = ouroboros(models, ouroboros_keep_pool=keep)
        llm.generate({"prompt_token_ids": PROMPT, "cache_salt": "a"}, PARAMS)
        kept = drafter.pools.get("a")
        assert (kept is not None and len(kept) > 0) == keep
        assert drafter.pools.get("b") is None
        assert not drafter._own
        idle(llm)


def test_a_draft_model_of_a_short_context_stops_in_time(models: Models) -> None:
    llm, drafter = ouroboros(models)
    drafter._curve = Fixed(CHEAP)
    prompt = ids(110, seed=8, period=11)
    same(llm.generate(prompt, PARAMS)[0].outputs[0], models.plain(prompt, PARAMS).outputs[0])
    idle(llm)
