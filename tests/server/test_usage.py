"""What answers say about their tokens: predictions, whole and so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from outrider import LLM, SamplingParams
from outrider.cli.serve import with_prediction
from outrider.config import SpeculativeConfig
from server.conftest import serving, tiny

ASKED: list[Any] = [{"role": "user", "content": "the ab and the cd of the ab"}]
METHODS: list[list[dict[str, Any]]] = [
    [{"method": "auto", "num_speculative_tokens": 4}],
    [{"method": "suffix"}, {"method": "prediction", "num_speculative_tokens": 4}],
    [{"method": "merge", "num_speculative_tokens": 4, "drafters": [{"method": "suffix"}, {"method": "prediction"}]}],
]


@pytest.fixture(scope="module", params=METHODS, ids=lambda configs: configs[0]["method"])
def client(folder: str, request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    """Of a server with other methods."""
    with (
        serving(tiny(folder, speculative_config=request.param)) as (address, _),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as opened,
    ):
        yield opened


def details(client: openai.OpenAI, prediction: str | None, **more: Any) -> tuple[str, int, int]:
    """An answer's text, and its accepted and rejected prediction tokens."""
    given = {} if prediction is None else {"prediction": {"type": "content", "content": prediction}}
    answer = client.chat.completions.create(
        model="tiny", messages=ASKED, max_tokens=24, temperature=0.0, **given, **more
    )
    assert answer.usage is not None
    counts = answer.usage.completion_tokens_details
    assert counts is not None
    assert counts.accepted_prediction_tokens is not None
    assert counts.rejected_prediction_tokens is not None
    return answer.choices[0].message.content or "", counts.accepted_prediction_tokens, counts.rejected_prediction_tokens


def test_a_prediction_is_drafted_where_no_method_is_named(client: openai.OpenAI, plain: LLM) -> None:
    want = plain.chat(ASKED, SamplingParams(max_tokens=24, temperature=0.0))[0].outputs[0].text
    assert details(client, None) == (want, 0, 0)
    text, accepted, _ = details(client, want)
    assert text == want
    assert 4 < accepted < 24
    half = want[: len(want) // 2]
    text, fewer, rejected = details(client, half + " of of of of of of of of of")
    assert text == want
    assert 0 < fewer < accepted
    assert rejected > 0
    assert details(client, want, extra_body={"speculation": {"enabled": False}}) == (want, 0, 0)


def test_a_method_that_reads_no_prediction_says_so(folder: str) -> None:
    with (
        serving(tiny(folder)) as (address, _),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.BadRequestError, match=r"prediction is not read by speculation\.method='suffix'"),
    ):
        details(client, "the", extra_body={"speculation": {"method": "suffix"}})


def test_serve_loads_a_method_for_predictions() -> None:
    def methods(*names: str) -> list[str]:
        return [config.method for config in with_prediction([SpeculativeConfig(method=name) for name in names])]

    assert methods("auto") == ["auto"]
    assert methods("suffix") == ["suffix", "prediction"]
    assert methods("ngram", "prediction") == ["ngram", "prediction"]


@pytest.mark.parametrize("chat", [True, False])
def test_a_stream_says_what_it_has_so_far(client: openai.OpenAI, chat: bool) -> None:
    options: Any = {"continuous_usage_stats": True, "include_usage": True}
    more: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 12,
        "n": 2,
        "stream": True,
        "stream_options": options,
        "extra_body": {"ignore_eos": True},
    }
    made = client.chat.completions.create(messages=ASKED, **more) if chat else None
    chunks: list[Any] = list(made or client.completions.create(prompt=["the ab", "of"], **more))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] == 12 * 2 * (1 if chat else 2)
    assert len({chunk.usage.prompt_tokens for chunk in chunks}) == 1
    assert all(c.usage.total_tokens == c.usage.prompt_tokens + c.usage.completion_tokens for c in chunks)
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(chunks) - 1) + [False]
