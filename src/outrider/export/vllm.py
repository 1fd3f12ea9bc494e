"""vLLM: `vllm serve TARGET --speculative-config JSON`. Read in `vllm/config/speculative.py` of 0.33.0."""

from __future__ import annotations

from typing import Any

import yaml

from outrider.errors import ConfigError
from outrider.export.base import Engine, Exported, compact, flags, present
from outrider.export.deployment import Deployment

_RULES: dict[str, dict[str, Any]] = {  # of drafts with laws
    "sample": {},
    "rejection": {"draft_sample_method": "probabilistic"},
    "block": {"rejection_sample_method": "block", "draft_sample_method": "probabilistic"},
}
_SUFFIX = (
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
)


_OPTIONS = {
    "ngram": ("prompt_lookup_max", "prompt_lookup_min"),
    "suffix": _SUFFIX,
    "draft_model": ("max_model_len", "vocabulary"),
    "eagle3": (),
    "eagle": (),
    "mtp": (),
}
_NAMES = {method: method for method in _OPTIONS}  # its ids are ours
_TAKES = {"": ("sample", "rejection", "block"), "ngram": ("sample", "rejection"), "suffix": ("sample", "rejection")}
_REASONS = {
    "medusa": "vLLM removed medusa with 0.33",
    "hydra": "it knows no Hydra heads, and removed Medusa's with 0.33",
    "hydra_plus": "it knows no Hydra heads, and removed Medusa's with 0.33",
    "eagle2": "it verifies chains, trees were removed",
    "synthetic": "rejection_sample_method synthetic accepts at given rates, but what a real drafter drafts",
}


class Vllm(Engine):
    """See the module."""

    name = "vllm"
    versions = ("0.33.0",)
    names = _NAMES
    options = _OPTIONS
    rules = _TAKES
    reasons = _REASONS
    schedules = ("ngram", "draft_model", "eagle3", "eagle", "mtp")
    no_schedule = "its first model runner falls back to one number of tokens for this method"
    head_layouts = ("vllm", "sglang", "speculators")

    def convert(self, deployment: Deployment, out: Exported) -> None:
        """One JSON object, and the same as a file for `--config`."""
        config = present({"method": deployment.method, "num_speculative_tokens": deployment.num_tokens})
        config |= self._of_method(deployment, out)
        if deployment.method not in ("ngram", "suffix"):
            config |= _RULES[deployment.speculation.verifier]
        if deployment.load_schedule is not None:
            config["num_speculative_tokens_per_batch_size"] = deployment.load_schedule.rows()
            last = deployment.load_schedule.levels[-1]
            out.notes.append(f"batches over {last.last} go on with {last.num_tokens} draft tokens")
            out.notes.append("with data parallelism vllm ignores the load schedule")
        self._tell_rule(deployment, config, out)
        out.config = config
        serve = present({"max_model_len": deployment.max_model_len})
        if deployment.tensor_parallel_size > 1:
            serve["tensor_parallel_size"] = deployment.tensor_parallel_size
        target = deployment.public_target
        out.command = ["vllm", "serve", target, *flags(serve), "--speculative-config", compact(config)]
        whole = {"model": target, **serve, "speculative_config": config}
        whole = {key.replace("_", "-"): value for key, value in whole.items()}
        out.files["vllm.yaml"] = yaml.safe_dump(whole, sort_keys=False, default_flow_style=None, width=1000)
        out.notes.append("the same as a file: vllm serve --config vllm.yaml")

    def _of_method(self, deployment: Deployment, out: Exported) -> dict[str, Any]:
        speculation, method = deployment.speculation, deployment.method
        if method == "ngram":
            return {key: getattr(speculation, key) for key in ("prompt_lookup_min", "prompt_lookup_max")}
        if method == "suffix":
            out.before.append(["pip", "install", "arctic-inference==0.1.1"])
            return {key: getattr(speculation, key) for key in _SUFFIX}
        if method == "mtp" and speculation.model is None:
            return {}
        found: dict[str, Any] = {"model": deployment.model("a draft model or head")}
        if method == "draft_model":
            found |= present({"max_model_len": speculation.max_model_len})
            found |= self._vocabulary(deployment)
        return found

    def _vocabulary(self, deployment: Deployment) -> dict[str, Any]:
        name = deployment.speculation.vocabulary
        if name == "slem":
            raise ConfigError("vocabulary 'slem' has no counterpart in vllm; the nearest is 'tli'")
        if name != "tli":
            return {}
        if deployment.speculation.verifier != "sample":
            raise ConfigError("vocabulary 'tli' goes with greedy drafts in vllm: set verifier to 'sample'")
        return {"use_heterogeneous_vocab": True}

    def _tell_rule(self, deployment: Deployment, config: dict[str, Any], out: Exported) -> None:
        if deployment.temperature > 0 and "draft_sample_method" not in config and deployment.method != "suffix":
            out.notes.append(
                "vllm's law is the target's at any temperature, but its random numbers are others: seeds differ"
            )
