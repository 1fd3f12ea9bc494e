"""Settings, with vLLM's names where vLLM has one. Frozen; unknown keys are errors that list the valid ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from outrider.errors import ConfigError

VerifierName = Literal["sample", "rejection", "block", "traversal", "kseq", "typical", "threshold"]
DtypeName = Literal["auto", "float32", "float16", "bfloat16", "int8", "int4", "gguf"]


class Settings(BaseModel):
    """Frozen settings whose validation errors are one-line ConfigErrors."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(self._explain(error)) from None

    @classmethod
    def _explain(cls, error: ValidationError) -> str:
        parts = []
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"]) or cls.__name__
            if item["type"] == "extra_forbidden":
                parts.append(f"{cls.__name__} has no setting {key!r}; it has: {', '.join(cls.model_fields)}")
            else:
                message = item["msg"].removeprefix("Value error, ")
                parts.append(message if not item["loc"] else f"{key}: {message} (given: {item['input']!r})")
        return "; ".join(parts)


class SpeculationParams(Settings):
    """Per-request speculation: off, another method among the loaded ones, or another K."""

    enabled: bool = True
    method: str | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=0, le=256)


class SamplingParams(Settings):
    """How one prompt is answered. Names, defaults and the order of the pipeline are vLLM's."""

    n: int = Field(default=1, ge=1, le=1024)
    temperature: float = Field(default=1.0, ge=0.0, le=100.0)
    top_k: int = Field(default=0, ge=-1)  # 0 and -1: off
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    typical_p: float = Field(default=1.0, gt=0.0, le=1.0)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=10.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    min_tokens: int = Field(default=0, ge=0)
    max_tokens: int | None = Field(default=16, ge=1)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    logprobs: int | None = Field(default=None, ge=0, le=64)
    seed: int | None = None
    prediction: str | list[int] | None = None  # the text (or tokens) that the user expects, for `prediction`
    speculation: SpeculationParams | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens={self.min_tokens} is over max_tokens={self.max_tokens}: lower min_tokens")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ValueError("allowed_token_ids is empty: name at least one token or leave it out")
        if any(not text for text in self.stop_strings):
            raise ValueError("stop holds an empty string: it would stop at once; remove it")
        return self

    @property
    def stop_strings(self) -> Sequence[str]:
        """``stop`` as a list."""
        if self.stop is None:
            return ()
        return [self.stop] if isinstance(self.stop, str) else self.stop


class SpeculativeConfig(Settings):
    """What drafts and how it is verified; the keys are those of vLLM's ``--speculative-config``, and a few of ours."""

    method: str
    model: str | None = None  # the draft model
    num_speculative_tokens: int | None = Field(default=None, ge=0, le=256)  # None: the planner decides, step by step
    verifier: VerifierName = "sample"
    draft_dtype: DtypeName = "auto"
    max_model_len: int | None = Field(default=None, ge=2)  # the draft model's context
    tree: list[int] | None = None  # draft_model: children per depth, e.g. [3, 2, 1]
    num_paths: int = Field(default=1, ge=1, le=64)  # draft_model: K iid chains (kseq)
    prompt_lookup_max: int = Field(default=5, ge=1, le=64)
    prompt_lookup_min: int = Field(default=2, ge=1, le=64)
    suffix_decoding_max_tree_depth: int = Field(default=24, ge=2, le=256)
    suffix_decoding_max_cached_requests: int = Field(default=1000, ge=0)
    suffix_decoding_max_spec_factor: float = Field(default=1.0, gt=0.0)
    suffix_decoding_min_token_prob: float = Field(default=0.1, ge=0.0, le=1.0)
    suffix_decoding_tree: bool = False  # propose a tree of continuations instead of a chain
    datastore: str | list[str] | None = None  # rest: folders that `outrider index build` wrote
    rest_max_context: int = Field(default=16, ge=1, le=64)
    rest_min_context: int = Field(default=1, ge=1, le=64)
    rest_max_continuations: int = Field(default=64, ge=1, le=4096)  # occurrences that are looked at
    rest_continuation_tokens: int = Field(default=10, ge=1, le=64)
    rest_tree: bool = True  # False: the most frequent continuation as a chain
    drafter: SpeculativeConfig | None = None  # a drafter of this drafter
    drafters: list[SpeculativeConfig] | None = None  # the drafters that it chooses from or joins
    synthetic_acceptance_rates: list[float] | None = None  # conditional, by position
    typical_threshold: float = Field(default=0.09, gt=0.0, lt=1.0)  # epsilon of `typical` and `threshold`
    typical_alpha: float = Field(default=0.3, gt=0.0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min={self.prompt_lookup_min} is over prompt_lookup_max={self.prompt_lookup_max}"
            )
        if self.rest_min_context > self.rest_max_context:
            raise ValueError(
                f"rest_min_context={self.rest_min_context} is over rest_max_context={self.rest_max_context}"
            )
        if self.datastore is not None and not (self.datastores and all(self.datastores)):
            what = "holds an empty path" if self.datastores else "names no folder"
            raise ValueError(f"datastore {what}: give folders that `outrider index build` wrote")
        return self

    @property
    def datastores(self) -> Sequence[str]:
        """``datastore`` as a list."""
        if self.datastore is None:
            return ()
        return [self.datastore] if isinstance(self.datastore, str) else self.datastore

    @property
    def members(self) -> Sequence[SpeculativeConfig]:
        """The drafters within this one."""
        return [*(self.drafters or ()), *((self.drafter,) if self.drafter is not None else ())]

    @classmethod
    def of(cls, value: Self | Mapping[str, Any] | None) -> Self | None:
        """The config from a mapping, itself, or None."""
        return cls(**value) if isinstance(value, Mapping) else value
