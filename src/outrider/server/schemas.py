"""What clients send: OpenAI's fields, vLLM's further sampling parameters, and ours. Unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.config import SpeculationParams

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Body(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="forbid")


class StreamOptions(Body):
    """``include_usage``: a last chunk says how many tokens there were."""

    include_usage: bool = False


class TextPart(Body):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Prediction(Body):
    """OpenAI's predicted output: text that the answer is expected to hold, and drafted where it does."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """In one piece."""
        return joined(self.content)


class Sampling(Body):
    """Fields that chats and completions share. Where one is left out, the model's generation config decides."""

    model: str | None = Field(default=None, description="the served model; None: the only one")
    n: int = Field(default=1, ge=1, le=128)
    temperature: float | None = Field(default=None, ge=0.0, le=100.0)
    top_p: float | None = Field(default=None, gt=0.0, le=1.0)
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(default=None, ge=0.0, le=1.0)
    typical_p: float | None = Field(default=None, gt=0.0, le=1.0)
    repetition_penalty: float | None = Field(default=None, gt=0.0, le=10.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[TokenId] | None = None
    min_tokens: int = Field(default=0, ge=0)
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stream: bool = False
    stream_options: StreamOptions | None = None
    speculation: SpeculationParams | None = None
    cache_salt: str | None = Field(default=None, description="prompts of one salt share cached prefixes")
    timeout: float | None = Field(default=None, gt=0.0, le=86400.0, description="seconds until the request is ended")
    user: str | None = Field(default=None, description="for the caller's own records; it changes nothing")


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


class ChatRequest(Sampling):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=64)
    prediction: Prediction | None = None


class CompletionRequest(Sampling):
    """``POST /v1/completions``."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    max_tokens: int | None = Field(default=16, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=64)
    echo: bool = False

    @property
    def prompts(self) -> list[str | list[int]]:
        """One by one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        parts: list[Any] = self.prompt
        return [parts] if parts and isinstance(parts[0], int) else parts


def joined(content: str | list[TextPart]) -> str:
    """The text of a content."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
