"""llama.cpp: `llama-server`. Read in `common/arg.cpp` as llama-cpp-python 0.3.36 ships it.

A draft model alone no longer switches speculation on: `--spec-type` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.export.base import Engine, Exported
from outrider.export.deployment import Deployment

_TYPES = {"ngram": "ngram-simple", "draft_model": "draft-simple", "eagle3": "draft-eagle3", "mtp": "draft-mtp"}


_OPTIONS = {
    "ngram": ("prompt_lookup_max", "prompt_lookup_min"),
    "draft_model": ("draft_confidence_threshold", "vocabulary"),
    "eagle3": ("draft_confidence_threshold",),
    "mtp": ("draft_confidence_threshold",),
}
_TAKES = {"": ("sample",)}
_REASONS = {
    "suffix": "its maps of n-grams (ngram-map-k, ngram-mod) are other methods",
    "merge": "it takes several types (--spec-type A,B), but tries one after the other and joins nothing",
    "synthetic": "--spec-synth-rates accepts at given rates, but what a real drafter drafts",
    "eagle": "it loads EAGLE-3 heads only",
    "eagle2": "it loads EAGLE-3 heads only",
}


class LlamaCpp(Engine):
    """See the module."""

    name = "llamacpp"
    versions = ("llama-cpp-python-0.3.36",)
    names = _TYPES
    options = _OPTIONS
    rules = _TAKES
    reasons = _REASONS
    head_layouts = ("sglang", "vllm", "speculators")

    def convert(self, deployment: Deployment, out: Exported) -> None:
        """Flags alone: there is no file for them."""
        if deployment.tensor_parallel_size > 1:
            raise ConfigError(
                "tensor_parallel_size: llama.cpp splits a model over all devices that it sees; leave it out and add "
                "--split-mode row to the command"
            )
        spec: dict[str, Any] = {"spec-type": out.method}
        if deployment.method == "ngram":
            spec |= self._ngram(deployment, out)
        else:
            spec |= self._draft(deployment, out)
        out.config = spec
        target = deployment.public_target
        out.command = ["llama-server", *_place(target, "-m", "-hf")]
        if deployment.max_model_len is not None:
            out.command += ["-c", str(deployment.max_model_len)]
        for key, value in spec.items():
            out.command += [f"--{key}", str(value)]
        if not target.endswith((".gguf", "-GGUF")):
            out.notes.append(f"-hf needs a repository with GGUF files; {target} may have a twin that ends in -GGUF")

    def _ngram(self, deployment: Deployment, out: Exported) -> dict[str, Any]:
        speculation = deployment.speculation
        if speculation.prompt_lookup_min != speculation.prompt_lookup_max:
            out.notes.append(
                f"it looks up n-grams of one length, {speculation.prompt_lookup_min} here, where Outrider tries "
                f"{speculation.prompt_lookup_max} to {speculation.prompt_lookup_min}"
            )
        return {
            "spec-ngram-simple-size-n": speculation.prompt_lookup_min,
            "spec-ngram-simple-size-m": deployment.num_tokens,
            "spec-ngram-simple-min-hits": 1,
        }

    def _draft(self, deployment: Deployment, out: Exported) -> dict[str, Any]:
        speculation = deployment.speculation
        if speculation.vocabulary not in ("auto", "same"):
            raise ConfigError("vocabulary: llama.cpp takes draft models with the target's own only; vllm has 'tli'")
        found: dict[str, Any] = {}
        if not (deployment.method == "mtp" and speculation.model is None):
            model = deployment.model("a draft model or head")
            found |= self._model(deployment, model, out)
        return found | {
            "spec-draft-n-max": deployment.num_tokens,
            "spec-draft-n-min": 0,
            "spec-draft-p-min": speculation.draft_confidence_threshold,
        }

    def _model(self, deployment: Deployment, model: str, out: Exported) -> dict[str, Any]:
        if deployment.method == "draft_model":
            option, value = _place(model, "spec-draft-model", "spec-draft-hf")
            return {option: value}
        if model.endswith(".gguf"):
            return {"spec-draft-model": model}
        file = f"{Path(model).name}.gguf"
        out.before.append(
            ["python", "convert_hf_to_gguf.py", model, "--target-model-dir", "TARGET_FOLDER", "--outfile", file]
        )
        out.notes.append("TARGET_FOLDER: the target's Hugging Face checkpoint; the script comes with llama.cpp")
        if not Path(model).is_dir():
            out.notes.append(f"the script reads folders: download {model} and put its folder in place of the name")
        return {"spec-draft-model": file}


def _place(name: str, file: str, hub: str) -> list[str]:
    local = name.endswith(".gguf") or Path(name).exists()
    return [file if local else hub, name]
