"""The table of drafters: one row a method. Command line, checks, benchmark, docs and conformance suite read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from outrider.config import SpeculativeConfig
from outrider.core.verifiers.table import RULES, LawName, Rule, Shape
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.drafters.base import Drafter  # it loads torch, and reading the table must stay quick


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """One method. ``factory``: ``module:function`` called as ``function(config, context) -> Drafter``."""

    method: str
    summary: str
    factory: str
    paper: str
    options: Sequence[str]  # keys of SpeculativeConfig that it reads, besides the common ones
    default_tokens: int  # num_speculative_tokens when the planner has no measurement yet
    shapes: Sequence[Shape] = ("chain",)
    needs_model: bool = False
    laws: Sequence[LawName] = ("delta",)  # "delta" beside another: delta with shared noise, the other without
    required: Sequence[str] = ()  # options that have no usable default


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What the engine tells a factory about the target. ``load_draft`` gives a model drafter its model."""

    vocab_size: int
    max_model_len: int
    eos_ids: frozenset[int]
    load_draft: Callable[[SpeculativeConfig], object] | None = None
    seed: int = 0
    cache_tokens: int = 0  # positions that a model drafter's own KV cache is to hold, for all sequences together


COMMON_OPTIONS = ("method", "num_speculative_tokens", "verifier")

_ROWS = (
    DrafterInfo(
        method="ngram",
        summary="copies what followed the last earlier occurrence of the context's last n tokens",
        factory="outrider.drafters.ngram:build",
        paper="https://github.com/apoorvumang/prompt-lookup-decoding",
        options=("prompt_lookup_max", "prompt_lookup_min"),
        default_tokens=8,
    ),
    DrafterInfo(
        method="suffix",
        summary="continues the longest context seen before, in this request or in finished ones, by frequency",
        factory="outrider.drafters.suffix:build",
        paper="https://arxiv.org/abs/2411.04975",
        options=(
            "suffix_decoding_max_tree_depth",
            "suffix_decoding_max_cached_requests",
            "suffix_decoding_max_spec_factor",
            "suffix_decoding_min_token_prob",
            "suffix_decoding_tree",
        ),
        default_tokens=16,
        shapes=("chain", "tree"),
    ),
    DrafterInfo(
        method="prediction",
        summary="follows the output that the user expects and finds its place again after a difference",
        factory="outrider.drafters.prediction:build",
        paper="https://platform.openai.com/docs/guides/predicted-outputs",
        options=(),
        default_tokens=16,
    ),
    DrafterInfo(
        method="draft_model",
        summary="a small language model with the target's vocabulary",
        factory="outrider.drafters.draft_model:build",
        paper="https://arxiv.org/abs/2211.17192",
        options=("model", "draft_dtype", "max_model_len", "tree", "num_paths"),
        default_tokens=4,
        shapes=("chain", "tree"),
        needs_model=True,
        laws=("delta", "iid"),
        required=("model",),
    ),
    DrafterInfo(
        method="synthetic",
        summary="is right with given rates about a known output, for tests and planning",
        factory="outrider.drafters.synthetic:build",
        paper="",
        options=("synthetic_acceptance_rates",),
        default_tokens=4,
        required=("synthetic_acceptance_rates",),
    ),
)
REGISTRY: dict[str, DrafterInfo] = {row.method: row for row in _ROWS}


_VERIFIER_OPTIONS = frozenset(option for rule in RULES.values() for option in rule.options)


def methods() -> list[str]:
    """Ids of all methods, in the order of the table."""
    return list(REGISTRY)


def info(method: str) -> DrafterInfo:
    """The row of ``method``. Raises ConfigError that lists the valid ids."""
    if method not in REGISTRY:
        raise ConfigError(f"method: no drafter is called {method!r}; choose one of: {', '.join(REGISTRY)}")
    return REGISTRY[method]


def check(config: SpeculativeConfig) -> DrafterInfo:
    """The row of a config that can work; needs no weights. Raises ConfigError for an unknown method, an option that
    nothing reads or that is missing, and a verifier that does not take what the method makes."""
    row = info(config.method)
    _check_options(row, config)
    check_verifier(row, config)
    return row


def build(config: SpeculativeConfig, context: DrafterContext) -> Drafter:
    """The drafter that ``config`` asks for. Raises ConfigError as ``check`` does."""
    row = check(config)
    module, _, function = row.factory.partition(":")
    drafter: Drafter = getattr(import_module(module), function)(config, context)
    return drafter


def check_verifier(row: DrafterInfo, config: SpeculativeConfig) -> None:
    """Raise ConfigError when ``config.verifier`` does not take the laws or the shape that the method makes."""
    rule = RULES[config.verifier]
    laws = laws_under(row, rule)
    if not set(laws) <= set(rule.laws):
        others = ", ".join(name for name, other in RULES.items() if set(laws_under(row, other)) <= set(other.laws))
        raise ConfigError(
            f"verifier: {config.verifier!r} takes {' or '.join(rule.laws)} drafts and method {row.method!r} makes "
            f"{' or '.join(laws)} drafts; choose one of: {others}"
        )
    option, shape = _shape_under(row, config, rule)
    if shape not in rule.shapes:
        remedy = "set num_paths instead of tree" if "paths" in rule.shapes else f"leave {option} out"
        takes = "independent chains" if "paths" in rule.shapes else "chains only"
        raise ConfigError(f"{option}: verifier {config.verifier!r} takes {takes}; {remedy}")


def laws_under(row: DrafterInfo, rule: Rule) -> Sequence[LawName]:
    """The laws of a method's edges: under a rule with shared noise all are delta if the method can."""
    if "delta" in row.laws and rule.shared_noise:
        return ("delta",)
    return tuple(law for law in row.laws if law != "delta") or ("delta",)


def _check_options(row: DrafterInfo, config: SpeculativeConfig) -> None:
    given = {key for key in config.model_fields_set if getattr(config, key) is not None}
    of_verifier = RULES[config.verifier].options
    for key in SpeculativeConfig.model_fields:
        if key not in given or key in COMMON_OPTIONS or key in row.options or key in of_verifier:
            continue
        if key in _VERIFIER_OPTIONS:
            readers = ", ".join(name for name, rule in RULES.items() if key in rule.options)
            raise ConfigError(f"setting {key} is not used by verifier {config.verifier!r}; it is used by: {readers}")
        reads = ", ".join(row.options) or "no setting of its own"
        raise ConfigError(f"setting {key} is not used by method {row.method!r}; {row.method} reads: {reads}")
    for key in row.required:
        if key not in given:
            raise ConfigError(f"{key}: method {row.method!r} needs it; set {key} in speculative_config")
    if config.tree is not None and config.num_paths > 1:
        raise ConfigError("tree: it has its own widths and does not go with num_paths; set one of the two")


def _shape_under(row: DrafterInfo, config: SpeculativeConfig, rule: Rule) -> tuple[str, Shape]:
    """The widest shape that this method's drafts take, and the option that makes it so."""
    branching: dict[str, bool] = {
        "tree": config.tree is not None and any(width > 1 for width in config.tree),
        "num_paths": config.num_paths > 1,
        "suffix_decoding_tree": config.suffix_decoding_tree,
    }
    if config.tree is not None and rule.merges_paths:
        return "tree", "tree"  # its widths are no paths, whatever they are
    option = next((option for option, on in branching.items() if on and option in row.options), None)
    if option is None:
        return "method", "chain"
    return option, "paths" if option == "num_paths" and rule.merges_paths else "tree"
