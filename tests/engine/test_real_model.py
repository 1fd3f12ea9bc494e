"""A few runs of the embedded default model: the same equalities at real sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.tiny import consistent, idle, same
from outrider import LLM, SamplingParams
from outrider.outputs import CompletionOutput

pytestmark = pytest.mark.real_model
TEXT = (
    "The outrider rides ahead of the carriage and looks at the road. When the road is good, the carriage follows. "
    "When the road is bad, the outrider turns round, and the carriage takes another road. "
)
LENGTHS = (16, 33, 513, 1200)
METHODS: list[dict[str, Any]] = [
    {"method": "ngram", "num_speculative_tokens": 5},
    {"method": "suffix", "suffix_decoding_tree": True},
    {"method": "token_recycling", "num_speculative_tokens": 12},
    {"method": "lookahead", "num_speculative_tokens": 8},
    {"method": "eagle3"},  # with the head that comes with us
    {"method": "ouroboros", "model": "smollm2-135m", "draft_dtype": "int8", "num_speculative_tokens": 3},
    {"method": "draft_model", "model": "smollm2-135m", "tree": [2, 1], "num_speculative_tokens": 4},
]


@pytest.fixture(scope="module")
def plain() -> Iterator[LLM]:
    with LLM("smollm2-135m", threads=1, max_model_len=2048, max_num_seqs=1, enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def asked(plain: LLM) -> list[list[int]]:
    tokens = plain.get_tokenizer().encode(TEXT * 30)
    return [tokens[:length] for length in LENGTHS]


def params(temperature: float, index: int) -> SamplingParams:
    return SamplingParams(max_tokens=12, temperature=temperature, seed=index, logprobs=2)


@pytest.fixture(scope="module")
def wanted(plain: LLM, asked: list[list[int]]) -> dict[float, list[CompletionOutput]]:
    if not plain.describe()["exact"]:
        pytest.skip(plain.describe()["exact_reason"])
    return {
        temperature: [
            plain.generate(prompt, params(temperature, index))[0].outputs[0] for index, prompt in enumerate(asked)
        ]
        for temperature in (0.0, 1.0)
    }


@pytest.mark.parametrize("config", METHODS, ids=[config["method"] for config in METHODS])
def test_prompts_up_to_1200_tokens(
    asked: list[list[int]], wanted: dict[float, list[CompletionOutput]], config: dict[str, Any]
) -> None:
    llm = LLM(
        "smollm2-135m",
        threads=1,
        max_model_len=2048,
        speculative_config=config,
        max_num_batched_tokens=200,
        kv_cache_tokens=2048,
        strict=True,
    )
    drafted = 0
    for temperature, answers in wanted.items():
        outputs = llm.generate(asked, [params(temperature, index) for index in range(len(asked))])
        for output, want in zip(outputs, answers, strict=True):
            same(output.outputs[0], want)
            consistent(output)
        drafted += sum(output.stats.num_draft_tokens for output in outputs)
    assert drafted > 0  # over both temperatures: where drafting does not pay for so many, it rests
    idle(llm)
