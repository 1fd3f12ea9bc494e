"""Text and logprobs of a request depend on nothing but the request: random mixes against plain decoding alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.tiny import VARIANTS, Models, consistent, idle, ids, same
from outrider import LLM, SamplingParams, SpeculationParams, native
from outrider.outputs import RequestOutput

BOUNDARIES = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 100, 127, 128, 129, 255, 256, 257]
OWN = ["token_recycling", "lookahead", "ouroboros", "layer_skip", "self_quantized", "hierarchical", "auto"]
LOADED = ["ngram", "suffix tree", "prediction", "synthetic", *OWN]
METHODS = sorted({VARIANTS[name]["method"] for name in [*LOADED, "draft_model"]})
ENGINES = st.fixed_dictionaries(
    {
        "draft": st.sampled_from(["draft_model", "draft_model tree", "draft_model paths", "draft_model long"]),
        "max_num_seqs": st.sampled_from([1, 3, 8]),
        "max_num_batched_tokens": st.sampled_from([8, 40, 512]),
        "kv_cache_tokens": st.sampled_from([320, 4096]),
        "enable_prefix_caching": st.booleans(),
    }
)


class Ask(NamedTuple):
    """One request of a mix; it arrives after ``wait`` steps of the engine."""

    prompt: dict[str, Any]
    params: SamplingParams
    wait: int


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    length = draw(st.sampled_from(BOUNDARIES) | st.integers(1, 290))
    shared = draw(st.integers(0, min(length, 100)))  # the beginning that requests of a group have in common
    tokens = ids(shared, seed=draw(st.integers(0, 1)), period=5) + ids(length - shared, seed=length)
    method = draw(st.sampled_from([None, *METHODS]))
    wish = SpeculationParams(
        enabled=draw(st.sampled_from([True, True, True, False])),
        method=method,
        num_speculative_tokens=draw(st.sampled_from([None, 0, 1, 3, 6])),
    )
    params = SamplingParams(
        n=draw(st.sampled_from([1, 1, 1, 2])),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 3)),
        max_tokens=draw(st.integers(1, 20)),
        logprobs=draw(st.sampled_from([None, 0, 2])),
        ignore_eos=draw(st.booleans()),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3])),
        speculation=wish,
        prediction=tokens[-12:],
    )
    salt = draw(st.sampled_from(["", "a", "b"]))
    return Ask({"prompt_token_ids": tokens, "cache_salt": salt}, params, draw(st.sampled_from([0, 0, 1, 3, 9])))


def answer(llm: LLM, mix: list[Ask]) -> list[RequestOutput]:
    """Run a mix with requests that arrive while others run."""
    engine, waiting, requests = llm._engine, list(mix), []
    countdown = mix[0].wait
    while waiting or engine.has_work:
        while waiting and countdown <= 0:
            ask = waiting.pop(0)
            requests.append(llm._factory.request(f"r{len(requests)}", ask.prompt, ask.params))
            requests[-1].start()
            countdown = waiting[0].wait if waiting else 0
        countdown -= 1
        engine.step()
    assert all(request.finished for request in requests)
    return [request.output() for request in requests]


def check(models: Models, llm: LLM, mix: list[Ask]) -> list[RequestOutput]:
    outputs = answer(llm, mix)
    for ask, output in zip(mix, outputs, strict=True):
        want = models.plain(ask.prompt, ask.params, kv_cache_tokens=384)
        for mine, theirs in zip(output.outputs, want.outputs, strict=True):
            same(mine, theirs)
        consistent(output)
    idle(llm)
    return outputs


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(engine=ENGINES, mix=st.lists(asks(), min_size=1, max_size=7), threads=st.sampled_from([1, 2]))
def test_any_mix_equals_plain_decoding_alone(
    models: Models, engine: dict[str, Any], mix: list[Ask], threads: int
) -> None:
    options = {key: value for key, value in engine.items() if key != "draft"}
    llm = models.llm([VARIANTS[name] for name in (*LOADED, engine["draft"])], **options)
    native.set_threads(threads)
    try:
        check(models, llm, mix)
    finally:
        native.set_threads(1)


@pytest.mark.parametrize(
    ("variant", "prefix"), [("draft_model", True), ("draft_model", False), ("hierarchical of 3", True)]
)
def test_preempted_requests_go_on_as_if_nothing_had_been(models: Models, variant: str, prefix: bool) -> None:
    llm = models.llm([VARIANTS[variant], VARIANTS["suffix"]], kv_cache_tokens=128, enable_prefix_caching=prefix)
    method = next(iter(llm._engine.drafting.methods))
    mix = [
        Ask(
            {"prompt_token_ids": ids(30 + length, seed=length)},
            SamplingParams(
                max_tokens=60,
                temperature=1.0,
                seed=length,
                logprobs=1,
                ignore_eos=True,
                speculation=SpeculationParams(method="suffix" if length % 2 else method),
            ),
            0,
        )
        for length in range(5)
    ]
    outputs = check(models, llm, mix)
    assert sum(output.stats.num_preemptions for output in outputs) > 0
    assert sum(output.stats.num_accepted_draft_tokens for output in outputs) > 0


@pytest.mark.parametrize("chunk", [16, 512])
def test_prefixes_are_reused_within_a_salt_only(models: Models, chunk: int) -> None:
    llm = models.fresh(VARIANTS["ngram"], max_num_batched_tokens=chunk)
    params = SamplingParams(max_tokens=4, temperature=0)
    tokens = ids(70)

    def cached(salt: str) -> int:
        return llm.generate({"prompt_token_ids": tokens, "cache_salt": salt}, params)[0].stats.num_cached_tokens

    assert [cached("a"), cached("a"), cached("b"), cached("b"), cached("")] == [0, 64, 0, 64, 0]


def test_samples_of_a_request_differ_and_share_their_prompt(models: Models) -> None:
    llm = models.fresh(VARIANTS["draft_model"])
    params = SamplingParams(n=3, max_tokens=12, temperature=1.0, seed=4)
    output = llm.generate(ids(40), params)[0]
    assert len({tuple(sample.token_ids) for sample in output.outputs}) == 3
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    assert output.stats.num_cached_tokens == 2 * 32
