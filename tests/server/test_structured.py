"""OpenAI's client asks for JSON, and vLLM's fields for more: the text is valid, and that of plain decoding."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel, ConfigDict

from outrider import LLM, SamplingParams
from outrider.server.runner import Runner
from server.test_api import ASKED

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["ab", "cd"]}, "old": {"type": "boolean"}},
    "required": ["kind", "old"],
    "additionalProperties": False,
}
BY_SCHEMA = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_schema_is_followed(client: openai.OpenAI, plain: LLM, temperature: float) -> None:
    settings: dict[str, Any] = {"temperature": temperature, "seed": 3, "max_tokens": 60}
    answer = client.chat.completions.create(
        model="tiny",
        messages=ASKED,
        response_format=BY_SCHEMA,  # type: ignore[arg-type]
        **settings,
    )
    want = plain.chat(ASKED, SamplingParams(structured_outputs={"json": SCHEMA}, **settings))[0].outputs[0]
    assert answer.choices[0].message.content == want.text
    assert answer.choices[0].finish_reason == "stop"
    value = json.loads(want.text)
    assert value["kind"] in ("ab", "cd")
    assert isinstance(value["old"], bool)


def test_parsed_answers_and_streams(client: openai.OpenAI) -> None:
    class Thing(BaseModel):
        model_config = ConfigDict(extra="forbid")
        old: bool

    parsed = client.chat.completions.parse(model="tiny", messages=ASKED, response_format=Thing, max_tokens=60)
    assert isinstance(parsed.choices[0].message.parsed, Thing)
    stream = client.chat.completions.create(
        model="tiny",
        messages=ASKED,
        max_tokens=60,
        stream=True,
        response_format=BY_SCHEMA,  # type: ignore[arg-type]
    )
    assert json.loads("".join(chunk.choices[0].delta.content or "" for chunk in stream))["kind"] in ("ab", "cd")


@pytest.mark.parametrize(
    ("wanted", "texts"),
    [
        ({"choice": ["the ab", "of"]}, ("the ab", "of")),
        ({"regex": "(ab){2}"}, ("abab",)),
        ({"json": {"const": 1}}, ("1",)),
    ],
)
def test_structured_outputs_as_vllm_names_them(
    client: openai.OpenAI, wanted: dict[str, Any], texts: tuple[str, ...]
) -> None:
    asked = {"structured_outputs": wanted}
    assert client.completions.create(model="tiny", prompt="the", extra_body=asked).choices[0].text in texts


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema is missing"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": BY_SCHEMA, "structured_outputs": {"regex": "a"}}, "leave out one"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "takes one of"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}}, "type"),
    ],
)
def test_what_cannot_be_followed_is_refused(server: tuple[str, Runner], changes: dict[str, Any], part: str) -> None:
    answer = httpx.post(f"{server[0]}/v1/chat/completions", json={"messages": ASKED, **changes})
    assert answer.status_code == 400
    assert part in answer.json()["error"]["message"]
