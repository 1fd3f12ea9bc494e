"""Methods that draft with the target itself: what they leave in its cache, what they refuse, what they accept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tiny import VARIANTS, Models, consistent, idle, ids, prompts, same
from outrider import LLM, SamplingParams
from outrider.config import SpeculativeConfig
from outrider.core.draft import Draft
from outrider.drafters import layer_skip, registry, skip_file
from outrider.drafters.base import Committed
from outrider.drafters.skip_file import SkipSet
from outrider.engine.laws import SharedNoise
from outrider.errors import ConfigError, ContractError, NumericsError
from outrider.target.batch import Span
from outrider.target.facts import ModelFacts
from outrider.target.narrow import narrow_format
from target.tiny import reference

SELF = ["layer_skip", "layer_skip exit", "self_quantized"]
NOTHING = {"method": "layer_skip", "skip_attention_layers": [], "skip_mlp_layers": []}
FACTS = ModelFacts("tiny", "llama", 2, lean=True, dtype="float16", fingerprint="abc")


def cached(llm: LLM, seq: Any, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the first ``count`` positions of a sequence, in all layers."""
    return llm._engine.scheduler.storage.read(slice(None), seq.table.slots(0, count))


def pure(llm: LLM, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from one forward of the target over ``tokens``."""
    target = llm._engine.target
    slots = torch.arange(-(-len(tokens) // 16) * 16, dtype=torch.int32)
    storage = target.new_storage(len(slots), 16)
    target.forward([Span(tokens, slots, 0, logits=[])], storage)
    return storage.read(slice(None), slots[: len(tokens)])


def equal(left: tuple[torch.Tensor, torch.Tensor], right: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return torch.equal(left[0], right[0]) and torch.equal(left[1], right[1])


@pytest.mark.parametrize("variant", SELF)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("rule", ["sample", "rejection"])
def test_after_every_commit_the_cache_is_that_of_a_pure_run(
    models: Models, variant: str, dtype: str, rule: str
) -> None:
    llm = models.fresh(VARIANTS[variant] | {"num_speculative_tokens": 4, "verifier": rule}, dtype=dtype)
    engine = llm._engine
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=3, ignore_eos=True)
    requests = [llm._factory.request(f"r{len(prompt)}", prompt, params) for prompt in prompts((5, 15, 16, 33))]
    for request in requests:
        request.start()
    drafted, propose = 0, engine.drafting.propose

    def watch(seqs: Any, *more: Any) -> Any:
        nonlocal drafted
        out = propose(seqs, *more)
        for seq, draft in zip(seqs, out[0], strict=True):
            if len(draft):  # the root's slot holds what the drafter computed: another key than the target's
                drafted += not equal(cached(llm, seq, len(seq.token_ids)), pure(llm, seq.token_ids))
        return out

    engine.drafting.propose = watch  # type: ignore[method-assign]
    while engine.has_work:
        engine.step()
        for seq in engine.scheduler.running:
            assert equal(cached(llm, seq, seq.num_computed), pure(llm, seq.token_ids[: seq.num_computed]))
    assert drafted > 0
    idle(llm)


@pytest.mark.parametrize("rule", ["sample", "rejection", "block"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_without_skipped_sublayers_every_draft_is_accepted(models: Models, rule: str, temperature: float) -> None:
    llm = models.llm(NOTHING | {"verifier": rule, "num_speculative_tokens": 4, "draft_stop_threshold": 0.0})
    asked = prompts((5, 17, 40))
    for seed in range(3):
        params = SamplingParams(max_tokens=30, temperature=temperature, seed=seed, ignore_eos=True)
        for output in llm.generate(asked, params):
            stats = output.stats
            assert stats.num_accepted_draft_tokens == stats.num_draft_tokens > 20
            assert stats.mean_acceptance_length > (1.5 if temperature else 4.5)
            consistent(output)


@pytest.mark.parametrize("variant", SELF)
def test_penalties_and_masks_reach_the_drafts_law(models: Models, variant: str) -> None:
    llm = models.llm(VARIANTS[variant] | {"num_speculative_tokens": 4})
    params = SamplingParams(
        max_tokens=30, temperature=0.8, seed=1, repetition_penalty=1.5, allowed_token_ids=list(range(5, 60)), logprobs=1
    )
    for prompt in prompts((9, 20)):
        same(llm.generate(prompt, params)[0].outputs[0], models.plain(prompt, params).outputs[0])


@pytest.mark.parametrize("variant", SELF)
def test_the_end_of_the_context_and_of_the_cache(models: Models, variant: str) -> None:
    llm = models.fresh(VARIANTS[variant] | {"num_speculative_tokens": 6}, kv_cache_tokens=64, max_model_len=60)
    for length in (40, 50, 55, 58):
        params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
        output = llm.generate(ids(length, seed=2), params)[0]
        assert length + len(output.outputs[0].token_ids) == 60
        same(output.outputs[0], models.plain(ids(length, seed=2), params, max_model_len=60).outputs[0])
    idle(llm)


def test_a_sequence_that_is_not_decoding_has_no_slots(models: Models) -> None:
    llm = models.fresh(VARIANTS["layer_skip"])
    request = llm._factory.request("r", ids(20), SamplingParams(max_tokens=4))
    handle: Any = llm._engine.drafting.methods["layer_skip"].drafter.target  # type: ignore[attr-defined]
    with pytest.raises(ContractError, match="is not decoding"):
        handle.slots(request.sequences[0], 3)


def test_a_forward_that_is_not_finite_leaves_zeros(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = models.fresh(VARIANTS["layer_skip"] | {"num_speculative_tokens": 3}, strict=False)
    drafter: Any = llm._engine.drafting.methods["layer_skip"].drafter
    storage, seen = llm._engine.scheduler.storage, []
    forward = drafter.model.forward

    def damaged(spans: Any, storage_: Any, *layers: Any, skip: bytes | None = None) -> Any:
        out = forward(spans, storage_, *layers, skip=skip)
        if skip is None:
            return out
        slots = [int(span.context[span.start]) for span in spans]
        seen.extend(slots)
        storage.write(slice(None), slots, torch.nan, torch.nan)
        raise NumericsError("raw logits hold NaN")

    monkeypatch.setattr(drafter.model, "forward", damaged)
    prompt, params = ids(20), SamplingParams(max_tokens=12, temperature=0.0)
    output = llm.generate(prompt, params)[0]
    same(output.outputs[0], models.plain(prompt, params).outputs[0])
    assert seen
    keys, values = storage.read(slice(None), slice(0, 64))
    assert torch.isfinite(keys).all()
    assert torch.isfinite(values).all()


def test_a_chain_ends_behind_a_token_below_the_threshold(models: Models) -> None:
    lengths = {}
    for threshold in (0.0, 0.5, 1.0):
        llm = models.fresh(NOTHING | {"draft_stop_threshold": threshold, "num_speculative_tokens": 8})
        drafts: list[Draft] = []
        drafter: Any = llm._engine.drafting.methods["layer_skip"].drafter
        propose = drafter.propose
        drafter.propose = lambda *a, p=propose, d=drafts: d.extend(p(*a)) or d[-1:]
        llm.generate(ids(9), SamplingParams(max_tokens=60, temperature=1.0, seed=1, ignore_eos=True))
        for draft in drafts:
            assert draft.scores is not None
            assert all(score >= threshold for score in draft.scores[:-1])
        lengths[threshold] = max(len(draft) for draft in drafts)
    assert lengths[0.0] == 8
    assert lengths[1.0] == 1


def test_the_threshold_follows_acceptance_and_is_a_requests_own(models: Models) -> None:
    drafter: Any = models.llm(NOTHING)._engine.drafting.methods["layer_skip"].drafter
    greedy, sampled = (SimpleNamespace(seq_id=at, pipeline=SimpleNamespace(greedy=not at)) for at in (0, 1))
    assert (drafter.stop_threshold(greedy), drafter.stop_threshold(sampled)) == (0.8, 0.5)
    draft = Draft([1, 2, 3, 4])
    drafter.observe(greedy, Committed([9]))  # nothing was drafted
    assert drafter.stop_threshold(greedy) == 0.8
    for _ in range(100):
        drafter.observe(greedy, Committed([1, 9], num_accepted=1, draft=draft))
    assert drafter.stop_threshold(greedy) == pytest.approx(0.95)
    for _ in range(100):
        drafter.observe(greedy, Committed([1, 2, 3, 4, 9], num_accepted=4, draft=draft))
    assert drafter.stop_threshold(greedy) == 0.0
    assert drafter.stop_threshold(sampled) == 0.5
    drafter.release(greedy)
    assert drafter.stop_threshold(greedy) == 0.8


def test_what_drafts_with_the_target_is_no_inner_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setitem(
        registry.REGISTRY,
        "outer",
        replace(registry.REGISTRY["ngram"], method="outer", members="inner", options=("drafter",)),
    )
    with pytest.raises(ConfigError, match="'layer_skip' drafts with the target itself and cannot draft for 'outer'"):
        registry.check(SpeculativeConfig(method="outer", drafter=SpeculativeConfig(method="layer_skip", exit_layer=1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "layer_skip", "skip_mlp_layers": [2]}, "skip_mlp_layers: the model has no layer 2"),
        ({"method": "layer_skip", "exit_layer": 3}, "exit_layer=3: the model has 2 layers"),
        (
            {"method": "layer_skip", "skip_file": "nowhere.json"},
            "skip_file='nowhere.json' is no file of `outrider tune",
        ),
        ({"method": "layer_skip"}, "nothing says what to skip, and nothing was tuned"),
        ({"method": "self_quantized", "draft_dtype": "float32"}, "draft_dtype=float32 is not narrower .*int8 or int4"),
    ],
)
def test_impossible_settings_are_refused_before_weights_load(
    models: Models, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setattr("outrider.target.model.load_model", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(ConfigError, match=message) as error:
        LLM(models.folders["target"], speculative_config=options)
    assert "\n" not in str(error.value)


def test_layers_of_other_architectures_are_not_skipped() -> None:
    facts = ModelFacts("other", "gemma2", 4, lean=False, dtype="float16", fingerprint="")
    with pytest.raises(
        ConfigError, match=r"layer_skip: sublayers of 'gemma2' models cannot be skipped.*another method"
    ):
        registry.check_target(SpeculativeConfig(method="layer_skip", exit_layer=1), facts)


@pytest.mark.parametrize(
    ("wanted", "own", "chosen"),
    [("auto", "float32", "int8"), ("auto", "float16", "int8"), ("auto", "int8", "int4"), ("auto", "gguf", "int4"),
     ("int4", "bfloat16", "int4"), ("gguf", "float16", "gguf"), ("bfloat16", "float32", "bfloat16")],
)  # fmt: skip
def test_the_copy_is_narrower(wanted: str, own: str, chosen: str) -> None:
    assert narrow_format(wanted, ModelFacts("m", "llama", 2, True, own, "")) == chosen


@pytest.mark.parametrize(
    ("wanted", "own"),
    [
        ("auto", "int4"),
        ("int8", "int8"),
        ("int8", "int4"),
        ("float16", "bfloat16"),
        ("gguf", "gguf"),
        ("float32", "int8"),
    ],
)
def test_a_copy_that_is_not_narrower_is_refused(wanted: str, own: str) -> None:
    with pytest.raises(ConfigError, match=r"draft_dtype=\w+.*; (set|use)"):
        narrow_format(wanted, ModelFacts("m", "llama", 2, True, own, ""))


def test_a_skip_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "set.json"
    skip_file.write(path, SkipSet([1], [0, 1]), "abc", {"expected_speedup": 1.1})
    config = SpeculativeConfig(method="layer_skip", skip_file=str(path))
    assert layer_skip.mask_for(config, FACTS) == bytes([2, 3])
    with pytest.raises(ConfigError, match="was tuned for another model"):
        skip_file.read(str(path), "def")
    with pytest.raises(ConfigError, match="skip_file holds a whole set"):
        SpeculativeConfig(method="layer_skip", skip_file=str(path), exit_layer=1)
    path.write_text(path.read_text().replace("skip set 1", "skip set 0"))
    with pytest.raises(ConfigError, match="has another format"):
        skip_file.read(str(path), "abc")
    with pytest.raises(ConfigError, match="cannot be written"):
        skip_file.write(tmp_path, SkipSet([], []), "abc", {})


@settings(max_examples=30, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["format", "fingerprint", "skip_attention_layers", "skip_mlp_layers"]), inner
            )
        ),
    )
)
def test_any_other_file_is_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "other.json"
    path.write_text(json.dumps(value))
    with pytest.raises(ConfigError, match="is no file of `outrider tune layer_skip`") as error:
        skip_file.read(str(path), "abc")
    assert "\n" not in str(error.value).replace("\\n", "")


def test_two_proposals_are_equal(models: Models) -> None:
    for variant in SELF:
        llm = models.fresh(VARIANTS[variant] | {"num_speculative_tokens": 5})
        engine, method = llm._engine, llm._engine.drafting.methods[VARIANTS[variant]["method"]]
        request = llm._factory.request("r", ids(20), SamplingParams(max_tokens=20, temperature=1.0, seed=2))
        request.start()
        for _ in range(3):
            engine.step()
            seq = request.sequences[0]
            (first,), (second,) = (method.drafter.propose([seq], [5], SharedNoise()) for _ in range(2))
            assert (first.tokens, first.scores) == (second.tokens, second.scores)
            assert 1 <= len(first) <= 5
        request.abort()


def test_any_architecture_drafts_for_itself_with_narrower_weights(models: Models, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    net = reference("olmo2", vocab_size=118)
    net.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(models.folders["target"]).save_pretrained(tmp_path)
    options: dict[str, Any] = {"dtype": "float32", "threads": 1, "strict": True}
    params = SamplingParams(max_tokens=16, temperature=1.0, seed=2, ignore_eos=True)
    config = {"method": "self_quantized", "num_speculative_tokens": 3}
    with LLM(str(tmp_path), **options) as plain, LLM(str(tmp_path), speculative_config=config, **options) as llm:
        want, got = plain.generate(ids(20), params)[0], llm.generate(ids(20), params)[0]
    assert not llm._engine.target.lean
    assert got.stats.num_accepted_draft_tokens > 0
    same(got.outputs[0], want.outputs[0])
