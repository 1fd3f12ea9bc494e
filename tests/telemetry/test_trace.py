"""The record of a generation is what happened: tokens, counters, times, laws; and recording changes nothing."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tiny import VARIANTS, Models
from outrider import LLM, SamplingParams
from outrider.config import SpeculativeConfig
from outrider.core.accounting import SpeculationStats
from outrider.core.draft import Draft, Iid, WithoutReplacement
from outrider.target.costs import CostCurve
from outrider.telemetry.record import StepRecord, Trace
from outrider.telemetry.recorder import StepRecorder, draft_law, match
from outrider.telemetry.trace import trace

PROMPT = "the abc of the abc in the ab"
STEEP = CostCurve((1, 64), (0.01, 0.3))  # a row costs nearly half a plain step


def traced(llm: LLM, config: dict[str, Any] | None, **params: Any) -> Trace:
    sampling = SamplingParams(**{"max_tokens": 40, "temperature": 0.0, "seed": 3, "ignore_eos": True, **params})
    tokens = llm.get_tokenizer().encode(PROMPT)
    return trace(llm, tokens, sampling, None if config is None else SpeculativeConfig(**config))


def counted(steps: list[StepRecord]) -> SpeculationStats:
    """The counters of a generation, from its record alone."""
    stats = SpeculationStats()
    stats.add_first_token()
    for step in steps[1:]:
        verified = [index for index, node in enumerate(step.nodes) if node.outcome != "pruned"]
        where = {index: new for new, index in enumerate(verified)} | {-1: -1}
        nodes = [step.nodes[index] for index in verified]
        parents, sources = [where[node.parent] for node in nodes], [node.source for node in nodes]
        draft = Draft([node.token_id for node in nodes], parents=parents, sources=sources)
        stats.add_step(draft, [where[node] for node in step.path], len(step.emitted))
    return stats


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["ngram", "suffix tree", "draft_model", "draft_model tree"])
def test_the_record_is_what_happened(models: Models, name: str, temperature: float) -> None:
    record = traced(models.llm(VARIANTS[name]), VARIANTS[name], temperature=temperature)
    steps, stats = record.steps, record.stats
    assert [step.number for step in steps] == list(range(len(steps)))
    emitted = [token for step in steps for token in step.emitted]
    tokens = models.llm(None).get_tokenizer().encode(PROMPT)
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=3, ignore_eos=True)
    plain = models.plain({"prompt_token_ids": tokens}, params)
    assert [token.token_id for token in emitted] == plain.outputs[0].token_ids
    assert "".join(token.text for token in emitted) == record.text
    mine = counted(steps)
    for item in fields(SpeculationStats):
        assert getattr(mine, item.name) == getattr(stats, item.name), item.name
    for part in ("draft_seconds", "verify_seconds", "overhead_seconds"):
        assert math.isclose(sum(getattr(step, part) for step in steps), getattr(stats, part), abs_tol=1e-9)
    assert stats.num_accepted_draft_tokens > 0


@pytest.mark.parametrize("name", ["suffix tree", "draft_model tree"])
def test_outcomes_kinds_and_laws_agree(models: Models, name: str) -> None:
    record = traced(models.llm(VARIANTS[name]), VARIANTS[name], temperature=1.0)
    for step in record.steps:
        assert [node for node, item in enumerate(step.nodes) if item.outcome == "accepted"] == sorted(step.path)
        for token in step.emitted:
            assert 0.0 < token.p <= 1.0
            assert token.p == pytest.approx(token.raw)  # nothing is filtered at temperature 1
            if token.node is not None:
                assert (token.kind, step.nodes[token.node].token_id) == ("drafted", token.token_id)
                assert step.nodes[token.node].p == token.p
        for node in step.nodes:
            above = None if node.parent < 0 else step.nodes[node.parent].outcome
            if node.outcome == "rejected":
                assert above in (None, "accepted")
            if node.outcome == "not reached":
                assert above in ("rejected", "not reached")
        if step.nodes and len(step.emitted) > len(step.path):
            last = step.path[-1] if step.path else -1
            children = [item for item in step.nodes if item.parent == last and item.outcome != "pruned"]
            assert step.emitted[-1].kind == ("recovered" if children else "bonus")


def test_a_classical_rule_shows_the_draft_law(models: Models) -> None:
    config = {**VARIANTS["draft_model"], "verifier": "rejection", "num_speculative_tokens": 3}
    record = traced(models.llm(config), config, temperature=1.0)
    nodes = [node for step in record.steps for node in step.nodes]
    assert {node.law for node in nodes} == {"iid"}
    assert all(node.q is not None and 0.0 < node.q <= 1.0 for node in nodes)
    assert any("K is fixed at 3" in step.words for step in record.steps)
    assert {node.law for step in traced(models.llm(VARIANTS["ngram"]), None).steps for node in step.nodes} == {"delta"}


def test_raw_probabilities_are_the_logprobs(models: Models) -> None:
    llm = models.llm(VARIANTS["ngram"])
    record = traced(llm, VARIANTS["ngram"], repetition_penalty=1.3)
    params = SamplingParams(max_tokens=40, temperature=0.0, seed=3, ignore_eos=True, logprobs=0, repetition_penalty=1.3)
    output = llm.generate(PROMPT, params)[0].outputs[0]
    emitted = [token for step in record.steps for token in step.emitted]
    assert output.logprobs is not None
    for token, entry in zip(emitted, output.logprobs, strict=True):
        assert token.raw == pytest.approx(math.exp(entry[token.token_id].logprob), rel=1e-4)
        assert token.p == 1.0  # the law the verifier saw: penalties of this very history, then temperature 0


def test_pruned_nodes_are_told_apart(models: Models) -> None:
    llm = models.fresh(VARIANTS["suffix tree"])
    llm._engine.planner.curve = STEEP
    record = traced(llm, VARIANTS["suffix tree"])
    pruned = [step for step in record.steps if any(node.outcome == "pruned" for node in step.nodes)]
    assert pruned
    for step in pruned:
        verified = sum(node.outcome != "pruned" for node in step.nodes)
        assert step.num_rows == 1 + verified
        assert ("none verified" if not verified else f"{verified} verified, ") in step.words
    assert counted(record.steps).num_draft_tokens == record.stats.num_draft_tokens


def test_a_stop_within_the_path_cuts_what_was_emitted(models: Models) -> None:
    config = VARIANTS["draft_model"]
    whole = traced(models.llm(config), config)
    inner = next(token for step in whole.steps[1:] for token in step.emitted[:-1] if len(step.path) > 1)
    record = traced(models.llm(config), config, stop_token_ids=[inner.token_id])
    assert record.finish_reason == "stop"
    assert record.steps[-1].emitted[-1].token_id == inner.token_id
    assert counted(record.steps).num_committed_tokens == record.stats.num_committed_tokens


def test_recording_changes_nothing(models: Models) -> None:
    config = VARIANTS["draft_model tree"]
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=5, logprobs=2)
    prompts = [PROMPT, "abc the of ing the", "in"]
    outputs = []
    for recording in (False, True):
        llm = models.fresh(config)
        recorder = StepRecorder(llm.get_tokenizer())
        llm.record(recorder if recording else None)
        outputs.append(llm.generate(prompts, params, use_tqdm=False))
        llm.record(None)
        for output in outputs[-1]:
            assert bool(recorder.steps(output.request_id)) == recording
    for off, on in zip(*outputs, strict=True):
        assert off.outputs == on.outputs
        assert off.speculation == on.speculation
        assert SpeculationStats.pooled([off.stats]) == SpeculationStats.pooled([on.stats])  # counters, not times


def test_a_batch_gives_every_sequence_its_own_record(models: Models) -> None:
    llm = models.fresh(VARIANTS["ngram"])
    recorder = StepRecorder(llm.get_tokenizer())
    llm.record(recorder)
    outputs = llm.generate([PROMPT, "abc abc abc abc"], SamplingParams(n=2, max_tokens=20, seed=1), use_tqdm=False)
    for output in outputs:
        for sample in output.outputs:
            steps = recorder.steps(output.request_id, sample.index)
            assert [token.token_id for step in steps for token in step.emitted] == sample.token_ids


def test_compare_decodes_plainly_beside_it(models: Models) -> None:
    llm = models.llm(VARIANTS["ngram"])
    tokens, params = llm.get_tokenizer().encode(PROMPT), SamplingParams(max_tokens=12, temperature=0.0)
    record = trace(llm, tokens, params, SpeculativeConfig(**VARIANTS["ngram"]), compare=True)
    assert record.plain is not None
    assert record.plain.identical
    assert record.plain.num_tokens == record.stats.num_completion_tokens
    assert record.steps[1].words


@settings(max_examples=200)
@given(st.data())
def test_kept_nodes_are_found_again(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    parents = [data.draw(st.integers(-1, node - 1)) for node in range(size)]
    full = Draft(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)), parents=parents)
    wanted = data.draw(st.sets(st.integers(0, size - 1)))
    nodes = sorted({ancestor for node in wanted for ancestor in full.path(node)})
    found = match(full, full.keep(nodes))
    path = [[full.tokens[n] for n in full.path(node)] for node in range(size)]
    assert [path[node] for node in sorted(found, key=found.__getitem__)] == [path[node] for node in nodes]
    if len({tuple(each) for each in path}) == size:  # no equal siblings: there is one answer
        assert found == {node: new for new, node in enumerate(nodes)}


def test_the_draft_law_of_an_edge() -> None:
    q = torch.tensor([0.5, 0.3, 0.2])
    siblings = Draft([0, 1, 2], parents=[-1, -1, -1], laws=[WithoutReplacement(q)] * 3)
    assert [draft_law(siblings, node) for node in range(3)] == pytest.approx([0.5, 0.6, 1.0])
    assert draft_law(Draft([1], laws=[Iid(q)]), 0) == pytest.approx(0.3)
    assert draft_law(Draft([1]), 0) is None
    assert draft_law(Draft([1], laws=[Iid(torch.tensor([1.0, 0.0, 0.0]))]), 0) is None  # no law of this token
