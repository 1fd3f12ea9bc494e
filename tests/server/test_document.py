"""The OpenAPI document says what is answered: real answers fit it, and what it allows or forbids makes no fault."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.server import objects
from outrider.server.runner import Runner

ASKED = [{"role": "user", "content": "the ab and the cd"}]
FULL: dict[str, Any] = {"max_tokens": 6, "return_token_ids": True, "temperature": 1.0, "n": 2}


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/chat/completions", {"messages": ASKED, "max_tokens": 3}, objects.ChatCompletion),
        (
            "/v1/chat/completions",
            {"messages": ASKED, "logprobs": True, "top_logprobs": 2, "speculation": {"explain": True}, **FULL},
            objects.ChatCompletion,
        ),
        (
            "/v1/chat/completions",
            {"messages": ASKED, "max_tokens": 9, "speculation": {"metrics": "detailed"}},
            objects.ChatCompletion,
        ),
        ("/v1/completions", {"prompt": ["the", "ab"], "logprobs": 2, "echo": True, **FULL}, objects.Completion),
        ("/tokenize", {"prompt": "the ab", "return_token_strs": True}, objects.Tokens),
        ("/tokenize", {"messages": ASKED}, objects.Tokens),
        ("/detokenize", {"tokens": [5, 6]}, objects.Text),
        ("/v1/completions", {"prompt": ""}, objects.ErrorBody),
        ("/v1/completions", {"prompt": "the", "model": "other"}, objects.ErrorBody),
    ],
)
def test_answers_have_the_documented_shape(server: tuple[str, Runner], path: str, body: Any, kind: Any) -> None:
    answer = httpx.post(f"{server[0]}{path}", json=body)
    assert (answer.status_code == 200) == (kind is not objects.ErrorBody)
    kind.model_validate(answer.json(), strict=True)


def test_calls_and_reasoning_have_it_too() -> None:
    from outrider.server.answers import message
    from outrider.server.parsers.answer import Call, Part

    made = message("", Part(reasoning="So.", calls=[Call(0, "call_1", "f", "{}")]))
    objects.AnswerMessage.model_validate(made, strict=True)


def test_every_status_is_documented(server: tuple[str, Runner]) -> None:
    document = httpx.get(f"{server[0]}/openapi.json").json()
    for path in ("/v1/chat/completions", "/v1/completions"):
        responses = document["paths"][path]["post"]["responses"]
        assert set(responses) == {"200", "400", "401", "404", "408", "413", "429", "503", "default"}
        assert set(responses["200"]["content"]) == {"application/json", "text/event-stream"}
        for status in responses.keys() - {"200"}:
            schema = responses[status]["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorBody"}
    fields = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"type": "null"} in fields["n"]["anyOf"]
    assert {"type": "null"} not in fields["messages"].get("anyOf", [])


def test_nothing_that_can_be_asked_is_a_fault(server: tuple[str, Runner]) -> None:
    path = Path(__file__).resolve().parents[2] / "tools" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    fuzz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzz)
    wrong, statuses = fuzz.fuzz(server[0], cases=240, seed=0)
    assert wrong == []
    assert sum(sum(counts.values()) for counts in statuses.values()) >= 200
    assert sum(counts[200] for counts in statuses.values()) >= 10
    assert sum(counts[400] for counts in statuses.values()) >= 10
