"""OpenVINO GenAI: `LLMPipeline` and `GenerationConfig` of openvino-genai 2026.4.1.

Either `num_assistant_tokens` or `assistant_confidence_threshold` is set; a tree has `branching_factor` children a
node, `tree_depth` levels and `num_assistant_tokens` nodes. The class takes unknown arguments without a word.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.export.base import Engine, Exported
from outrider.export.deployment import Deployment
from outrider.export.programs import arguments, lines
from outrider.export.trees import shape_of

_PROGRAM = "generate.py"
_TREE = ("tree", "tree_kind", "tree_nodes", "tree_depth", "tree_topk")


_NAMES = {"ngram": "prompt_lookup", "draft_model": "draft_model", "eagle3": "draft_model"}
_OPTIONS = {
    "ngram": ("prompt_lookup_max", "prompt_lookup_min"),
    "draft_model": ("draft_confidence_threshold", "vocabulary"),
    "eagle3": _TREE,
}
_TAKES = {"": ("sample",)}
_REASONS = {
    "eagle": "it loads EAGLE-3 heads only",
    "eagle2": "it loads EAGLE-3 heads only, and draws their trees (tree_kind dynamic)",
    "mtp": "it has no multi-token prediction",
}


class OpenVino(Engine):
    """See the module."""

    name = "openvino"
    versions = ("2026.4.1",)
    server = False
    names = _NAMES
    options = _OPTIONS
    rules = _TAKES
    reasons = _REASONS
    head_layouts = ("sglang",)

    def convert(self, deployment: Deployment, out: Exported) -> None:
        """A generation config, and a program that uses it."""
        if deployment.tensor_parallel_size > 1:
            raise ConfigError(
                "tensor_parallel_size: OpenVINO GenAI has none; give the pipeline a device such as HETERO"
            )
        if deployment.method == "draft_model" and deployment.speculation.vocabulary not in ("auto", "same"):
            raise ConfigError(
                "vocabulary: OpenVINO takes draft models with the target's own only; transformers has more"
            )
        config: dict[str, Any] = {"max_new_tokens": 256, "do_sample": deployment.temperature > 0}
        if deployment.temperature > 0:
            config["temperature"] = deployment.temperature
        config |= self._speculation(deployment, out)
        if deployment.max_model_len is not None:
            config["max_length"] = deployment.max_model_len
            del config["max_new_tokens"]
        target, draft = "target_ov", ""
        out.before.append(["optimum-cli", "export", "openvino", "-m", deployment.public_target, target])
        if deployment.method != "ngram":
            name, draft = deployment.model("a draft model or head"), "draft_ov"
            head = (
                ["--task", "text-generation-with-past", "--trust-remote-code"] if deployment.method == "eagle3" else []
            )
            out.before.append(["optimum-cli", "export", "openvino", "-m", name, draft, *head])
        out.config = config
        out.files["generation_config.json"] = json.dumps(config, indent=2) + "\n"
        out.files[_PROGRAM] = _program(target, draft, config)
        out.command = ["python", _PROGRAM]

    def _speculation(self, deployment: Deployment, out: Exported) -> dict[str, Any]:
        speculation = deployment.speculation
        if deployment.method == "ngram":
            out.notes.append("it looks up n-grams of the longest size down to 1")
            return {"num_assistant_tokens": deployment.num_tokens, "max_ngram_size": speculation.prompt_lookup_max}
        if deployment.branches:
            tree = shape_of(deployment, "openvino")
            return {
                "num_assistant_tokens": tree.nodes,
                "branching_factor": tree.topk,
                "tree_depth": tree.depth,
            }
        threshold = speculation.draft_confidence_threshold
        if threshold > 0 and speculation.num_speculative_tokens is not None:
            raise ConfigError(
                "draft_confidence_threshold: OpenVINO takes it or num_speculative_tokens; leave one of the two out"
            )
        if threshold > 0:
            return {"assistant_confidence_threshold": threshold}
        return {"num_assistant_tokens": deployment.num_tokens}


def _program(target: str, draft: str, config: dict[str, Any]) -> str:
    extra = ', draft_model=openvino_genai.draft_model("draft_ov", "CPU")' if draft else ", prompt_lookup=True"
    return lines(
        "import openvino_genai",
        "",
        f'pipeline = openvino_genai.LLMPipeline("{Path(target)}", "CPU"{extra})',
        f"config = openvino_genai.GenerationConfig({arguments(config)})",
        'print(pipeline.generate("The future of AI is", config))',
    )
