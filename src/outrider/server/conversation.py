"""Conversations as clients send them, and the text that the model's chat template makes of them."""

from __future__ import annotations

import inspect
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


class Message(Body):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None

    def plain(self) -> dict[str, Any]:
        """As chat templates take it; a developer speaks as the system."""
        role = "system" if self.role == "developer" else self.role
        out = {"role": role, "content": "" if self.content is None else joined(self.content)}
        return out | ({} if self.name is None else {"name": self.name})


class Templated(Body):
    """How a conversation is written down."""

    add_generation_prompt: bool = Field(default=True, description="end with the beginning of an assistant's turn")
    continue_final_message: bool = Field(default=False, description="leave the last message open, to be gone on with")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="further variables of the template")
    documents: list[dict[str, Any]] | None = Field(default=None, description="for templates that have documents")
    reasoning_effort: str | None = Field(default=None, description="for templates that read it")

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
