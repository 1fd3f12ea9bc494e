"""TensorRT-LLM: a YAML file for `trtllm-serve`. Read in `tensorrt_llm/llmapi/llm_args.py` of the 1.2 line and of main.

The two differ: from main on there is a suffix automaton, and `draft_len_schedule` maps the last batch size of a level
to its length, where 1.2 maps the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from outrider.errors import ConfigError
from outrider.export.base import Engine, Exported, present
from outrider.export.deployment import Deployment
from outrider.export.trees import shape_of

_TYPES = {"ngram": "NGram", "suffix": "SA", "draft_model": "Draft_Target", "eagle3": "Eagle3", "mtp": "MTP"}
_TREE = ("tree", "tree_kind", "tree_nodes", "tree_depth", "tree_topk")
_FILE = "trtllm.yaml"


_OPTIONS = {
    "ngram": ("prompt_lookup_max",),
    "draft_model": ("vocabulary",),
    "eagle3": _TREE,
    "mtp": (),
}
_TAKES = {"": ("sample",), "eagle3": ("sample", "rejection"), "mtp": ("sample", "rejection")}
_REASONS = {
    "medusa": "its PyTorch backend has no Medusa heads",
    "suffix": "its suffix automaton (SA) came after 1.2: use --engine-version main",
    "eagle": "its type Eagle means EAGLE-3 heads; those of the first EAGLE are not loaded",
    "eagle2": "its type Eagle means EAGLE-3 heads; those of the first EAGLE are not loaded",
}


class Trtllm(Engine):
    """See the module."""

    name = "trtllm"
    versions = ("1.2", "main")
    names = _TYPES
    options = _OPTIONS
    rules = _TAKES
    reasons = _REASONS
    schedules = ("ngram", "draft_model")
    no_schedule = "1.2 follows draft_len_schedule where a drafter of its own runs; --engine-version main follows it"
    head_layouts = ("sglang",)

    def able(self, version: str) -> Mapping[str, tuple[str, ...]]:
        """As in ``Engine``."""
        return self.options if version == "1.2" else {**self.options, "suffix": ()}

    def scheduled(self, version: str) -> tuple[str, ...]:
        """As in ``Engine``."""
        return self.schedules if version == "1.2" else ("ngram", "suffix", "draft_model", "eagle3", "mtp")

    def convert(self, deployment: Deployment, out: Exported) -> None:
        """Section `speculative_config` and what must stand beside it."""
        config: dict[str, Any] = {"decoding_type": out.method, "max_draft_len": deployment.num_tokens}
        config |= self._of_method(deployment, out)
        config |= self._rule(deployment, out)
        if deployment.load_schedule is not None:
            config["draft_len_schedule"] = self._schedule(deployment, out)
        whole: dict[str, Any] = {"speculative_config": config}
        if deployment.method in ("ngram", "draft_model"):
            whole["disable_overlap_scheduler"] = True
        out.config = config
        out.files[_FILE] = yaml.safe_dump(whole, sort_keys=False)
        serve: dict[str, Any] = present({"max_seq_len": deployment.max_model_len})
        if deployment.tensor_parallel_size > 1:
            serve["tp_size"] = deployment.tensor_parallel_size
        options = [word for key, value in serve.items() for word in (f"--{key}", str(value))]
        out.command = ["trtllm-serve", deployment.public_target, *options, "--config", _FILE]

    def _of_method(self, deployment: Deployment, out: Exported) -> dict[str, Any]:
        speculation, method = deployment.speculation, deployment.method
        if method == "ngram":
            out.notes.append("it has one longest n-gram and no shortest one; its pool is shared by all requests")
            return {"max_matching_ngram_size": speculation.prompt_lookup_max}
        if method == "suffix":
            return {"max_matching_ngram_size": -1, "enable_global_pool": True}
        if method == "mtp":
            if speculation.model is not None:
                raise ConfigError("mtp: trtllm reads the module of the target's own checkpoint; leave --head out")
            return {} if out.version == "main" else {"num_nextn_predict_layers": deployment.num_tokens}
        if speculation.vocabulary not in ("auto", "same"):
            raise ConfigError("vocabulary: trtllm takes draft models with the target's own only; vllm has 'tli'")
        found: dict[str, Any] = {"speculative_model": deployment.model("a draft model or head")}
        if method == "eagle3" and deployment.branches:
            tree = shape_of(deployment, "trtllm")
            found |= {"max_draft_len": tree.depth, "max_total_draft_tokens": tree.nodes}
            found |= {"use_dynamic_tree": True, "dynamic_tree_max_topK": tree.topk}
        return found

    def _rule(self, deployment: Deployment, out: Exported) -> dict[str, Any]:
        rejection = deployment.speculation.verifier == "rejection"
        if rejection and out.version == "1.2":
            raise ConfigError(
                "verifier 'rejection' came to trtllm after 1.2: use --engine-version main, or verifier 'sample'"
            )
        if rejection:
            return {"use_rejection_sampling": True}
        if out.version == "1.2" and deployment.temperature > 0 and deployment.method in ("eagle3", "mtp"):
            out.notes.append("temperatures over 0 need allow_advanced_sampling, which is set")
            return {"allow_advanced_sampling": True}
        return {}

    def _schedule(self, deployment: Deployment, out: Exported) -> dict[int, int]:
        assert deployment.load_schedule is not None
        levels = deployment.load_schedule.levels
        if levels[0].num_tokens != deployment.num_tokens:
            raise ConfigError(
                f"load schedule: trtllm wants the longest drafts, {deployment.num_tokens} tokens, at a batch of 1; "
                f"this one has {levels[0].num_tokens} there"
            )
        last = levels[-1]
        if out.version == "1.2":
            out.notes.append(f"batches over {last.last} go on with {last.num_tokens} draft tokens")
            return {level.first: level.num_tokens for level in levels}
        out.notes.append(f"batches over {last.last} draft as little as the engine can, by its version 0 or 1 token")
        return {level.last: level.num_tokens for level in levels}
