"""What a drafter may see of the target: hidden states of the committed rows, best ids of every row, probe rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from engine.fakes import Scripted, drafting_with
from engine.tiny import VARIANTS, Models, idle, ids, same
from outrider import SamplingParams, SpeculationParams
from outrider.core.draft import Draft, Probes
from outrider.drafters.base import DraftSequence, Needs
from outrider.target.costs import CostCurve

PROMPT = ids(37, seed=6)
SYNTHETIC = VARIANTS["synthetic"] | {"num_speculative_tokens": 4}


@pytest.fixture(scope="module")
def reference(models: Models) -> Any:
    """transformers' own model."""
    return LlamaForCausalLM.from_pretrained(models.folders["target"], dtype=torch.float32).eval()


def states(reference: Any, tokens: list[int], layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Outputs of decoder ``layers`` [tokens, layers * hidden], in that order, and logits [tokens, vocab]."""
    kept: dict[int, Tensor] = {}
    hooks = [
        reference.model.layers[layer].register_forward_hook(lambda _, __, out, layer=layer: kept.update({layer: out}))
        for layer in set(layers)
    ]
    with torch.inference_mode():
        logits = reference(torch.tensor([tokens])).logits[0]
    for hook in hooks:
        hook.remove()
    outputs = [kept[layer][0] if isinstance(kept[layer], tuple) else kept[layer] for layer in layers]
    return torch.cat([output.reshape(len(tokens), -1) for output in outputs], dim=1), logits


def predicted(models: Models, prompt: list[int], **changes: Any) -> SamplingParams:
    params = SamplingParams(**{"max_tokens": 15, "temperature": 1.0, "seed": 2, "ignore_eos": True, **changes})
    answer = models.plain(prompt, params).outputs[0].token_ids
    wrong = [token if index % 5 else 5 for index, token in enumerate(answer)]
    return params.model_copy(update={"prediction": wrong})


@pytest.mark.parametrize("layers", [(1,), (0, 1), (1, 0)])
@pytest.mark.parametrize("chunk", [16, 512])
@pytest.mark.parametrize("kept", [0, 1, 2], ids=["no room for them", "for one layer", "for two"])
def test_hidden_states_are_those_of_the_committed_rows(
    models: Models, reference: Any, layers: tuple[int, ...], chunk: int, kept: int
) -> None:
    llm = models.fresh(SYNTHETIC, max_num_batched_tokens=chunk)
    if kept:
        llm._engine.scheduler.storage.keep_taps(kept, 32)
    params = predicted(models, PROMPT)
    for again in (False, True):  # the second time the prefix cache knows the prompt, perhaps with its hidden states
        drafter = Scripted(needs=Needs(hidden_layers=layers))
        with drafting_with(llm, drafter, strict=True):
            output = llm.generate(PROMPT, params)[0]
        same(output.outputs[0], models.plain(PROMPT, params).outputs[0])
        assert output.stats.num_cached_tokens == (32 if again and kept >= len(layers) else 0)
        assert output.stats.num_accepted_draft_tokens > 0
        text = PROMPT + output.outputs[0].token_ids
        want, _ = states(reference, text, layers)
        ((begun, hidden),) = drafter.begun
        assert begun == text[: len(PROMPT) + 1]
        parts = [hidden, *(committed.hidden for committed in drafter.seen)]
        for committed in drafter.seen:
            assert len(committed.hidden) == len(committed.token_ids)
        got = torch.cat(parts)
        assert got.shape == (len(text) - 1, len(layers) * 32)
        assert torch.allclose(got, want[:-1], atol=1e-4)
    idle(llm)


def with_decoy(seq: DraftSequence, draft: Draft) -> Draft:
    """A wrong sibling before the first node: what is accepted lies one slot too far and moves."""
    tokens = [draft.tokens[0] ^ 1, *draft.tokens[:-1]] if len(draft.tokens) > 1 else list(draft.tokens)
    return Draft(tokens, parents=[-1, -1, *range(1, len(tokens) - 1)][: len(tokens)], source="synthetic")


def test_hidden_states_of_accepted_nodes_are_cached_where_their_keys_move(models: Models, reference: Any) -> None:
    llm = models.fresh(SYNTHETIC)
    llm._engine.scheduler.storage.keep_taps(1, 32)
    params = predicted(models, PROMPT, max_tokens=50)
    moving = Scripted(needs=Needs(hidden_layers=(1,)), twist=with_decoy)
    with drafting_with(llm, moving, strict=True):
        first = llm.generate(PROMPT, params)[0]
    same(first.outputs[0], models.plain(PROMPT, params).outputs[0])
    assert first.stats.num_accepted_draft_tokens > 10
    text = PROMPT + first.outputs[0].token_ids
    reading = Scripted(needs=Needs(hidden_layers=(1,)))
    with drafting_with(llm, reading, strict=True):
        output = llm.generate(text, SamplingParams(max_tokens=5, ignore_eos=True))[0]
    assert output.stats.num_cached_tokens == 80  # of which 37 are the prompt
    ((begun, hidden),) = reading.begun
    assert torch.allclose(hidden, states(reference, begun[:-1], (1,))[0], atol=1e-4)


def test_every_drafter_gets_its_own_layers(models: Models, reference: Any) -> None:
    llm = models.llm([SYNTHETIC, VARIANTS["ngram"]])
    drafters = {
        "synthetic": Scripted(needs=Needs(hidden_layers=(1,))),
        "ngram": Scripted(needs=Needs(hidden_layers=(0,))),
    }
    drafters["ngram"].method = "ngram"
    params = [
        predicted(models, PROMPT, speculation=SpeculationParams(method=method, num_speculative_tokens=3))
        for method in drafters
    ]
    with drafting_with(llm, drafters["synthetic"], strict=True), drafting_with(llm, drafters["ngram"], strict=True):
        outputs = llm.generate([PROMPT, PROMPT], params)
    for drafter, output, layer in zip(drafters.values(), outputs, (1, 0), strict=True):
        text = PROMPT + output.outputs[0].token_ids
        want, _ = states(reference, text, (layer,))
        got = torch.cat([drafter.begun[0][1], *(committed.hidden for committed in drafter.seen)])
        assert torch.allclose(got, want[:-1], atol=1e-4)
    idle(llm)


def test_hidden_states_survive_preemption(models: Models, reference: Any) -> None:
    llm = models.fresh(SYNTHETIC, kv_cache_tokens=160, max_num_batched_tokens=4, max_num_seqs=3)
    drafter = Scripted(needs=Needs(hidden_layers=(1,)))
    asked = [ids(20, seed=1), ids(105, seed=2), ids(30, seed=3)]  # the second is preempted while it is computed
    params = [predicted(models, prompt, max_tokens=50) for prompt in asked]
    with drafting_with(llm, drafter, strict=True):
        outputs = llm.generate(asked, params)
    assert sum(output.stats.num_preemptions for output in outputs) > 0
    for prompt, each, output in zip(asked, params, outputs, strict=True):
        same(output.outputs[0], models.plain(prompt, each).outputs[0])
    assert all(len(committed.hidden) == len(committed.token_ids) for committed in drafter.seen)
    for begun, hidden in drafter.begun:
        want, _ = states(reference, begun, (1,))
        assert torch.allclose(hidden, want[:-1], atol=1e-4)
    idle(llm)


def with_probes(seq: DraftSequence, draft: Draft) -> Draft:
    """Probes in two columns of two levels, and in place of the last node a wrong sibling of the first."""
    nodes = len(draft.tokens) - 1
    tokens = [*draft.tokens[:nodes], 7] if nodes > 0 else []
    return Draft(
        tokens,
        parents=[*range(-1, nodes - 1), -1] if nodes > 0 else None,
        probes=Probes([10, 11, 12, 13], [-1, 0, 0, 1]),
        source="synthetic",
    )


@pytest.mark.parametrize("needs", [Needs(row_topk=3), Needs(row_argmax=True)])
def test_best_ids_of_every_row_rejected_ones_and_probes_included(models: Models, reference: Any, needs: Needs) -> None:
    llm = models.llm({**SYNTHETIC, "num_speculative_tokens": 5})
    drafter = Scripted(needs=needs, twist=with_probes)
    params = predicted(models, PROMPT)
    with drafting_with(llm, drafter, strict=True):
        output = llm.generate(PROMPT, params)[0]
    same(output.outputs[0], models.plain(PROMPT, params).outputs[0])
    length, checked = len(PROMPT) + 1, 0
    text = PROMPT + output.outputs[0].token_ids
    for committed in drafter.seen:
        draft = committed.draft
        assert draft is not None
        assert committed.row_top is not None
        if draft.probes is None:  # the last step: nothing is left to draft
            assert committed is drafter.seen[-1]
            continue
        rows = 1 + len(draft) + len(draft.probes.tokens)
        assert committed.row_top.shape == (rows, needs.row_topk or 1)
        paths = [[], *([draft.tokens[n] for n in draft.path(node)] for node in range(len(draft)))]
        probes = Draft(draft.probes.tokens, draft.probes.parents)
        paths += [[probes.tokens[n] for n in probes.path(node)] for node in range(len(probes))]
        for row, path in enumerate(paths):
            _, logits = states(reference, text[:length] + path, (0,))
            assert committed.row_top[row].tolist() == logits[-1].topk(needs.row_topk or 1).indices.tolist()
            checked += 1
        length += len(committed.token_ids)
    assert checked > 20
    idle(llm)


@pytest.mark.parametrize("tokens", [[], [5]])
def test_probes_alone_change_nothing(models: Models, tokens: list[int]) -> None:
    llm = models.llm(SYNTHETIC)
    probes = Probes([9, 9, 9], [-1, 0, 1])
    drafter = Scripted(twist=lambda seq, draft: Draft(tokens, probes=probes, source="synthetic"))
    for prompt in (PROMPT, ids(380, seed=1)):  # the second one ends at the context: probes there have no position
        for speculation in (None, SpeculationParams(num_speculative_tokens=2)):
            params = predicted(models, prompt, logprobs=1, speculation=speculation)
            with drafting_with(llm, drafter, strict=True):
                output = llm.generate(prompt, params)[0]
            same(output.outputs[0], models.plain(prompt, params).outputs[0])
            idle(llm)


def test_probe_rows_are_part_of_the_forward(models: Models) -> None:
    llm = models.fresh(SYNTHETIC, enable_prefix_caching=False)
    drafter = Scripted(twist=lambda seq, draft: Draft(probes=Probes([9, 9, 9], [-1, 0, 1]), source="synthetic"))
    with drafting_with(llm, drafter, strict=True):
        llm.generate(PROMPT, predicted(models, PROMPT, max_tokens=5))
    assert llm._engine.num_rows == len(PROMPT) + 4 + 3 * 3  # the last step has no depth left, so no drafter is asked


def test_probes_stay_when_no_node_pays(models: Models) -> None:
    llm = models.fresh(VARIANTS["synthetic"], enable_prefix_caching=False)
    llm._engine.planner.curve = CostCurve((1, 64), (0.01, 0.64))
    drafter = Scripted(twist=lambda seq, draft: Draft([5], probes=Probes([9, 9, 9], [-1, 0, 1]), source="synthetic"))
    with drafting_with(llm, drafter, strict=True):
        output = llm.generate(PROMPT, predicted(models, PROMPT, max_tokens=5))[0]
    assert output.stats.num_draft_tokens == 0
    assert llm._engine.num_rows == len(PROMPT) + 4 + 3 * 3


@pytest.mark.parametrize("variant", ["eagle3", "mtp", "medusa", "hydra_plus", "merge of heads"])
def test_heads_draft_behind_a_cached_prefix(models: Models, variant: str) -> None:
    llm = models.fresh(VARIANTS[variant] | {"num_speculative_tokens": 4})
    params = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    off = params.model_copy(update={"speculation": SpeculationParams(enabled=False)})
    llm.generate(PROMPT, off)  # caches the prompt without hidden states
    first, second = (llm.generate(PROMPT, params)[0] for _ in range(2))
    assert [first.stats.num_cached_tokens, second.stats.num_cached_tokens] == [0, 32]
    assert second.stats.num_accepted_draft_tokens == first.stats.num_accepted_draft_tokens
    longer = PROMPT + first.outputs[0].token_ids + [5]
    third = llm.generate(longer, params)[0]
    assert third.stats.num_cached_tokens == 48
    for output, prompt in ((first, PROMPT), (second, PROMPT), (third, longer)):
        same(output.outputs[0], models.plain(prompt, params).outputs[0])
    idle(llm)


@pytest.mark.parametrize("salt", ["", "tenant"])
def test_the_middle_models_prefixes_are_reused_whatever_the_salt(models: Models, salt: str) -> None:
    llm = models.fresh(VARIANTS["hierarchical"])
    (method,) = llm._engine.drafting.methods.values()
    index = method.drafter.inner._index
    params = SamplingParams(max_tokens=8, temperature=0.0)
    for known in (False, True):
        llm.generate({"prompt_token_ids": PROMPT, "cache_salt": salt}, params)
        assert (index.num_hit_tokens > 0) == known
    idle(llm)


def test_a_drafter_that_meets_a_sequence_late_gets_its_hidden_states_from_the_cache(
    models: Models, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, layers = models.fresh(SYNTHETIC), (1, 0)
    llm._engine.scheduler.storage.keep_taps(2, 32)
    params = predicted(models, PROMPT)

    def late(seq: Any, num_sequences: int) -> bool:
        return len(seq.token_ids) < len(PROMPT) + 4

    monkeypatch.setattr(llm._engine.planner, "puts_off", late)
    drafter = Scripted(needs=Needs(hidden_layers=layers))
    with drafting_with(llm, drafter, strict=True):
        output = llm.generate(PROMPT, params)[0]
    same(output.outputs[0], models.plain(PROMPT, params).outputs[0])
    ((begun, hidden),) = drafter.begun
    assert len(begun) == len(PROMPT) + 4
    assert len(hidden) == len(begun) - 1
    want, _ = states(reference, PROMPT + output.outputs[0].token_ids, layers)
    got = torch.cat([hidden, *(committed.hidden for committed in drafter.seen)])
    torch.testing.assert_close(got, want[: len(got)], rtol=0.02, atol=0.02)
