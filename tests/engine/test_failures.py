"""Aborts, failing targets and failing drafters: nothing is held afterwards, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.fakes import Scripted, drafting_with
from engine.tiny import VARIANTS, Models, idle, ids, same
from outrider import LLM, SamplingParams, SpeculationParams
from outrider.core.draft import Draft, Iid, Probes
from outrider.drafters.base import DraftSequence
from outrider.errors import ContractError, NumericsError, RequestError
from outrider.target.model import TargetOutput

PROMPT = ids(20, seed=2)
SYNTHETIC = VARIANTS["synthetic"] | {"num_speculative_tokens": 4}


def predicted(models: Models, prompt: list[int] = PROMPT, **changes: Any) -> SamplingParams:
    """Parameters whose prediction is the plain answer."""
    params = SamplingParams(**{"max_tokens": 20, "temperature": 1.0, "seed": 1, "ignore_eos": True, **changes})
    return params.model_copy(update={"prediction": models.plain(prompt, params).outputs[0].token_ids})


# ---- abort


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_an_abandoned_stream_frees_everything(models: Models, variant: str, steps: int) -> None:
    llm = models.llm(VARIANTS[variant] | {"num_speculative_tokens": 3})
    stream = llm.stream(PROMPT, predicted(models))
    for _ in range(steps):
        next(stream)
    stream.close()  # type: ignore[attr-defined]
    idle(llm)
    if steps:
        assert llm.last_output is not None
        assert llm.last_output.outputs[0].finish_reason == "abort"


def test_a_stream_goes_on_while_others_are_answered(models: Models) -> None:
    llm = models.llm(SYNTHETIC)
    params = predicted(models)
    want = models.plain(PROMPT, params).outputs[0]
    stream = llm.stream(PROMPT, params)
    chunks = [next(stream)]
    other = ids(33)
    same(llm.generate(other, params)[0].outputs[0], models.plain(other, params).outputs[0])
    chunks += stream
    assert "".join(chunk.text for chunk in chunks) == want.text
    assert [token for chunk in chunks for token in chunk.token_ids] == want.token_ids
    idle(llm)


def test_one_of_many_can_be_aborted_while_it_waits_or_runs(models: Models) -> None:
    llm = models.llm(VARIANTS["draft_model"], max_num_seqs=2)
    params = SamplingParams(max_tokens=12, temperature=0.0)
    requests = [llm._factory.request(f"{n}", ids(10 + n), params) for n in range(4)]
    for request in requests:
        request.start()
    for _ in range(3):
        llm._engine.step()
    requests[0].abort()
    requests[3].abort()
    while llm._engine.has_work:
        llm._engine.step()
    idle(llm)
    for request in (requests[1], requests[2]):
        same(request.output().outputs[0], models.plain(request.prompt_token_ids, params).outputs[0])
    assert requests[0].sequences[0].finish_reason == requests[3].sequences[0].finish_reason == "abort"
    assert 0 < len(requests[0].sequences[0].output_ids) < 12
    assert not requests[3].sequences[0].output_ids


# ---- the target fails


def poison(llm: LLM, seq_rows: Callable[[list[Any]], list[int]], times: int = 1 << 30) -> Any:
    """Let the target's forward put NaN into the logits (and the KV) of spans that ``seq_rows`` chooses."""
    target = llm._engine.target
    forward = type(target).forward
    left = [times]

    def broken(spans: Any, storage: Any, layers: Any = ()) -> TargetOutput:
        output = forward(target, spans, storage, layers)
        chosen = seq_rows(spans)
        if chosen and left[0] > 0:
            left[0] -= 1
            for index in chosen:
                span = spans[index]
                slots = span.context[span.start : span.start + len(span.tokens)].long()
                storage.write(slice(None), slots, torch.nan, torch.nan)
            raise NumericsError("raw logits hold NaN")
        return output

    target.forward = broken  # type: ignore[method-assign]
    return target


@pytest.mark.parametrize("variant", ["ngram", "draft_model"])
@pytest.mark.parametrize("grown", [0, 5])
def test_nan_in_one_sequence_fails_that_one_only(models: Models, variant: str, grown: int) -> None:
    llm = models.fresh(VARIANTS[variant], kv_cache_tokens=512)
    asked = [ids(18, seed=7), PROMPT, ids(35, seed=8)]
    params = SamplingParams(max_tokens=14, temperature=1.0, seed=3, logprobs=1, ignore_eos=True)
    target = poison(llm, _second(grown))
    try:
        with pytest.raises(NumericsError, match="request 1: raw logits hold NaN") as caught:
            llm.generate(asked, params)
    finally:
        del target.forward
    outputs: Any = caught.value.outputs
    for index in (0, 2):
        same(outputs[index].outputs[0], models.plain(asked[index], params).outputs[0])
    assert outputs[1].error == "raw logits hold NaN"
    assert outputs[1].outputs[0].finish_reason == "error"
    idle(llm)
    pool, storage = llm._engine.scheduler.pool, llm._engine.scheduler.storage
    assert not storage.keys.isfinite().all()
    assert not storage.values.isfinite().all()
    pool.free(pool.allocate(pool.num_blocks))
    assert storage.keys.isfinite().all()  # dirty blocks are zeroed before they are used again
    assert storage.values.isfinite().all()
    for prompt, output in zip(asked, llm.generate(asked, params), strict=True):
        same(output.outputs[0], models.plain(prompt, params).outputs[0])


def _second(grown: int) -> Callable[[list[Any]], list[int]]:
    """Chooses the sequence that began with ``PROMPT`` once it is ``grown`` tokens longer; known by its first slot."""
    slots: list[int] = []

    def chosen(spans: list[Any]) -> list[int]:
        slots.extend(int(span.context[0]) for span in spans if list(span.tokens) == PROMPT)
        return [
            index
            for index, span in enumerate(spans)
            if int(span.context[0]) in slots and span.start + len(span.tokens) >= len(PROMPT) + grown
        ]

    return chosen


def test_nan_in_drafted_rows_only_costs_the_draft(models: Models) -> None:
    llm = models.fresh(SYNTHETIC)
    params = predicted(models)
    target = poison(llm, lambda spans: [index for index, span in enumerate(spans) if len(span.tokens) in (2, 3, 4, 5)])
    try:
        output = llm.generate(PROMPT, params)[0]
    finally:
        del target.forward
    same(output.outputs[0], models.plain(PROMPT, params).outputs[0])
    assert output.stats.num_draft_tokens == 0
    idle(llm)


def test_any_other_error_of_the_target_frees_everything(models: Models) -> None:
    llm = models.fresh(SYNTHETIC)
    target = llm._engine.target
    forward, count = type(target).forward, [0]

    def broken(*args: Any) -> TargetOutput:
        count[0] += 1
        if count[0] == 3:
            raise RuntimeError("out of memory")
        return forward(target, *args)

    target.forward = broken  # type: ignore[method-assign]
    params = predicted(models)
    with pytest.raises(RuntimeError, match="out of memory"):
        llm.generate([PROMPT, ids(40)], params)
    idle(llm)
    count[0] = 0
    with pytest.raises(RuntimeError, match="out of memory"):
        list(llm.stream(PROMPT, params))
    idle(llm)
    same(llm.generate(PROMPT, params)[0].outputs[0], models.plain(PROMPT, params).outputs[0])


def test_a_law_without_tokens_fails_its_request_only(models: Models) -> None:
    llm = models.llm(VARIANTS["ngram"])
    good = SamplingParams(max_tokens=8, temperature=0.0)
    bad = SamplingParams(max_tokens=8, temperature=0.0, allowed_token_ids=[1], min_tokens=4)
    with pytest.raises(NumericsError, match=r"request \d+: every token is masked: loosen") as caught:
        llm.generate([PROMPT, PROMPT], [bad, good])
    same(caught.value.outputs[1].outputs[0], models.plain(PROMPT, good).outputs[0])  # type: ignore[attr-defined]
    idle(llm)


def test_a_text_that_outgrows_the_cache_ends_there(models: Models) -> None:
    llm = models.fresh(VARIANTS["ngram"], kv_cache_tokens=64)
    params = SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True)
    answer = llm.generate(PROMPT, params)[0].outputs[0]
    assert answer.finish_reason == "length"
    assert len(answer.token_ids) == 64 - len(PROMPT)
    idle(llm)
    with pytest.raises(RequestError, match="kv_cache_tokens"):
        llm.generate(ids(64), params)


# ---- the drafter fails


def boom(seq: DraftSequence) -> None:
    raise ZeroDivisionError("a fault")


def junk(**changes: Any) -> Callable[[DraftSequence, Draft], Any]:
    return lambda seq, draft: Draft(**{"tokens": draft.tokens, "source": "synthetic", **changes})


FAULTS: dict[str, dict[str, Any]] = {
    **{hook: {"faults": {hook: boom}} for hook in ("begin", "propose", "observe", "release")},
    "over budget": {"twist": junk(tokens=[5] * 9)},
    "id too large": {"twist": junk(tokens=[5, 10_000])},
    "id below zero": {"twist": junk(tokens=[-1])},
    "no integer": {"twist": junk(tokens=[5.5])},
    "no number": {"twist": junk(tokens=["the"])},
    "parent behind": {"twist": junk(tokens=[5, 6], parents=[1, -1])},
    "parent of its own": {"twist": junk(tokens=[5], parents=[0])},
    "parents missing": {"twist": junk(tokens=[5, 6], parents=[-1])},
    "scores missing": {"twist": junk(tokens=[5, 6], scores=[0.5])},
    "no draft": {"twist": lambda seq, draft: None},
    "bad probe": {"twist": junk(probes=Probes([10_000], [-1]))},
    "bad probe parent": {"twist": junk(probes=Probes([5], [3]))},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_drafter_is_switched_off_for_its_request(models: Models, fault: str) -> None:
    llm = models.llm(SYNTHETIC)
    drafter = Scripted(**FAULTS[fault])
    params = predicted(models, logprobs=2)
    want = models.plain(PROMPT, params).outputs[0]
    with drafting_with(llm, drafter):
        output = llm.generate(PROMPT, params)[0]
    same(output.outputs[0], want)
    idle(llm)
    if fault == "release":  # it comes last: speculation had worked until then
        assert output.stats.num_accepted_draft_tokens > 0
    else:
        assert drafter.calls.count(fault) <= 1
    assert [reason for reason in output.speculation if reason.startswith("speculation off: drafter synthetic failed")]
    assert not drafter.known


@pytest.mark.parametrize("fault", FAULTS)
def test_a_strict_engine_raises(models: Models, fault: str) -> None:
    llm = models.llm(SYNTHETIC)
    params = predicted(models)
    drafter = Scripted(**FAULTS[fault])
    with drafting_with(llm, drafter, strict=True), pytest.raises(ContractError):
        llm.generate([PROMPT, ids(30)], params)
    idle(llm)
    assert not drafter.known
    with drafting_with(llm, drafter, strict=True), pytest.raises(ContractError):
        list(llm.stream(PROMPT, params))
    idle(llm)
    same(llm.generate(PROMPT, params)[0].outputs[0], models.plain(PROMPT, params).outputs[0])


def test_a_strict_engine_lets_go_of_what_ends_with_the_fault(models: Models) -> None:
    llm = models.llm(SYNTHETIC)
    params = predicted(models)

    def at_the_end(seq: DraftSequence) -> None:
        if len(seq.token_ids) == len(PROMPT) + 20:
            raise ValueError("a fault")

    with drafting_with(llm, Scripted({"observe": at_the_end}), strict=True), pytest.raises(ContractError):
        llm.generate(PROMPT, params)
    idle(llm)


def test_a_fault_in_one_sequence_leaves_its_neighbours_their_drafter(models: Models) -> None:
    llm = models.llm(SYNTHETIC)
    asked = [PROMPT, ids(30), ids(31, seed=4)]
    params = [predicted(models, prompt) for prompt in asked]

    def second_only(seq: DraftSequence) -> None:
        if list(seq.token_ids[:30]) == asked[1]:
            raise ValueError("a fault")

    with drafting_with(llm, Scripted({"propose": second_only})):
        outputs = llm.generate(asked, params)
    for prompt, each, output in zip(asked, params, outputs, strict=True):
        same(output.outputs[0], models.plain(prompt, each).outputs[0])
    assert [output.stats.num_draft_tokens > 0 for output in outputs] == [True, False, True]
    assert [bool(output.speculation) for output in outputs] == [False, True, False]
    idle(llm)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_law_that_is_none_switches_the_drafter_off(models: Models, rule: str) -> None:
    llm = models.llm(SYNTHETIC | {"verifier": rule})
    zero = torch.zeros(llm._engine.target.vocab_size, dtype=torch.float64)
    params = predicted(models, temperature=0.0)
    for q in (zero, zero[:5] + 0.2):
        twist = (
            junk(laws=None)
            if q is None
            else lambda seq, draft, q=q: Draft(draft.tokens, laws=[Iid(q)] * len(draft.tokens), source="synthetic")
        )
        with drafting_with(llm, Scripted(twist=twist)):
            output = llm.generate(PROMPT, params)[0]
        same(output.outputs[0], models.plain(PROMPT, params).outputs[0])
        assert "drafter synthetic failed" in output.speculation[0]
        idle(llm)


@pytest.mark.parametrize("variant", ["draft_model", "hierarchical of 3"])
def test_a_draft_model_that_turns_to_nan_is_switched_off(models: Models, variant: str) -> None:
    llm = models.fresh(VARIANTS[variant], strict=False)
    drafter: Any = next(iter(llm._engine.drafting.methods.values())).drafter
    target = drafter.model if variant == "draft_model" else drafter.inner.engine.target
    target.forward = lambda *args: (_ for _ in ()).throw(NumericsError("raw logits hold NaN"))
    params = predicted(models)
    output = llm.generate(PROMPT, params)[0]
    same(output.outputs[0], models.plain(PROMPT, params).outputs[0])
    assert "failed (NumericsError" in output.speculation[0]
    assert drafter.pool._dirty
    idle(llm)
    del target.forward
    assert llm.generate(PROMPT, params)[0].stats.num_accepted_draft_tokens > 0


@pytest.mark.parametrize("variant", ["draft_model", "hierarchical", "hierarchical of 3"])
def test_a_draft_model_without_room_makes_plain_steps(models: Models, variant: str) -> None:
    llm = models.fresh(VARIANTS[variant] | {"num_speculative_tokens": 3})
    drafter: Any = next(iter(llm._engine.drafting.methods.values())).drafter
    held = drafter.pool.allocate(drafter.pool.num_blocks - 1)
    params = predicted(models)
    output = llm.generate(PROMPT, params)[0]
    same(output.outputs[0], models.plain(PROMPT, params).outputs[0])
    assert output.stats.num_draft_tokens == 0
    assert not output.speculation
    drafter.pool.free(held)
    assert llm.generate(PROMPT, params)[0].stats.num_draft_tokens > 0
    idle(llm)


def test_speculation_off_needs_no_drafter(models: Models) -> None:
    llm = models.llm(SYNTHETIC)
    drafter = Scripted()
    params = predicted(models, speculation=SpeculationParams(enabled=False))
    with drafting_with(llm, drafter):
        output = llm.generate(PROMPT, params)[0]
    assert not drafter.calls
    assert output.stats.num_draft_tokens == 0
