"""SGLang: `python -m sglang.launch_server`. Read in `sglang/srt/arg_groups` of 0.5.23.

`--speculative-num-draft-tokens` counts the root: it is the nodes of a tree, or the tokens of a chain, and one more.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from outrider.errors import ConfigError
from outrider.export.base import Engine, Exported, flags, present
from outrider.export.deployment import Deployment
from outrider.export.trees import shape_of

ADAPTIVE = "sglang_adaptive.json"
_ALGORITHMS = {
    "ngram": "NGRAM",
    "draft_model": "STANDALONE",
    "eagle3": "EAGLE3",
    "eagle": "EAGLE",
    "eagle2": "EAGLE",
    "mtp": "NEXTN",
}
_TREE = ("tree", "tree_kind", "tree_nodes", "tree_depth", "tree_topk")
_TRIE = 18  # the default depth of its trie
_RUNNING = 48  # requests at a time that speculation is limited to, where nothing else is said


_OPTIONS = {
    "ngram": ("prompt_lookup_max", "prompt_lookup_min"),
    "draft_model": ("vocabulary", *_TREE),
    "eagle3": _TREE,
    "eagle": _TREE,
    "eagle2": _TREE,
    "mtp": _TREE,
}
_TAKES = {
    "": ("sample", "rejection", "block", "threshold"),
    "ngram": ("sample",),
    "draft_model": ("sample", "rejection", "threshold"),
}
_REASONS = {
    "medusa": "it has no Medusa heads",
    "hydra": "it has no Hydra heads",
    "hydra_plus": "it has no Hydra heads",
    "suffix": "its own tree of n-grams is method ngram",
    "rest": "it reads texts of its own format for method ngram (--speculative-ngram-external-corpus-path)",
}


class Sglang(Engine):
    """See the module."""

    name = "sglang"
    versions = ("0.5.23",)
    names = _ALGORITHMS
    options = _OPTIONS
    rules = _TAKES
    reasons = _REASONS
    schedules = ("eagle3", "eagle", "mtp")
    no_schedule = "its adaptive mode takes EAGLE, EAGLE3 and NEXTN only"
    head_layouts = ("sglang",)

    def convert(self, deployment: Deployment, out: Exported) -> None:
        """Flags, the same as a file for `--config`, and the file of the adaptive mode."""
        if deployment.method == "draft_model" and deployment.speculation.vocabulary not in ("auto", "same"):
            raise ConfigError(
                "vocabulary: sglang takes a draft model with the target's own vocabulary only, another one corrupts "
                "the text: use one that shares it, or vllm with vocabulary 'tli'"
            )
        spec: dict[str, Any] = {"speculative_algorithm": out.method}
        if deployment.method != "ngram" and not (deployment.method == "mtp" and deployment.speculation.model is None):
            spec["speculative_draft_model_path"] = deployment.model("a draft model or head")
        spec |= self._ngram(deployment, out) if deployment.method == "ngram" else self._numbers(deployment, out)
        spec |= self._rule(deployment, out)
        if deployment.load_schedule is not None:
            spec |= self._adaptive(deployment, out)
        serve = present({"context_length": deployment.max_model_len})
        if deployment.tensor_parallel_size > 1:
            serve["tp_size"] = deployment.tensor_parallel_size
        out.config = spec
        whole = {"model_path": deployment.public_target, **serve, **spec}
        out.command = ["python", "-m", "sglang.launch_server", *flags(whole)]
        dashed = {key.replace("_", "-"): value for key, value in whole.items()}
        out.files["sglang.yaml"] = yaml.safe_dump(dashed, sort_keys=False, width=1000)
        out.notes.append("the same as a file: python -m sglang.launch_server --config sglang.yaml")
        if "max_running_requests" not in spec:
            out.notes.append(
                f"with speculation it runs at most {_RUNNING} requests at a time: --max-running-requests raises that"
            )

    def _numbers(self, deployment: Deployment, out: Exported) -> dict[str, Any]:
        """All three are given: SGLang fills in none or all."""
        if deployment.branches or deployment.method == "eagle2":
            tree = shape_of(deployment, "sglang")
            out.notes.append(
                "a tree with pages of more than one token needs --attention-backend flashinfer, fa3 or triton; "
                "trtllm_mha takes chains only"
            )
            steps, topk, nodes = tree.depth, tree.topk, tree.nodes
        else:
            steps, topk, nodes = deployment.num_tokens, 1, deployment.num_tokens
        return {
            "speculative_num_steps": steps,
            "speculative_eagle_topk": topk,
            "speculative_num_draft_tokens": nodes + 1,
        }

    def _ngram(self, deployment: Deployment, out: Exported) -> dict[str, Any]:
        longest, tokens = deployment.speculation.prompt_lookup_max, deployment.num_tokens
        depth = longest + tokens
        out.notes.append("sglang looks up the longest n-gram that it finds; it has no shortest one")
        found = {
            "speculative_num_draft_tokens": tokens + 1,
            "speculative_ngram_min_bfs_breadth": 1,
            "speculative_ngram_max_bfs_breadth": 1,
        }
        return found | ({"speculative_ngram_max_trie_depth": depth} if depth > _TRIE else {})

    def _rule(self, deployment: Deployment, out: Exported) -> dict[str, Any]:
        verifier = deployment.speculation.verifier
        if verifier in ("rejection", "block") and (deployment.branches or deployment.method == "eagle2"):
            raise ConfigError(f"verifier {verifier!r} takes chains only in sglang: leave the tree out")
        if verifier == "rejection":
            return {"speculative_use_rejection_sampling": True}
        if verifier == "block":
            return {"speculative_use_rejection_sampling": True, "speculative_use_block_verification": True}
        if verifier == "threshold":
            out.notes.append("lossy: tokens over the threshold are taken whatever the target would have drawn")
            return {"speculative_accept_threshold_single": deployment.speculation.typical_threshold}
        return {}

    def _adaptive(self, deployment: Deployment, out: Exported) -> dict[str, Any]:
        """One candidate a slot, so that the batch alone decides; a slot begins at its key."""
        assert deployment.load_schedule is not None
        levels = deployment.load_schedule.levels
        slots = {str(level.first): {"candidate_steps": [level.num_tokens]} for level in levels}
        out.files[ADAPTIVE] = json.dumps(slots, indent=2) + "\n"
        out.notes.append("a batch counts as the size of the CUDA graph that it is padded to")
        out.notes.append(f"batches over {levels[-1].last} go on with {levels[-1].num_tokens} draft tokens")
        most = deployment.load_schedule.most
        found = {
            "speculative_num_steps": most,
            "speculative_num_draft_tokens": most + 1,
            "speculative_adaptive": True,
            "speculative_adaptive_config": ADAPTIVE,
        }
        return found | ({"max_running_requests": levels[-1].last} if levels[-1].last > _RUNNING else {})
