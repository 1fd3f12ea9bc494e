"""Steps as they are told: they add up to the answer, and say what was drafted, accepted and rejected."""

from __future__ import annotations

from typing import Any

import pytest

from engine.tiny import VARIANTS, Models, ids
from outrider import SamplingParams
from outrider.config import SpeculationParams
from outrider.core.draft import Draft
from outrider.core.verifiers.base import Walk
from outrider.engine.telling import rejected
from outrider.outputs import CompletionOutput, ToldStep

PROMPT = ids(21, seed=8)
TOLD = SpeculationParams(explain=True)


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 32, "temperature": 1.0, "seed": 6, "speculation": TOLD, **changes})


def steps_of(sample: CompletionOutput) -> list[ToldStep]:
    assert sample.steps is not None
    return sample.steps


@pytest.mark.parametrize("name", ["suffix tree", "draft_model tree", "specinfer"])
@pytest.mark.parametrize("changes", [{}, {"temperature": 0.0, "ignore_eos": True}, {"n": 2}])
def test_steps_add_up_to_the_answer(models: Models, name: str, changes: dict[str, Any]) -> None:
    output = models.llm(VARIANTS[name]).generate(PROMPT, params(**changes))[0]
    told = [step for sample in output.outputs for step in steps_of(sample)]
    for sample in output.outputs:
        tokens = [token for step in steps_of(sample) for token in step.tokens]
        assert [token.token_id for token in tokens] == sample.token_ids
        assert "".join(token.text for token in tokens) == sample.text
        assert [bool(token.source) for token in tokens] == sample.from_draft
        assert [step.prefill for step in steps_of(sample)] == [True] + [False] * (len(steps_of(sample)) - 1)
    stats = output.stats
    assert sum(not step.prefill for step in told) == stats.num_steps
    assert sum(step.num_drafted for step in told) == stats.num_draft_tokens > 0
    decoding = [step for step in told if not step.prefill]
    assert sum(step.draft_seconds for step in decoding) == pytest.approx(stats.draft_seconds)
    assert sum(step.verify_seconds for step in decoding) == pytest.approx(stats.verify_seconds)
    for step in told:
        accepted = sum(bool(token.source) for token in step.tokens)
        assert accepted + len(step.rejected) <= step.num_drafted
        if step.rejected:  # the target's own token stands where the draft's first rejected one would have
            assert step.rejected[0].token_id != step.tokens[-1].token_id
            assert len(step.tokens) == accepted + 1


def test_a_right_draft_has_nothing_rejected_and_a_wrong_one_nothing_accepted(models: Models) -> None:
    rates = {"method": "synthetic", "num_speculative_tokens": 3}
    known = models.plain(PROMPT, params(ignore_eos=True)).outputs[0].token_ids
    for rate in (1.0, 0.0):
        llm = models.llm({**rates, "synthetic_acceptance_rates": [rate] * 3})
        sample = llm.generate(PROMPT, params(ignore_eos=True, prediction=known))[0].outputs[0]
        drafted = [step for step in steps_of(sample) if step.num_drafted == 3][:-1]
        assert drafted
        assert {len(step.rejected) for step in drafted} == ({0} if rate else {3})
        assert {token.source for step in drafted for token in step.tokens} == ({"synthetic", ""} if rate else {""})


def test_a_stream_tells_every_step_once_and_only_when_asked(models: Models) -> None:
    llm = models.llm(VARIANTS["suffix tree"])
    chunks = list(llm.stream(PROMPT, params()))
    assert llm.last_output is not None
    want = steps_of(llm.last_output.outputs[0])
    assert [step for chunk in chunks for step in chunk.steps or ()] == want
    chunks = list(llm.stream(PROMPT, params(speculation=None)))
    assert all(chunk.steps is None for chunk in chunks)
    assert llm.last_output.outputs[0].steps is None


def test_plain_decoding_is_told_too(models: Models) -> None:
    speculation = SpeculationParams(enabled=False, explain=True)
    sample = models.llm(VARIANTS["suffix tree"]).generate(PROMPT, params(speculation=speculation))[0].outputs[0]
    assert {(step.num_drafted, step.method, len(step.tokens)) for step in steps_of(sample)} == {(0, "", 1)}


def test_the_likeliest_path_behind_the_walk_is_the_rejected_one() -> None:
    tree = Draft(tokens=[5, 6, 7, 8, 9], parents=[-1, -1, 0, 1, 1], scores=[0.2, 0.7, 0.9, 0.1, 0.4])
    assert rejected(tree, Walk((), 1)) == [1, 4]
    assert rejected(tree, Walk((0,), 1)) == [2]
    assert rejected(tree, Walk((0, 2), 1)) == []
    assert rejected(Draft(tokens=[5, 6]), Walk((), 1)) == [0, 1]
