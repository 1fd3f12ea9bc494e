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
    reranked: bool = False  # its trees are grown by probability, unless told otherwise: for rules with shared noise
    needs_head: bool = False  # it drafts with a trained head, which ``DrafterContext.load_head`` gives it
    needs_target: bool = False  # it drafts with the target's own weights and cache, ``DrafterContext.target``
    needs_copy: bool = False  # it needs a copy of the target with narrower weights (``draft_dtype``)
    check_target: str = ""  # ``module:function`` called as ``function(config, facts)`` before the target's weights load
    members: Literal["none", "alternatives", "inner"] = "none"  # what the drafters that it is made of are to it
    laws: Sequence[LawName] = ("delta",)  # "delta" beside another: delta with shared noise, the other without
    required: Sequence[str] = ()  # options that have no usable default
    needs_prediction: bool = False  # it proposes nothing for requests without the output that the user expects
    needs_structure: bool = False  # it proposes nothing for requests without a structured output
    check_files: str | None = None  # ``module:function`` called as ``function(config)`` before any weights load
    expand: str = ""  # ``module:function`` called as ``function(config)``: its members, where the config names none


_TREE = ("tree", "tree_kind", "tree_nodes", "tree_depth", "tree_topk", "tree_min_gain", "tree_file")
_STOPS = ("draft_confidence_threshold", "draft_stop_rejection")


def _head(
    method: str,
    summary: str,
    file: str,
    paper: str,
    *,
    required: Sequence[str] = (),
    default_tokens: int = 4,
    reranked: bool = False,
) -> DrafterInfo:
    """The row of a method that drafts with a trained head; ``required``: the model, where none comes with us."""
    return DrafterInfo(
        method=method,
        summary=summary,
        factory=f"outrider.drafters.{file}:build",
        paper=paper,
        options=("model", "draft_dtype", "draft_temperature", *_TREE, *_STOPS),
        default_tokens=default_tokens,
        shapes=("chain", "tree"),
        needs_head=True,
        reranked=reranked,
        laws=("delta", "iid"),
        required=required,
    )


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
        method="rest",
        summary="continues the longest context found in a datastore of texts, by frequency (see `outrider index`)",
        factory="outrider.drafters.rest:build",
        paper="https://arxiv.org/abs/2311.08252",
        options=(
            "datastore",
            "rest_max_context",
            "rest_min_context",
            "rest_max_continuations",
            "rest_continuation_tokens",
            "rest_tree",
        ),
        default_tokens=16,
        shapes=("chain", "tree"),
        required=("datastore",),
        check_files="outrider.drafters.datastore:check",
    ),
    DrafterInfo(
        method="prediction",
        summary="follows the output that the user expects and finds its place again after a difference",
        factory="outrider.drafters.prediction:build",
        paper="https://platform.openai.com/docs/guides/predicted-outputs",
        options=(),
        default_tokens=16,
        needs_prediction=True,
    ),
    DrafterInfo(
        method="grammar",
        summary="what a structured output must say next: names and punctuation of a JSON schema, the end of a choice",
        factory="outrider.drafters.grammar:build",
        paper="https://github.com/guidance-ai/llguidance",
        options=(),
        default_tokens=16,
        needs_structure=True,
    ),
    DrafterInfo(
        method="draft_model",
        summary="a small language model, best with the target's vocabulary",
        factory="outrider.drafters.draft_model:build",
        paper="https://arxiv.org/abs/2211.17192",
        options=("model", "draft_dtype", "max_model_len", "vocabulary", *_TREE, "num_paths", *_STOPS),
        default_tokens=4,
        shapes=("chain", "tree"),
        needs_model=True,
        laws=("delta", "iid"),
        required=("model",),
    ),
    _head(
        "eagle3",
        "a trained head: one layer over the target's own hidden states (see `outrider train`)",
        "eagle",
        "https://arxiv.org/abs/2503.01840",
    ),
    _head(
        "eagle",
        "a trained layer that goes on with the target's last hidden state, and the target's own head",
        "eagle",
        "https://arxiv.org/abs/2401.15077",
        required=("model",),
    ),
    _head(
        "eagle2",
        "the same head, whose tree grows where it is sure",
        "eagle",
        "https://arxiv.org/abs/2406.16858",
        required=("model",),
        default_tokens=8,
        reranked=True,
    ),
    _head(
        "mtp",
        "a multi-token-prediction module of DeepSeek-V3's form, trained here or carried by the target's checkpoint",
        "eagle",
        "https://arxiv.org/abs/2412.19437",
    ),
    _head(
        "medusa",
        "trained heads, one a position, that do not see each other's tokens",
        "medusa",
        "https://arxiv.org/abs/2401.10774",
    ),
    _head(
        "hydra",
        "trained heads, one a position, that see the tokens of the draft",
        "medusa",
        "https://arxiv.org/abs/2402.05109",
    ),
    _head(
        "hydra_plus",
        "Hydra++: the same heads behind a layer that reads the target's hidden states of the whole text",
        "medusa",
        "https://arxiv.org/abs/2402.05109",
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
        method="hierarchical",
        summary="a small language model with a drafter of its own, to any depth",
        factory="outrider.drafters.hierarchical:build",
        paper="https://arxiv.org/abs/2404.11912",
        options=("model", "draft_dtype", "max_model_len", "drafter"),
        default_tokens=8,
        needs_model=True,
        members="inner",
        laws=("delta", "iid"),
        required=("model", "drafter"),
    ),
    DrafterInfo(
        method="token_recycling",
        summary="a tree of what the target thought likely after each token when it last met it",
        factory="outrider.drafters.token_recycling:build",
        paper="https://arxiv.org/abs/2408.08696",
        options=("token_recycling_topk", "tree"),
        default_tokens=20,
        shapes=("tree",),
    ),
    DrafterInfo(
        method="lookahead",
        summary="the target refines guesses of its future in spare rows; their n-grams are verified later",
        factory="outrider.drafters.lookahead:build",
        paper="https://arxiv.org/abs/2402.02057",
        options=("lookahead_window", "lookahead_ngram", "lookahead_guesses", "lookahead_pool_from_prompt"),
        default_tokens=12,
        shapes=("tree",),
    ),
    DrafterInfo(
        method="ouroboros",
        summary="a small language model that drafts by phrases, and more phrases behind its chain",
        factory="outrider.drafters.ouroboros:build",
        paper="https://arxiv.org/abs/2402.13720",
        options=(
            "model",
            "draft_dtype",
            "max_model_len",
            "ouroboros_phrases",
            "ouroboros_ngram",
            "ouroboros_keep_pool",
        ),
        default_tokens=6,
        shapes=("tree",),
        needs_model=True,
        required=("model",),
    ),
    DrafterInfo(
        method="layer_skip",
        summary="the target itself without some of its attention and MLP sublayers, or up to an early exit",
        factory="outrider.drafters.layer_skip:build",
        paper="https://arxiv.org/abs/2309.08168",
        options=("skip_attention_layers", "skip_mlp_layers", "exit_layer", "skip_file", "draft_stop_threshold"),
        default_tokens=4,
        needs_target=True,
        check_target="outrider.drafters.layer_skip:mask_for",
        laws=("delta", "iid"),
    ),
    DrafterInfo(
        method="self_quantized",
        summary="the target itself with its weights in a narrower format, over the target's own cache",
        factory="outrider.drafters.self_quantized:build",
        paper="https://arxiv.org/abs/2410.11305",
        options=("draft_dtype",),
        default_tokens=4,
        needs_target=True,
        needs_copy=True,
        check_target="outrider.drafters.self_quantized:format_for",
        laws=("delta", "iid"),
    ),
    DrafterInfo(
        method="merge",
        summary="joins the drafts of several drafters into one tree and keeps the likeliest nodes",
        factory="outrider.drafters.merge:build",
        paper="https://arxiv.org/abs/2603.27027",
        options=("drafters",),
        default_tokens=16,
        shapes=("tree",),
        members="alternatives",
        required=("drafters",),
    ),
    DrafterInfo(
        method="route",
        summary="asks whichever of several drafters promises most tokens per second, step by step or by task",
        factory="outrider.drafters.route:build",
        paper="https://arxiv.org/abs/2603.27027",
        options=("drafters", "route_by", "route_tasks"),
        default_tokens=16,
        members="alternatives",
        required=("drafters",),
    ),
    DrafterInfo(
        method="auto",
        summary="merge of all drafters that need no setting, and of a draft model where one is given",
        factory="outrider.drafters.auto:build",
        paper="https://arxiv.org/abs/2603.27027",
        options=("model", "draft_dtype", "max_model_len", "vocabulary"),
        default_tokens=16,
        shapes=("tree",),
        members="alternatives",
        expand="outrider.drafters.auto:members",
    ),
    DrafterInfo(
        method="synthetic",
        summary="is right with given rates about a known output, for tests and planning",
        factory="outrider.drafters.synthetic:build",
        paper="",
        options=("synthetic_acceptance_rates",),
        default_tokens=4,
        required=("synthetic_acceptance_rates",),
        needs_prediction=True,
    ),
)
