"""What clients send: OpenAI's fields, vLLM's further sampling parameters, and ours. Unknown fields are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from outrider.config import SpeculationParams, StructuredOutputs
from outrider.server.conversation import Body, Message, NamedTool, Templated, TextPart, Tool, joined

TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]

REFUSED = {  # fields that clients know from elsewhere, and why they are refused here
    "audio": "answers are text",
    "best_of": "samples are not ranked: use n, and choose among them",
    "chat_template": "the model's own is used",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "guided_choice": "use structured_outputs.choice",
    "guided_grammar": "use structured_outputs.grammar",
    "guided_json": "use structured_outputs.json",
    "guided_regex": "use structured_outputs.regex",
    "kv_transfer_params": "the cache is this server's own",
    "length_penalty": "it is one of beam search, which does not sample",
    "logits_processors": "no code is taken from requests; use logit_bias, bad_words or allowed_token_ids",
    "media_io_kwargs": "prompts are text",
    "mm_processor_kwargs": "prompts are text",
    "prompt_embeds": "give the prompt as text or token ids",
    "prompt_logprobs": "the prompt's own tokens are not scored",
    "suffix": "the model is not asked to fill in: write its fill-in form into the prompt",
    "verbosity": "say in a message how long the answer should be",
    "web_search_options": "the server reaches no other",
}


def _nullable(schema: dict[str, Any]) -> None:
    """Say in a JSON schema that null is the same as leaving a field out."""
    for name, one in schema["properties"].items():
        if name not in schema.get("required", ()) and {"type": "null"} not in one.get("anyOf", ()):
            told = {key: one.pop(key) for key in ("title", "description", "default") if key in one}
            schema["properties"][name] = {"anyOf": [one, {"type": "null"}], **told}


_NOTED = "for the caller's own records; it changes nothing"


class StreamOptions(Body):
    """``include_usage``: a last chunk says how many tokens there were; ``continuous_usage_stats``: every chunk says how
    many there are so far."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Prediction(Body):
    """OpenAI's predicted output: text that the answer is expected to hold, and drafted where it does."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """In one piece."""
        return joined(self.content)


class JsonSchema(Body):
    """A named schema. ``strict``: true or not, the answer follows it."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(default=True, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's way to ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Sampling(Body):
    """Fields that chats and completions share. Where one is left out, the model's generation config decides. null is
    the same as leaving a field out."""

    model_config = ConfigDict(json_schema_extra=_nullable)

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
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31, description="requests with lower ones are served first")
    cache_salt: str | None = Field(default=None, description="prompts of one salt share cached prefixes")
    timeout: float | None = Field(default=None, gt=0.0, le=86400.0, description="seconds until the request is ended")
    truncate_prompt_tokens: int | None = Field(
        default=None, ge=-1, description="the prompt's last tokens that count; -1: as many as leave room for the answer"
    )
    return_tokens_as_token_ids: bool = Field(default=False, description="logprobs name tokens as token_id:ID")
    return_token_ids: bool = Field(default=False, description="the answer holds the ids of prompt and answer")
    request_id: str | None = Field(
        default=None, max_length=256, description="part of the answer's id; None: a random one"
    )
    user: str | None = Field(default=None, description=_NOTED)
    safety_identifier: str | None = Field(default=None, description=_NOTED)
    metadata: dict[str, Any] | None = Field(default=None, description=_NOTED)
    store: bool | None = Field(default=None, description="nothing is stored, whatever is asked for")
    service_tier: str | None = Field(default=None, description="there is one tier")
    prompt_cache_key: str | None = Field(default=None, description="prefixes are cached in any case; see cache_salt")
    prompt_cache_retention: str | None = Field(default=None, description="prefixes are kept while there is room")
    use_beam_search: Literal[False] = Field(default=False, description="there is none")
    spaces_between_special_tokens: Literal[True] = Field(default=True, description="the tokenizer decides")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        required = {name for name, field in cls.model_fields.items() if field.is_required()}
        return {name: value for name, value in values.items() if value is not None or name in required}

    @property
    def wants_closing(self) -> bool:
        """Whether a stream ends with a chunk without choices: of its usage, and of the metrics that were asked for."""
        usage = self.stream_options is not None and self.stream_options.include_usage
        return usage or (self.speculation is not None and self.speculation.metrics not in (None, "none"))


class ChatRequest(Sampling, Templated):
    """``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=64)
    prediction: Prediction | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        default=None, description="auto: the model decides; none: the prompt shows no tools; else a call is forced"
    )
    parallel_tool_calls: bool | None = Field(default=None, description="false: the first call only")
    include_reasoning: bool = Field(default=True, description="false: reasoning is left out of the answer")
    modalities: list[Literal["text"]] | None = Field(default=None, min_length=1)
    add_special_tokens: bool = Field(default=False, description="those of the tokenizer, beside the template's own")
    echo: bool = Field(default=False, description="an assistant's last message stands before the answer to it")

    @property
    def offered(self) -> list[Tool]:
        """The tools that the prompt shows."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def forced(self) -> list[Tool]:
        """Those of which one must be called; empty where none must."""
        if isinstance(self.tool_choice, NamedTool):
            name = self.tool_choice.function.name
            return [tool for tool in self.offered if tool.function.name == name]
        return self.offered if self.tool_choice == "required" else []


class CompletionRequest(Sampling):
    """``POST /v1/completions``."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]] = Field(min_length=1)
    max_tokens: int | None = Field(default=16, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=64)
    echo: bool = False
    add_special_tokens: bool = Field(default=True, description="begin as the tokenizer begins a text")

    @property
    def prompts(self) -> list[str | list[int]]:
        """One by one."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        parts: list[Any] = self.prompt
        return [parts] if isinstance(parts[0], int) else parts


class TokenizeRequest(Templated):
    """``POST /tokenize``: of a text, or of a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    add_special_tokens: bool | None = Field(default=None, description="None: with a text, not with a conversation")
    return_token_strs: bool = Field(default=False, description="each token as the vocabulary spells it, too")


class DetokenizeRequest(Body):
    """``POST /detokenize``."""

    model: str | None = None
    tokens: list[TokenId]
