"""The rows of the table of drafters, as plain data: one row a method, beside its one file in this folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outrider.core.verifiers.table import LawName, Shape


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
    needs_model: bool = False  # it drafts with a model of its own, which ``DrafterContext.load_draft`` gives it
    members: Literal["none", "alternatives", "inner"] = "none"  # what the drafters that it is made of are to it
    laws: Sequence[LawName] = ("delta",)  # "delta" beside another: delta with shared noise, the other without
    required: Sequence[str] = ()  # options that have no usable default


_TREE = ("tree", "tree_kind", "tree_nodes", "tree_depth", "tree_topk", "tree_min_gain", "tree_file")
_STOPS = ("draft_confidence_threshold", "draft_stop_rejection")

ROWS = (
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
        options=("model", "draft_dtype", "max_model_len", *_TREE, "num_paths", *_STOPS),
        default_tokens=4,
        shapes=("chain", "tree"),
        needs_model=True,
        laws=("delta", "iid"),
        required=("model",),
    ),
    DrafterInfo(
        method="specinfer",
        summary="several small language models, whose drafts are joined in one tree",
        factory="outrider.drafters.specinfer:build",
        paper="https://arxiv.org/abs/2305.09781",
        options=("models", "draft_dtype", "max_model_len", *_TREE, *_STOPS),
        default_tokens=4,
        shapes=("chain", "tree"),
        members="inner",
        laws=("delta", "iid"),
        required=("models",),
    ),
    DrafterInfo(
        method="spectr",
        summary="several independent samples of a small language model's continuation, chosen among by k-SEQ",
        factory="outrider.drafters.spectr:build",
        paper="https://arxiv.org/abs/2310.15141",
        options=("model", "draft_dtype", "max_model_len", "num_paths", *_STOPS),
        default_tokens=4,
        shapes=("chain", "paths"),
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
