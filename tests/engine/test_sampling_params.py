"""Every sampling parameter does something, and does the same under speculation as in plain decoding."""

from __future__ import annotations

from typing import Any

import pytest

from engine.tiny import EOS, VARIANTS, Models, consistent, ids, same, tokenizer
from outrider import SamplingParams, SpeculationParams

PROMPT = ids(24, seed=5, period=9)
BASE: dict[str, Any] = {"temperature": 0.8, "seed": 3, "max_tokens": 40, "logprobs": 2, "ignore_eos": True}
WORD = tokenizer().decode([40])
# field -> values that must change what BASE gives (token ids, text or what is returned with them)
CASES: dict[str, list[dict[str, Any]]] = {
    "n": [{"n": 3}],
    "temperature": [{"temperature": 0.0}, {"temperature": 1.7}],
    "top_k": [{"top_k": 1}, {"top_k": 3, "temperature": 2.0}],
    "top_p": [{"top_p": 0.3}, {"top_p": 0.7, "top_k": 5}],
    "min_p": [{"min_p": 0.4}],
    "typical_p": [{"typical_p": 0.3}],
    "repetition_penalty": [{"repetition_penalty": 1.8}, {"repetition_penalty": 1.5, "temperature": 0.0}],
    "presence_penalty": [{"presence_penalty": 2.0}, {"presence_penalty": 1.0, "temperature": 0.0}],
    "frequency_penalty": [{"frequency_penalty": 2.0}, {"frequency_penalty": -1.5, "temperature": 0.0}],
    "logit_bias": [{"logit_bias": {40: 9.0, 41: -100.0}}],
    "bad_words": [{"bad_words": ["the", "C", "QC", "CQ"], "temperature": 0.0}],
    "allowed_token_ids": [{"allowed_token_ids": [30, 40, 50, 60]}],
    "min_tokens": [{"min_tokens": 30, "logit_bias": {EOS: 5.0}, "ignore_eos": False}],
    "max_tokens": [{"max_tokens": 7}, {"max_tokens": 1}, {"max_tokens": None}],
    "stop": [{"stop": [WORD], "logit_bias": {40: 4.0}}, {"stop": WORD, "logit_bias": {40: 4.0}}],
    "stop_token_ids": [{"stop_token_ids": [40], "logit_bias": {40: 4.0}}],
    "ignore_eos": [{"ignore_eos": False, "logit_bias": {EOS: 5.0}}],
    "include_stop_str_in_output": [
        {"include_stop_str_in_output": True, "stop": [WORD], "logit_bias": {40: 4.0}},
        {"include_stop_str_in_output": True, "stop_token_ids": [40], "logit_bias": {40: 4.0}},
    ],
    "skip_special_tokens": [{"skip_special_tokens": False, "logit_bias": {0: 6.0}}],
    "detokenize": [{"detokenize": False}],
    "logprobs": [{"logprobs": None}, {"logprobs": 0}, {"logprobs": 5}],
    "seed": [{"seed": 4}, {"seed": -1}],
    "prediction": [{"prediction": ids(9)}, {"prediction": "the end"}],
    "speculation": [
        {"speculation": SpeculationParams(enabled=False)},
        {"speculation": SpeculationParams(num_speculative_tokens=1)},
    ],
    "structured_outputs": [
        {"structured_outputs": {"regex": "(ab|the )+"}},
        {"structured_outputs": {"json": {"type": "array", "items": {"enum": [1, "of"]}}}, "temperature": 0.0},
    ],
    "priority": [{"priority": 3}],
}
HINTS = {"prediction", "priority", "speculation"}  # must never change the answer
ALL = [(field, case) for field, cases in CASES.items() for case in cases]


def test_every_parameter_has_a_case() -> None:
    assert set(CASES) == set(SamplingParams.model_fields)
    assert all(field in case for field, case in ALL)


@pytest.mark.parametrize("variant", ["draft_model", "draft_model tree", "suffix tree", "prediction"])
@pytest.mark.parametrize(("field", "case"), ALL, ids=[f"{field}-{index}" for index, (field, _) in enumerate(ALL)])
def test_speculation_changes_nothing(models: Models, variant: str, field: str, case: dict[str, Any]) -> None:
    params = SamplingParams(**{**BASE, **case})
    want = models.plain(PROMPT, params)
    if variant == "prediction" and field != "prediction":
        params = params.model_copy(update={"prediction": want.outputs[0].token_ids})
    output = models.llm(VARIANTS[variant] | {"num_speculative_tokens": 4}).generate(PROMPT, params)[0]
    for mine, theirs in zip(output.outputs, want.outputs, strict=True):
        same(mine, theirs)
    consistent(output)


@pytest.mark.parametrize(("field", "case"), ALL, ids=[f"{field}-{index}" for index, (field, _) in enumerate(ALL)])
def test_the_parameter_is_heard(models: Models, field: str, case: dict[str, Any]) -> None:
    def answer(params: dict[str, Any]) -> Any:
        output = models.plain(PROMPT, SamplingParams(**params))
        return [(sample.token_ids, sample.text, sample.logprobs) for sample in output.outputs]

    without = {**BASE, **{key: value for key, value in case.items() if key != field}}
    assert (answer({**BASE, **case}) == answer(without)) == (field in HINTS)


@pytest.mark.parametrize("method", ["draft_model", "suffix tree"])
def test_everything_at_once(models: Models, method: str) -> None:
    params = SamplingParams(
        temperature=0.9,
        top_k=40,
        top_p=0.95,
        min_p=0.01,
        typical_p=0.98,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={50: 2.0},
        bad_words=["the", "ab"],
        min_tokens=9,
        max_tokens=60,
        seed=1,
        stop=["zzz"],
        stop_token_ids=[77],
        logprobs=4,
        n=2,
    )
    output = models.llm(VARIANTS[method] | {"num_speculative_tokens": 5}).generate(PROMPT, params)[0]
    for mine, theirs in zip(output.outputs, models.plain(PROMPT, params).outputs, strict=True):
        same(mine, theirs)


def test_without_a_seed_prompts_get_their_own_and_say_which(models: Models) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12)
    first, second = (models.fresh(seed=7) for _ in range(2))
    one, other = first.generate([PROMPT, PROMPT], params), second.generate([PROMPT, PROMPT], params)
    assert [output.outputs[0].token_ids for output in one] == [output.outputs[0].token_ids for output in other]
    assert one[0].outputs[0].token_ids != one[1].outputs[0].token_ids
    again = models.plain(PROMPT, params.model_copy(update={"seed": one[1].seed}))
    assert again.outputs[0].token_ids == one[1].outputs[0].token_ids
    different = models.fresh(seed=8).generate(PROMPT, params)[0]
    assert different.outputs[0].token_ids != one[0].outputs[0].token_ids


def test_logprobs_are_those_of_the_raw_law(models: Models) -> None:
    plain = models.plain(PROMPT, SamplingParams(temperature=0.0, max_tokens=3, logprobs=3)).outputs[0]
    edited = models.plain(
        PROMPT, SamplingParams(temperature=0.5, top_k=2, max_tokens=3, logprobs=3, seed=0, logit_bias={40: 50.0})
    ).outputs[0]
    assert plain.logprobs is not None
    assert edited.logprobs is not None
    top = [entry for entry in plain.logprobs[0].values() if entry.rank <= 3]
    assert all(entry in edited.logprobs[0].values() for entry in top)
    assert edited.logprobs[0][40].rank > 1
    assert len(edited.logprobs[0]) == 4
    assert plain.cumulative_logprob == sum(
        entry[token].logprob for entry, token in zip(plain.logprobs, plain.token_ids, strict=True)
    )
