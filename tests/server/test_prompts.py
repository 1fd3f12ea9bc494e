"""What a body's prompt is to the model: templates, special tokens, truncation, ids; and bodies that hold none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from outrider import LLM, SamplingParams
from outrider.server.runner import Runner
from server.conftest import serving, tiny

ASKED: list[Any] = [{"role": "user", "content": "the ab and the cd"}, {"role": "assistant", "content": "of the"}]
TEMPLATE = (
    "{% for message in messages %}the {{ message.content }} {% endfor %}"
    "{% if mood %}{{ mood }}{% endif %}{% if documents %}{{ documents[0].text }}{% endif %}"
    "{% if add_generation_prompt %}and{% endif %}"
)


@pytest.fixture(scope="module")
def templated(folder: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny target with a template that has variables."""
    copy = tmp_path_factory.mktemp("templated") / "target"
    shutil.copytree(folder, copy)
    (copy / "chat_template.jinja").write_text(TEMPLATE)
    return str(copy)


@pytest.fixture(scope="module")
def address(templated: str) -> Iterator[str]:
    """Of a server over it."""
    with serving(tiny(templated)) as (address, _):
        yield address


def ask(address: str, path: str, **body: Any) -> Any:
    """A whole answer."""
    answer = httpx.post(f"{address}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_tokens_go_there_and_back(server: tuple[str, Runner], plain: LLM) -> None:
    tokenizer, text = plain.get_tokenizer(), "the ab of the cd"
    got = ask(server[0], "/tokenize", prompt=text, return_token_strs=True)
    assert got["tokens"] == tokenizer.encode(text)
    assert got["count"] == len(got["tokens"])
    assert got["max_model_len"] == plain.max_model_len
    assert got["token_strs"] == [tokenizer.pieces[token] for token in got["tokens"]]
    bare = ask(server[0], "/tokenize", model="tiny", prompt=text, add_special_tokens=False)
    assert bare["tokens"] == tokenizer.encode(text, add_special_tokens=False)
    assert bare["token_strs"] is None
    assert ask(server[0], "/detokenize", tokens=bare["tokens"]) == {"prompt": text}
    assert ask(server[0], "/tokenize", messages=ASKED)["tokens"] == tokenizer.encode_chat(ASKED)


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ({}, "the ab and the cd the of the and"),
        ({"add_generation_prompt": False}, "the ab and the cd the of the "),
        ({"add_generation_prompt": False, "continue_final_message": True}, "the ab and the cd the of the"),
        ({"chat_template_kwargs": {"mood": "cd"}}, "the of the cdand"),
        ({"documents": [{"text": "ab"}]}, "the of the aband"),
    ],
)
def test_a_template_gets_what_the_body_says(address: str, templated: str, body: dict[str, Any], end: str) -> None:
    got = ask(address, "/tokenize", messages=ASKED, **body)
    assert ask(address, "/detokenize", tokens=got["tokens"])["prompt"].endswith(end)
    asked = {"messages": ASKED, "max_tokens": 4, "return_token_ids": True, **body}
    answer = ask(address, "/v1/chat/completions", **asked)
    assert answer["prompt_token_ids"] == got["tokens"]
    assert len(answer["choices"][0]["token_ids"]) == 4


def test_a_message_that_goes_on_is_echoed(address: str) -> None:
    body = {"messages": ASKED, "max_tokens": 6, "temperature": 0, "add_generation_prompt": False,
            "continue_final_message": True}  # fmt: skip
    bare = ask(address, "/v1/chat/completions", **body)["choices"][0]["message"]["content"]
    assert (
        ask(address, "/v1/chat/completions", **body, echo=True)["choices"][0]["message"]["content"] == "of the" + bare
    )
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none") as client:
        stream = client.chat.completions.create(
            model="tiny", messages=ASKED, max_tokens=6, temperature=0, stream=True,
            extra_body={"add_generation_prompt": False, "continue_final_message": True, "echo": True},
        )  # fmt: skip
        text = "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)
    assert text == "of the" + bare


@pytest.mark.parametrize(("limit", "kept"), [(3, 3), (1000, 20), (-1, 20)])
def test_a_prompt_keeps_its_last_tokens(server: tuple[str, Runner], plain: LLM, limit: int, kept: int) -> None:
    ids = [2 + index % 60 for index in range(20)]
    body = {"prompt": ids, "max_tokens": 5, "temperature": 0, "truncate_prompt_tokens": limit}
    answer = ask(server[0], "/v1/completions", **body, return_token_ids=True)
    assert answer["choices"][0]["prompt_token_ids"] == ids[-kept:]
    want = plain.generate(ids[-kept:], SamplingParams(max_tokens=5, temperature=0.0))[0].outputs[0].token_ids
    assert answer["choices"][0]["token_ids"] == want


def test_what_is_too_long_is_cut_so_that_the_answer_fits(server: tuple[str, Runner], plain: LLM) -> None:
    ids = [2 + index % 60 for index in range(plain.max_model_len + 9)]
    body = {"prompt": ids, "max_tokens": 7, "truncate_prompt_tokens": -1, "return_token_ids": True, "ignore_eos": True}
    (choice,) = ask(server[0], "/v1/completions", **body)["choices"]
    assert len(choice["prompt_token_ids"]) == plain.max_model_len - 7
    assert len(choice["token_ids"]) == 7


def test_tokens_may_be_named_by_their_ids(server: tuple[str, Runner]) -> None:
    body = {"max_tokens": 3, "return_tokens_as_token_ids": True, "return_token_ids": True}
    chat = ask(server[0], "/v1/chat/completions", messages=ASKED, logprobs=True, **body)["choices"][0]
    assert [entry["token"] for entry in chat["logprobs"]["content"]] == [f"token_id:{i}" for i in chat["token_ids"]]
    one = ask(server[0], "/v1/completions", prompt="the", logprobs=1, **body)["choices"][0]
    assert one["logprobs"]["tokens"] == [f"token_id:{token}" for token in one["token_ids"]]


@pytest.mark.parametrize("echo", [True, False])
def test_a_stream_has_the_ids_of_the_whole(client: openai.OpenAI, plain: LLM, echo: bool) -> None:
    more: Any = {"model": "tiny", "prompt": ["the ab", "of"], "max_tokens": 5, "seed": 1, "echo": echo}
    whole = client.completions.create(**more, extra_body={"return_token_ids": True})
    ids: dict[int, list[int]] = {0: [], 1: []}
    prompts: dict[int, list[int]] = {}
    for chunk in client.completions.create(**more, stream=True, extra_body={"return_token_ids": True}):
        for choice in chunk.choices:
            given = choice.model_extra or {}
            ids[choice.index] += given.get("token_ids", [])
            if "prompt_token_ids" in given:
                assert choice.index not in prompts
                prompts[choice.index] = given["prompt_token_ids"]
    for choice in whole.choices:
        assert (choice.token_ids, choice.prompt_token_ids) == (ids[choice.index], prompts[choice.index])  # type: ignore[attr-defined]


def test_fields_of_the_callers_own_change_nothing(client: openai.OpenAI, server: tuple[str, Runner]) -> None:
    more: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "messages": ASKED, "model": "tiny"}
    want = client.chat.completions.create(**more).choices[0].message.content
    noted = {"store": True, "metadata": {"a": "b"}, "service_tier": "auto", "user": "u", "safety_identifier": "s"}
    got = client.chat.completions.create(**more, **noted, modalities=["text"], extra_body={"request_id": "mine"})
    assert (got.choices[0].message.content, got.id) == (want, "chatcmpl-mine")
    nulls = dict.fromkeys(["n", "stream", "logprobs", "stop", "suffix", "functions", "presence_penalty", "audio"])
    assert ask(server[0], "/v1/chat/completions", **more, **nulls)["choices"][0]["message"]["content"] == want


@pytest.mark.parametrize(
    ("path", "body", "part"),
    [
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, "prompt is empty"),
        ("/v1/completions", {"prompt": ""}, "prompt: "),
        ("/v1/completions", {"prompt": ["the", ""]}, "prompt is empty"),
        ("/v1/completions", {"prompt": [5, 100000]}, "outside the vocabulary"),
        ("/v1/completions", {"prompt": [2**31]}, "prompt"),
        ("/v1/completions", {"prompt": "the", "n": 100000}, "n: "),
        ("/v1/completions", {"prompt": "\ud800"}, "prompt"),
        ("/v1/completions", {"prompt": "the", "suffix": "of"}, "suffix is refused: the model is not asked"),
        ("/v1/completions", {"prompt": "the", "best_of": 2}, "best_of is refused"),
        ("/v1/completions", {"prompt": ["the"] * 1000}, "send at most 528"),
        ("/v1/completions", {"prompt": "the", "guided_json": {}}, "use structured_outputs.json"),
        ("/v1/completions", {"prompt": "the", "use_beam_search": True}, "use_beam_search"),
        ("/v1/completions", {"prompt": "the", "truncate_prompt_tokens": 0}, "leaves no prompt"),
        ("/v1/completions", {"prompt": "the", "\ud800": 1}, "unicode"),
        ("/v1/chat/completions", {"messages": ASKED, "continue_final_message": True}, "add_generation_prompt"),
        ("/v1/chat/completions", {"messages": ASKED, "chat_template_kwargs": {"mod": 1}}, "mod: the model's chat"),
        ("/v1/chat/completions", {"messages": ASKED, "chat_template_kwargs": {"tokenize": 1}}, "'tokenize'"),
        ("/v1/chat/completions", {"messages": ASKED, "reasoning_effort": "low"}, "reasoning_effort"),
        ("/v1/chat/completions", {"messages": ASKED, "modalities": ["text", "audio"]}, "modalities"),
        ("/tokenize", {}, "either prompt or messages"),
        ("/tokenize", {"prompt": "the", "messages": ASKED}, "either prompt or messages"),
        ("/detokenize", {"tokens": [100000]}, "outside the vocabulary"),
    ],
)
def test_impossible_prompts_are_refused(address: str, path: str, body: dict[str, Any], part: str) -> None:
    answer = httpx.post(f"{address}{path}", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert part in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "ask", [{"prompt": "the " * 100_000}, {"messages": [{"role": "user", "content": "a" * 400_000}]}]
)
def test_an_endless_prompt_is_refused_before_it_is_tokenised(
    server: tuple[str, Runner], ask: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, runner = server
    monkeypatch.setattr(runner.llm.get_tokenizer(), "encode", lambda *args, **more: pytest.fail("tokenised"))
    answer = httpx.post(f"{address}/v1/{'chat/' if 'messages' in ask else ''}completions", json=ask)
    assert answer.status_code == 400
    assert "truncate_prompt_tokens" in answer.json()["error"]["message"]


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_has_its_limit(server: tuple[str, Runner], declared: bool) -> None:
    body = json.dumps({"prompt": "the " * 2_500_000}).encode()
    parts = (body[at : at + 65536] for at in range(0, len(body), 65536))
    answer = httpx.post(
        f"{server[0]}/v1/completions", content=body if declared else parts, headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 413
    assert "--max-request-bytes" in answer.json()["error"]["message"]


def test_bytes_that_are_no_text_are_refused(server: tuple[str, Runner]) -> None:
    for content in (b'{"prompt": "\xff\xfe"}', b"[" * 100_000, b'{"prompt": ' + b"9" * 10_000 + b"}"):
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(f"{server[0]}/v1/completions", content=content, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
