"""OpenAI's client against the server: what it gets is what the engine says offline, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from outrider import LLM, SamplingParams, __version__
from outrider.server.runner import Runner

ASKED: list[Any] = [
    {"role": "system", "content": "the ab of"},
    {"role": "user", "content": "the ab and the cd of the ab"},
]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "seed": 3, "top_p": 0.9, "extra_body": {"top_k": 20, "min_p": 0.01}},
    {"temperature": 1.0, "seed": 1, "n": 2, "presence_penalty": 0.5, "frequency_penalty": 0.2},
]


def offline(plain: LLM, settings: dict[str, Any], **more: Any) -> list[str]:
    """Plain decoding's texts for a client's ``settings``."""
    values = {key: value for key, value in settings.items() if key != "extra_body"} | settings.get("extra_body", {})
    output = plain.chat(ASKED, SamplingParams(max_tokens=24, **values, **more))[0]
    return [sample.text for sample in output.outputs]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("method", [None, "auto", "off"])
def test_a_chat_has_the_text_of_plain_decoding(
    client: openai.OpenAI, plain: LLM, settings: dict[str, Any], method: str | None
) -> None:
    speculation = {} if method is None else {"enabled": False} if method == "off" else {"method": method}
    body = settings.get("extra_body", {}) | ({"speculation": speculation} if speculation else {})
    asked = {**settings, "extra_body": body}
    answer = client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=24, **asked)
    assert [choice.message.content for choice in answer.choices] == offline(plain, settings)
    assert [choice.index for choice in answer.choices] == list(range(settings.get("n", 1)))
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 24 * settings.get("n", 1)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_stream_adds_up_to_the_whole(client: openai.OpenAI, plain: LLM, settings: dict[str, Any]) -> None:
    texts: dict[int, str] = {}
    reasons: dict[int, str | None] = {}
    usage = None
    stream = client.chat.completions.create(
        model="tiny", messages=ASKED, max_tokens=24, stream=True, stream_options={"include_usage": True}, **settings
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert choice.index not in reasons
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert [texts[index] for index in sorted(texts)] == offline(plain, settings)
    assert set(reasons.values()) == {"length"}
    assert usage is not None
    assert usage.completion_tokens == 24 * settings.get("n", 1)


def test_logprobs_are_those_of_the_engine(client: openai.OpenAI, plain: LLM) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=ASKED, max_tokens=12, temperature=1.0, seed=5, logprobs=True, top_logprobs=3
    )
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=5, logprobs=3)
    want = plain.chat(ASKED, params)[0].outputs[0]
    assert want.logprobs is not None
    got = answer.choices[0].logprobs
    assert got is not None
    assert got.content is not None
    for entry, token, law in zip(got.content, want.token_ids, want.logprobs, strict=True):
        assert entry.logprob == pytest.approx(law[token].logprob, abs=1e-4)
        assert bytes(entry.bytes or []).decode(errors="replace") == entry.token
        assert len(entry.top_logprobs) == 3
        best = sorted(law.values(), key=lambda each: each.rank)[:3]
        assert [each.logprob for each in entry.top_logprobs] == pytest.approx([b.logprob for b in best], abs=1e-4)


def test_completions_of_several_prompts_and_samples(client: openai.OpenAI, plain: LLM) -> None:
    prompts = ["the ab of the", "of the cd"]
    settings: dict[str, Any] = {"max_tokens": 10, "temperature": 1.0, "seed": 2, "n": 2}
    answer = client.completions.create(model="tiny", prompt=prompts, echo=True, logprobs=1, **settings)
    want = plain.generate(prompts, SamplingParams(**settings), use_tqdm=False)
    texts = [prompt + sample.text for prompt, each in zip(prompts, want, strict=True) for sample in each.outputs]
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    streamed = dict.fromkeys(range(4), "")
    for chunk in client.completions.create(model="tiny", prompt=prompts, echo=True, stream=True, **settings):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert list(streamed.values()) == texts


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"foo": 1}, "unknown field 'foo'"),
        ({"temperature": -1}, "temperature"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "role"),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "leave out max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options needs a stream"),
        ({"stream_options": {"usage": True}}, "unknown field 'stream_options.usage'"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"stop": ""}, "empty string"),
        ({"speculation": {"method": "nothing"}}, "is not loaded"),
        ({"messages": [{"role": "user", "content": "the ab " * 200}]}, "leaves no room"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(
    server: tuple[str, Runner], changes: dict[str, Any], part: str
) -> None:
    for stream in (False, True):
        body = {"model": "tiny", "messages": ASKED, "stream": stream, **changes}
        if stream and "stream_options" in changes:
            continue
        answer = httpx.post(f"{server[0]}/v1/chat/completions", json=body)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert part in error["message"]
        assert error["type"] == "invalid_request_error"
    assert server[1].num_requests == 0


def test_what_is_no_json_is_said_to_be_none(server: tuple[str, Runner]) -> None:
    for content, kind in (
        ("{bad", "application/json"),
        ('{"prompt": "the"}', "text/plain"),
        ("[]", "application/json"),
    ):
        answer = httpx.post(f"{server[0]}/v1/completions", content=content, headers={"Content-Type": kind})
        assert answer.status_code == 400
        assert "Content-Type: application/json" in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] is None


def test_other_models_and_paths_are_not_found(server: tuple[str, Runner], client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.chat.completions.create(model="other", messages=ASKED)
    lost = httpx.get(f"{server[0]}/v2").json()["error"]
    assert (lost["code"], lost["message"][:20]) == (404, "there is no /v2 here")
    wrong = httpx.get(f"{server[0]}/v1/completions").json()["error"]
    assert (wrong["code"], wrong["message"]) == (405, "/v1/completions takes POST, not GET")
    assert httpx.get(f"{server[0]}/health").json()["status"] == "ok"
    assert httpx.get(f"{server[0]}/ready").json() == {"ready": True}
    assert httpx.get(f"{server[0]}/version").json() == {"version": __version__}
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="is not served here"):
        client.models.retrieve("other")


def test_every_chunk_tells_the_seed(client: openai.OpenAI) -> None:
    chunks = list(client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=5, stream=True))
    (seed,) = {chunk.model_extra["seed"] for chunk in chunks if chunk.model_extra}
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    again = client.chat.completions.create(model="tiny", messages=ASKED, max_tokens=5, seed=seed)
    assert again.choices[0].message.content == text


def test_steps_are_told_when_asked_for(server: tuple[str, Runner]) -> None:
    body = {"messages": ASKED, "max_tokens": 24, "temperature": 0.0, "speculation": {"explain": True}}
    (choice,) = httpx.post(f"{server[0]}/v1/chat/completions", json=body).json()["choices"]
    steps = choice["outrider"]["steps"]
    assert "".join(token["text"] for step in steps for token in step["tokens"]) == choice["message"]["content"]
    assert sum(len(step["tokens"]) for step in steps) == 24
    assert sum(step["num_accepted"] for step in steps) == sum(t["drafted"] for s in steps for t in s["tokens"]) > 0
    assert sum(step["num_drafted"] for step in steps) > 0
    assert all(step["draft_seconds"] >= 0 and step["verify_seconds"] > 0 for step in steps)
    assert (steps[0]["prefill"], steps[1]["method"]) == (True, "suffix")
    with httpx.stream("POST", f"{server[0]}/v1/chat/completions", json={**body, "stream": True}) as answer:
        chunks = [json.loads(line[6:]) for line in answer.iter_lines() if line and not line.endswith("[DONE]")]
    told = [step for chunk in chunks[1:] for step in chunk["choices"][0]["outrider"]["steps"]]
    assert "".join(token["text"] for step in told for token in step["tokens"]) == choice["message"]["content"]
    plain = httpx.post(f"{server[0]}/v1/completions", json={"prompt": "the ab", "max_tokens": 2}).json()
    assert "outrider" not in plain["choices"][0]


def test_the_models_route_says_what_may_draft(server: tuple[str, Runner]) -> None:
    (model,) = httpx.get(f"{server[0]}/v1/models").json()["data"]
    assert [method["id"] for method in model["methods"]] == ["suffix", "prediction", "auto"]
    assert all(method["lossless"] and method["summary"] for method in model["methods"])
    assert model["chat"] is True
    assert model["sampling"]["temperature"] == 1.0
