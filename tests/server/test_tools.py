"""Tool calls and reasoning through OpenAI's client, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from server.conftest import serving, tiny
from server.scripted import HERMES, scripted, with_template

ASKED: list[Any] = [{"role": "user", "content": "the ab"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("get_weather", "get_time")
]
TWO = (
    'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)
THOUGHT = f"<think>\nWhich city?\n</think>\n\n{TWO}"


@pytest.fixture(scope="module")
def hermes(folder: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny target with a template for tools."""
    return with_template(folder, tmp_path_factory.mktemp("hermes") / "target")


@contextmanager
def asking(folder: str, *texts: str, size: int = 4, **settings: Any) -> Iterator[openai.OpenAI]:
    """A client of a server that answers with ``texts``."""
    llm = scripted(tiny(folder), texts, size) if texts else tiny(folder)
    with (
        serving(llm, **settings) as (address, _),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def summed(stream: Any) -> tuple[dict[str, Any], set[str], Any]:
    """A streamed message as a client adds it up, its finish reasons and the last usage."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    reasons, usage = set(), None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_unset=True)
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content", "")
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({key: call[key] for key in ("id", "type", "function")})
                else:
                    assert set(call) == {"index", "function"}
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            reasons |= {choice.finish_reason} - {None}
    return message, reasons, usage


@pytest.mark.parametrize("size", [5, 7, 1000])
def test_calls_come_whole_and_streamed(hermes: str, size: int) -> None:
    more: dict[str, Any] = {"model": "tiny", "messages": ASKED, "tools": TOOLS, "max_tokens": 300}
    with asking(hermes, TWO, size=size) as client:
        answer = client.chat.completions.create(**more).choices[0]
        assert answer.finish_reason == "tool_calls"
        assert answer.message.content == "Let me see."
        assert answer.message.tool_calls is not None
        made = [(call.function.name, call.function.arguments) for call in answer.message.tool_calls]  # type: ignore[union-attr]
        assert made == [("get_weather", '{"city": "Zürich"}'), ("get_time", "{}")]
        ids = [call.id for call in answer.message.tool_calls]
        assert len(set(ids)) == 2
        message, reasons, _ = summed(client.chat.completions.create(**more, stream=True))
        assert reasons == {"tool_calls"}
        assert message["content"] == "Let me see."
        streamed = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
        assert streamed == made
        assert all(call["id"].startswith("call_") for call in message["tool_calls"])
        one = client.chat.completions.create(**more, parallel_tool_calls=False).choices[0].message
        assert one.tool_calls is not None
        assert len(one.tool_calls) == 1


def test_a_call_alone_has_no_content_and_goes_back_to_the_model(hermes: str) -> None:
    text = '<tool_call>{"name": "get_time", "arguments": {"zone": "the"}}</tool_call>'
    with asking(hermes, text) as client:
        more: dict[str, Any] = {"model": "tiny", "tools": TOOLS, "max_tokens": 300}
        message = client.chat.completions.create(messages=ASKED, **more).choices[0].message
        assert message.content is None
        assert message.tool_calls is not None
        back = [*ASKED, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "of the cd"}]
        again = client.chat.completions.create(messages=back, **more, extra_body={"return_token_ids": True})
        prompt = client.post("/../detokenize", body={"tokens": again.prompt_token_ids}, cast_to=object)["prompt"]  # type: ignore[attr-defined,index]
        assert "of the cd" in prompt


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_tools_are_shown_unless_none_may_be_called(hermes: str, choice: Any) -> None:
    more = {} if choice is None else {"tool_choice": choice}
    with asking(hermes, TWO) as client:
        answer = client.chat.completions.create(
            model="tiny", messages=ASKED, tools=TOOLS, max_tokens=300, **more, extra_body={"return_token_ids": True}
        )
        bare = client.chat.completions.create(
            model="tiny", messages=ASKED, max_tokens=300, extra_body={"return_token_ids": True}
        )
        shown = answer.prompt_token_ids != bare.prompt_token_ids  # type: ignore[attr-defined]
        assert shown == (choice != "none")
        assert (answer.choices[0].message.content == TWO) == (choice == "none")
        assert answer.choices[0].finish_reason == ("stop" if choice == "none" else "tool_calls")


@pytest.mark.parametrize("thinking", [True, False])
def test_reasoning_is_told_apart(folder: str, tmp_path: Any, thinking: bool) -> None:
    both = with_template(folder, tmp_path / "target", HERMES + "{# <think> </think> #}")
    text = THOUGHT.removeprefix("<think>") if thinking else THOUGHT
    body = {"chat_template_kwargs": {"thinking": thinking}}
    more: dict[str, Any] = {"model": "tiny", "messages": ASKED, "tools": TOOLS, "max_tokens": 300}
    with asking(both, text, size=8) as client:
        answer = client.chat.completions.create(**more, extra_body=body)
        message = answer.choices[0].message
        assert message.reasoning_content == "Which city?"  # type: ignore[attr-defined]
        assert message.reasoning == "Which city?"  # type: ignore[attr-defined]
        assert message.content == "Let me see."
        assert message.tool_calls is not None
        assert len(message.tool_calls) == 2
        streamed, reasons, _ = summed(client.chat.completions.create(**more, stream=True, extra_body=body))
        assert streamed["reasoning_content"] == "Which city?"
        assert streamed["content"] == "Let me see."
        assert len(streamed["tool_calls"]) == 2
        assert reasons == {"tool_calls"}
        hidden = client.chat.completions.create(**more, extra_body={**body, "include_reasoning": False})
        assert not hasattr(hidden.choices[0].message, "reasoning_content")
        assert hidden.choices[0].message.content == "Let me see."


def test_parsers_may_be_named_or_left_out(hermes: str) -> None:
    text = '{"name": "get_time", "parameters": {}}'
    with asking(hermes, text, tool_call_parser="llama3_json") as client:
        answer = client.chat.completions.create(model="tiny", messages=ASKED, tools=TOOLS, max_tokens=300)
        assert answer.choices[0].finish_reason == "tool_calls"
    with (
        asking(hermes, tool_call_parser="none") as client,
        pytest.raises(openai.BadRequestError, match="--tool-call-parser"),
    ):
        client.chat.completions.create(model="tiny", messages=ASKED, tools=TOOLS)


def test_a_model_without_tools_says_so(folder: str, client: openai.OpenAI) -> None:
    more: Any = {"model": "tiny", "messages": ASKED}
    with pytest.raises(openai.BadRequestError, match="chat template has none"):
        client.chat.completions.create(**more, tools=TOOLS)
    with pytest.raises(openai.BadRequestError, match="tool_choice needs tools"):
        client.chat.completions.create(**more, tool_choice="auto")
    back: Any = [*ASKED, {"role": "tool", "content": "x", "tool_call_id": "a"}]
    with pytest.raises(openai.BadRequestError, match="chat template has none"):
        client.chat.completions.create(model="tiny", messages=back)


@pytest.mark.parametrize("arguments", ["{", "[1]"])
def test_calls_that_are_sent_back_must_be_json(hermes: str, arguments: str) -> None:
    call: Any = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": arguments}}
    with asking(hermes) as client, pytest.raises(openai.BadRequestError, match="send them as they came"):
        client.chat.completions.create(
            model="tiny", messages=[*ASKED, {"role": "assistant", "tool_calls": [call]}], tools=TOOLS
        )


FORCED: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"x": {"enum": ["ab", "cd"]}},
                "required": ["x"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("f", "g")
]
SHORT = "{% if tools %}the {% endif %}{{ messages[0].content }}"
NEWER = SHORT + "{# [TOOL_CALLS] [ARGS] #}"


@pytest.mark.parametrize("kind", ["hermes", "llama3_json", "mistral", "newer mistral"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "g"}}])
def test_a_forced_call_is_made(folder: str, tmp_path: Any, kind: str, choice: Any) -> None:
    template = NEWER if kind.startswith("newer") else SHORT
    more: dict[str, Any] = {"model": "tiny", "messages": ASKED, "tools": FORCED, "tool_choice": choice}
    more |= {"temperature": 1.0, "max_tokens": 90, "parallel_tool_calls": False}
    names = set()
    with asking(with_template(folder, tmp_path / "target", template), tool_call_parser=kind.split()[-1]) as client:
        for seed in range(4):
            answer = client.chat.completions.create(**more, seed=seed).choices[0]
            assert answer.finish_reason == "tool_calls"
            assert answer.message.content is None
            assert answer.message.tool_calls is not None
            (call,) = answer.message.tool_calls
            assert json.loads(call.function.arguments)["x"] in ("ab", "cd")  # type: ignore[union-attr]
            names.add(call.function.name)  # type: ignore[union-attr]
            streamed, reasons, _ = summed(client.chat.completions.create(**more, seed=seed, stream=True))
            assert reasons == {"tool_calls"}
            assert streamed["tool_calls"][0]["function"] == call.function.model_dump()  # type: ignore[union-attr]
    assert names == ({"f", "g"} if choice == "required" else {"g"})


def test_several_calls_may_be_forced(folder: str, tmp_path: Any) -> None:
    more: dict[str, Any] = {"model": "tiny", "messages": ASKED, "tools": FORCED, "tool_choice": "required"}
    with asking(with_template(folder, tmp_path / "target", SHORT), tool_call_parser="llama3_json") as client:
        counts = set()
        for seed in range(8):
            answer = client.chat.completions.create(**more, seed=seed, temperature=1.0, max_tokens=90).choices[0]
            assert answer.message.tool_calls is not None
            counts.add(len(answer.message.tool_calls))
        assert 0 not in counts
        assert max(counts) > 1


def test_what_is_structured_begins_behind_the_reasoning(folder: str, tmp_path: Any) -> None:
    both = with_template(folder, tmp_path / "target", HERMES + "{# <think> </think> #}")
    with asking(both) as client:
        answer = client.chat.completions.create(
            model="tiny", messages=ASKED, temperature=1.0, seed=1, max_tokens=90,
            extra_body={
                "chat_template_kwargs": {"thinking": True},
                "structured_outputs": {"regex": "(ab){2}"},
                "logit_bias": {},
            },
        )  # fmt: skip
        message = answer.choices[0].message
        assert message.content in (None, "abab")
        assert message.reasoning_content  # type: ignore[attr-defined]
        usage = answer.usage
        assert usage is not None
        assert usage.completion_tokens_details is not None
        assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) <= usage.completion_tokens


def test_what_cannot_be_forced_is_refused(hermes: str) -> None:
    more: Any = {"model": "tiny", "messages": ASKED, "tools": FORCED}
    with asking(hermes) as client:
        with pytest.raises(openai.BadRequestError, match="'h' is none of the tools"):
            client.chat.completions.create(**more, tool_choice={"type": "function", "function": {"name": "h"}})
        with pytest.raises(openai.BadRequestError, match="asked for together"):
            client.chat.completions.create(**more, response_format={"type": "json_object"})
        bad: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}]
        with pytest.raises(openai.BadRequestError, match="structured_outputs"):
            client.chat.completions.create(model="tiny", messages=ASKED, tools=bad, tool_choice="required")
    with asking(hermes, tool_call_parser="pythonic") as client, pytest.raises(openai.BadRequestError, match="use auto"):
        client.chat.completions.create(**more, tool_choice="required")
