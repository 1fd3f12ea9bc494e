"""Conversations as clients send them, and the text that the model's chat template makes of them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.errors import RequestError
from outrider.target.tokenizer import Tokenizer


class Body(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="forbid")


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class FunctionCall(Body):
    """What an assistant called. ``arguments``: JSON."""

    name: str
    arguments: str

    def plain(self) -> dict[str, Any]:
        """As chat templates take it: with arguments that are no text. Raises RequestError when they are no JSON."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            raise RequestError(
                f"tool_calls: the arguments of {self.name!r} are no JSON: send them as they came"
            ) from None
        if not isinstance(arguments, dict):
            raise RequestError(f"tool_calls: the arguments of {self.name!r} are no JSON object: send them as they came")
        return {"name": self.name, "arguments": arguments}


class ToolCall(Body):
    """A call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = Field(default=None, description="as it stands in a stream; the order counts")
    function: FunctionCall


class Function(Body):
    """A function that the model may call. ``parameters``: a JSON schema."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(default=None, description="true: the arguments of a forced call fit the schema anyway")


class Tool(Body):
    """A tool: a function."""

    type: Literal["function"]
    function: Function

    def plain(self) -> dict[str, Any]:
        """As chat templates take it."""
        given = {name: value for name, value in self.function if value is not None and name != "strict"}
        return {"type": self.type, "function": given}


class NamedFunction(Body):
    """A function by its name."""

    name: str


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class Message(Body):
    """A turn of a conversation. An assistant's may be sent back as it came."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = Field(default=None, description="of an assistant")
    tool_call_id: str | None = Field(default=None, description="of a tool: the call that it answers")
    reasoning_content: str | None = Field(default=None, description="for templates that read it")
    reasoning: str | None = Field(default=None, description="the same, by another name")
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[Any] | None = Field(default=None, max_length=0)

    @property
    def text(self) -> str:
        """Its content in one piece."""
        return "" if self.content is None else joined(self.content)

    def plain(self) -> dict[str, Any]:
        """As chat templates take it; a developer speaks as the system. Raises RequestError as ``FunctionCall`` does."""
        out: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        if self.name is not None:
            out["name"] = self.name
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            out["tool_calls"] = [_plain_call(call) for call in self.tool_calls]
        if reasoning := self.reasoning_content or self.reasoning:
            out["reasoning_content"] = reasoning
        return out


def _plain_call(call: ToolCall) -> dict[str, Any]:
    own = {} if call.id is None else {"id": call.id}
    return {**own, "type": call.type, "function": call.function.plain()}


class Templated(Body):
    """How a conversation is written down."""

    add_generation_prompt: bool = Field(default=True, description="end with the beginning of an assistant's turn")
    continue_final_message: bool = Field(default=False, description="leave the last message open, to be gone on with")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="further variables of the template")
    documents: list[dict[str, Any]] | None = Field(default=None, description="for templates that have documents")
    reasoning_effort: str | None = Field(default=None, description="for templates that read it")
    tools: list[Tool] | None = Field(default=None, description="functions that the model may call")

    @property
    def offered(self) -> list[Tool]:
        """The tools that the prompt shows."""
        return self.tools or []

    def render(self, tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
        """The conversation as text. Raises RequestError for what the template does not take."""
        if self.add_generation_prompt and self.continue_final_message:
            raise RequestError("continue_final_message: set add_generation_prompt to false beside it")
        variables: dict[str, Any] = dict(self.chat_template_kwargs or {})
        taken = set(inspect.signature(tokenizer.hf.apply_chat_template).parameters) | {"messages"}
        if own := sorted(taken.intersection(variables)):
            raise RequestError(f"chat_template_kwargs: {own[0]!r} is none of the template's own variables: remove it")
        for name in ("documents", "reasoning_effort"):
            if getattr(self, name) is not None:
                variables[name] = getattr(self, name)
        if self.offered:
            variables["tools"] = [tool.plain() for tool in self.offered]
        uses_tools = any(message.tool_calls or message.role == "tool" for message in messages)
        if (uses_tools or self.offered) and not reads(tokenizer, "tools"):
            raise RequestError(
                "tools: the model's chat template has none: serve a model that was trained to call tools"
            )
        if unread := [name for name in variables if not reads(tokenizer, name)]:
            raise RequestError(f"{unread[0]}: the model's chat template does not read it: leave it out")
        return tokenizer.render_chat(
            [message.plain() for message in messages],
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            **variables,
        )


def reads(tokenizer: Tokenizer, variable: str) -> bool:
    """Whether a chat template of the model names ``variable``."""
    return re.search(rf"(?<!\w){re.escape(variable)}(?!\w)", tokenizer.chat_template) is not None


def joined(content: str | list[TextPart]) -> str:
    """The text of a content."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
