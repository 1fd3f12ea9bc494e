"""Settings, with vLLM's names where vLLM has one. Frozen; unknown keys are errors that list the valid ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from outrider.errors import ConfigError, did_you_mean

VerifierName = Literal["sample", "rejection", "block", "traversal", "kseq", "typical", "threshold"]
VocabularyName = Literal["auto", "same", "tli", "slem"]
TreeKind = Literal["widths", "comb", "static", "dynamic"]
MetricsLevel = Literal["none", "summary", "detailed"]
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
    def _names(cls) -> list[str]:
        return [field.alias or name for name, field in cls.model_fields.items()]

    @classmethod
    def _listing(cls) -> str:
        """What there is instead of an unknown setting."""
        return f"it has: {', '.join(cls._names())}"

    @classmethod
    def _explain(cls, error: ValidationError) -> str:
        parts = []
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"]) or cls.__name__
            if item["type"] == "extra_forbidden":
                hint = f"{did_you_mean(key, cls._names())} {cls._listing()}".lstrip()
                parts.append(f"{cls.__name__} has no setting {key!r}; {hint}")
            else:
                message = item["msg"].removeprefix("Value error, ")
                parts.append(message if not item["loc"] else f"{key}: {message} (given: {item['input']!r})")
        return "; ".join(parts)


class SpeculationParams(Settings):
    """Per-request speculation: off, another method among the loaded ones, another K, what is reported."""

    enabled: bool = True
    method: str | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=0, le=256)
    task: str = ""  # what kind of request it is, for `route`
    explain: bool = False  # say of every step what was drafted, accepted and rejected
    metrics: MetricsLevel | None = None  # of the request's acceptance; none: what the server was started with


class StructuredOutputs(Settings):
    """What the output must be: exactly one of ``json_schema`` (a JSON schema, as an object or as text), ``json_object``
    (any object), ``regex`` (all of the output matches), ``choice`` (one of these texts) and ``grammar`` (Lark or GBNF).

    JSON is spaced as Python's ``json.dumps`` does it; ``whitespace_pattern`` is a regular expression for other spacing.
    ``after``: the output is free until it has written this.
    """

    json_schema: dict[str, Any] | bool | str | None = Field(default=None, alias="json")
    json_object: bool = False
    regex: str | None = None
    choice: list[str] | None = Field(default=None, min_length=1)
    grammar: str | None = None
    whitespace_pattern: str | None = None
    after: str | None = Field(default=None, min_length=1)

    model_config = ConfigDict(validate_by_name=True)

    @model_validator(mode="after")
    def _one(self) -> Self:
        kinds = {"json": self.json_schema is not None, "json_object": self.json_object}
        kinds |= {name: getattr(self, name) is not None for name in ("regex", "choice", "grammar")}
        given = [name for name, there in kinds.items() if there]
        if len(given) != 1:
            raise ValueError(f"structured_outputs takes one of {', '.join(kinds)}; given: {', '.join(given) or 'none'}")
        if self.whitespace_pattern is not None and not given[0].startswith("json"):
            raise ValueError(f"whitespace_pattern is about JSON: leave it out beside {given[0]}")
        return self


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
    structured_outputs: StructuredOutputs | None = None
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)  # requests with lower ones are served first

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


class DraftModelSettings(Settings):
    """One of several draft models; what is left out is that of the config around it."""

    model: str
    draft_dtype: DtypeName | None = None
    max_model_len: int | None = Field(default=None, ge=2)


_DEFAULTS: dict[str, dict[str, Any]] = {  # where a method has its own
    "spectr": {"verifier": "kseq", "num_paths": 4},
    "eagle2": {"tree_kind": "dynamic"},
}
_OF_A_MODEL = (
    "num_speculative_tokens",
    *("tree", "tree_kind", "tree_nodes", "tree_depth", "tree_topk", "tree_min_gain", "tree_file"),
    *("draft_confidence_threshold", "draft_stop_rejection"),
)


class SpeculativeConfig(Settings):
    """What drafts and how it is verified; the keys are those of vLLM's ``--speculative-config``, and a few of ours."""

    @classmethod
    def _listing(cls) -> str:
        return "`outrider methods NAME` lists those of a method"

    method: str = Field(description="what drafts: an id that outrider methods lists")
    model: str | None = Field(default=None, description="the draft model: a known name, a folder, a file or a hub id")
    num_speculative_tokens: int | None = Field(
        default=None, ge=0, le=256, description="draft tokens a step (K), a path where there are several; none: planned"
    )
    verifier: VerifierName = Field(default="sample", description="the rule that decides over a draft")
    draft_dtype: DtypeName = Field(default="auto", description="weights of the draft model, as dtype for the target")
    max_model_len: int | None = Field(
        default=None, ge=2, description="context of the draft model; none: as long as its own"
    )
    models: list[str | DraftModelSettings] | None = Field(
        default=None, min_length=1, max_length=8, description="several draft models"
    )
    tree: list[int] | None = Field(default=None, description="a tree: children of a node by depth, such as [3, 2, 1]")
    tree_kind: TreeKind | None = Field(
        default=None, description="the tree's shape: widths, comb, static or dynamic; none: widths with a tree"
    )
    tree_nodes: int | None = Field(default=None, ge=1, le=256, description="nodes of a static or dynamic tree")
    tree_depth: int | None = Field(default=None, ge=1, le=64, description="levels of a comb, static or dynamic tree")
    tree_topk: int | None = Field(default=None, ge=1, le=64, description="children of a node of a comb or dynamic tree")
    tree_min_gain: float = Field(
        default=0.0, ge=0.0, description="dynamic: expected tokens that one more level must add"
    )
    tree_file: str | None = Field(default=None, description="static: acceptance by rank, from outrider tune tree")
    vocabulary: VocabularyName = Field(
        default="auto",
        description="how the draft model's vocabulary is tied to the target's; auto: same, else slem or tli",
    )
    num_paths: int = Field(default=1, ge=1, le=64, description="independent chains from the root")
    draft_confidence_threshold: float = Field(
        default=0.0, ge=0.0, le=1.0, description="a token less likely than this is the last of its path"
    )
    draft_stop_rejection: float | None = Field(
        default=None, gt=0.0, lt=1.0, description="or one behind which a rejection is likelier than this"
    )
    draft_temperature: float | None = Field(
        default=None, gt=0.0, le=10.0, description="divides a head's logits where tokens are sampled; none: its own"
    )
    prompt_lookup_max: int = Field(default=5, ge=1, le=64, description="longest n-gram that is looked up")
    prompt_lookup_min: int = Field(default=2, ge=1, le=64, description="shortest n-gram that is looked up")
    suffix_decoding_max_tree_depth: int = Field(
        default=24, ge=2, le=256, description="longest context that is looked up, in tokens"
    )
    suffix_decoding_max_cached_requests: int = Field(
        default=1000, ge=0, description="outputs of finished requests that are kept; 0: the request's own text only"
    )
    suffix_decoding_max_spec_factor: float = Field(
        default=1.0, gt=0.0, description="draft tokens at most, for every token of the context that was found"
    )
    suffix_decoding_min_token_prob: float = Field(
        default=0.1, ge=0.0, le=1.0, description="frequency along a path below which the draft ends"
    )
    suffix_decoding_tree: bool = Field(default=False, description="a tree of continuations instead of a chain")
    token_recycling_topk: int = Field(default=8, ge=1, le=64, description="next tokens that are kept for every token")
    lookahead_window: int = Field(default=5, ge=1, le=64, description="columns of guesses (W)")
    lookahead_ngram: int = Field(default=4, ge=2, le=16, description="tokens of an n-gram, the first one included (N)")
    lookahead_guesses: int = Field(default=5, ge=1, le=64, description="n-grams verified at a time (G)")
    lookahead_pool_from_prompt: bool = Field(
        default=True, description="the text's own n-grams too, not the window's alone"
    )
    ouroboros_phrases: int = Field(default=3, ge=1, le=64, description="branches behind the draft model's chain")
    ouroboros_ngram: int = Field(
        default=5, ge=2, le=16, description="tokens of a phrase, the one that it follows included"
    )
    ouroboros_keep_pool: bool = Field(
        default=True, description="phrases outlive their request, for those with the same cache salt"
    )
    datastore: str | list[str] | None = Field(default=None, description="folders that outrider index build wrote")
    rest_max_context: int = Field(default=16, ge=1, le=64, description="longest context that is looked up")
    rest_min_context: int = Field(default=1, ge=1, le=64, description="shortest context that is looked up")
    rest_max_continuations: int = Field(default=64, ge=1, le=4096, description="occurrences that are looked at")
    rest_continuation_tokens: int = Field(default=10, ge=1, le=64, description="tokens read after each occurrence")
    rest_tree: bool = Field(default=True, description="a tree of continuations; off: the most frequent as a chain")
    skip_attention_layers: list[int] | None = Field(
        default=None, description="layers that draft without their attention"
    )
    skip_mlp_layers: list[int] | None = Field(default=None, description="layers that draft without their MLP")
    exit_layer: int | None = Field(default=None, ge=1, description="layers that draft before the head")
    skip_file: str | None = Field(default=None, description="a set of sublayers that outrider tune layer_skip wrote")
    draft_stop_threshold: float | None = Field(
        default=None, ge=0.0, le=1.0, description="a token less likely than this is the draft's last; none: adapted"
    )
    route_by: Literal["confidence", "bandit"] = Field(
        default="confidence", description="what chooses: each step's promise, or what paid so far"
    )
    route_tasks: dict[str, str] | None = Field(
        default=None, description="the member that serves a request, by the request's task"
    )
    drafter: SpeculativeConfig | None = Field(default=None, description="a drafter of this drafter")
    drafters: list[SpeculativeConfig] | None = Field(
        default=None, min_length=1, description="the drafters that it chooses from or joins"
    )
    synthetic_acceptance_rates: list[float] | None = Field(
        default=None, description="conditional acceptance by position; as many as the longest draft has tokens"
    )
    typical_threshold: float = Field(
        default=0.09, gt=0.0, lt=1.0, description="probability above which a token is accepted, whatever the entropy"
    )
    typical_alpha: float = Field(
        default=0.3, gt=0.0, description="factor of exp(-entropy), which is the bar where the law is flat"
    )

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
        for width in self.tree or ():
            if width < 1:
                raise ValueError(f"tree={self.tree}: every depth needs one child or more")
        for key, value in _DEFAULTS.get(self.method, {}).items():
            if key not in self.model_fields_set:
                object.__setattr__(self, key, value)  # still counts as not given
        by_hand = (self.skip_attention_layers, self.skip_mlp_layers, self.exit_layer)
        if self.skip_file is not None and any(value is not None for value in by_hand):
            raise ValueError("skip_file holds a whole set of sublayers: leave skip_*_layers and exit_layer out")
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
        return [*(self.drafters or ()), *((self.drafter,) if self.drafter is not None else ()), *self._draft_models()]

    @property
    def num_chains(self) -> int:
        """Chains that are drafted side by side, each of ``num_speculative_tokens``."""
        return self.num_paths * len(self.models or (None,))

    def _draft_models(self) -> list[SpeculativeConfig]:
        """``models`` as configs of ``draft_model`` that draft the tree of this one."""
        common = {key: getattr(self, key) for key in _OF_A_MODEL if key in self.model_fields_set}
        out = []
        for item in self.models or ():
            one = DraftModelSettings(model=item) if isinstance(item, str) else item
            own: dict[str, Any] = {"draft_dtype": one.draft_dtype or self.draft_dtype}
            own["max_model_len"] = one.max_model_len or self.max_model_len
            out.append(SpeculativeConfig(method="draft_model", model=one.model, **own, **common))
        return out

    @classmethod
    def of(cls, value: Self | Mapping[str, Any] | None) -> Self | None:
        """The config from a mapping, itself, or None."""
        return cls(**value) if isinstance(value, Mapping) else value
