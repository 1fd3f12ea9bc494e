"""transformers: arguments of `generate`. Read in `transformers/generation/configuration_utils.py` of 5.24.

`num_assistant_tokens` and the threshold are read from the assistant's own generation config, not from the call.
"""

from __future__ import annotations

import json
from typing import Any

from outrider.errors import ConfigError
from outrider.export.base import Engine, Exported
from outrider.export.deployment import Deployment
from outrider.export.programs import arguments, lines

_PROGRAM = "generate.py"


_NAMES = {
    "ngram": "prompt_lookup_num_tokens",
    "draft_model": "assistant_model",
    "mtp": "use_mtp",
    "layer_skip": "assistant_early_exit",
}
_OPTIONS = {
    "ngram": ("prompt_lookup_max", "prompt_lookup_min"),
    "draft_model": ("draft_confidence_threshold", "vocabulary"),
    "mtp": (),
    "layer_skip": ("exit_layer",),
}
_TAKES = {"": ("sample", "rejection")}
_REASONS = {
    "eagle3": "generate loads assistants with a vocabulary and a cache of their own, and no heads",
    "eagle": "generate loads assistants with a vocabulary and a cache of their own, and no heads",
}


class Transformers(Engine):
    """See the module."""

    name = "transformers"
    versions = ("5.24.0",)
    server = False
    names = _NAMES
    options = _OPTIONS
    rules = _TAKES
    reasons = _REASONS
    no_schedule = "assisted generation takes one sequence at a time"

    def convert(self, deployment: Deployment, out: Exported) -> None:
        """Arguments of the call, settings of the assistant, and a program that uses both."""
        call: dict[str, Any] = {"do_sample": deployment.temperature > 0}
        if deployment.temperature > 0:
            call["temperature"] = deployment.temperature
        assistant: dict[str, Any] = {}
        speculation, method = deployment.speculation, deployment.method
        if method == "ngram":
            call |= {"prompt_lookup_num_tokens": deployment.num_tokens}
            call |= {"max_matching_ngram_size": speculation.prompt_lookup_max}
            out.notes.append("it looks up n-grams of the longest size down to 1")
        elif method == "mtp":
            if speculation.model is not None:
                raise ConfigError("mtp: generate(use_mtp=True) uses the target's own module; leave --head out")
            call |= {"use_mtp": True}
            out.notes.append("the module's own number of tokens counts, not -k")
        elif method == "layer_skip":
            if speculation.exit_layer is None:
                raise ConfigError("layer_skip: transformers knows early exit only: set exit_layer")
            call |= {"assistant_early_exit": speculation.exit_layer}
            assistant = self._assistant(deployment)
            out.notes.append("early exit pays with models that were trained for it (LayerSkip)")
        else:
            assistant = self._assistant(deployment)
        out.notes.append("assisted generation takes one sequence at a time")
        out.config = call
        out.files["generation_config.json"] = json.dumps(call, indent=2) + "\n"
        if assistant:
            out.files["assistant_generation_config.json"] = json.dumps(assistant, indent=2) + "\n"
        out.files[_PROGRAM] = self._program(deployment, call, assistant)
        out.command = ["python", _PROGRAM]
        if deployment.tensor_parallel_size > 1:
            out.command = ["torchrun", "--nproc-per-node", str(deployment.tensor_parallel_size), _PROGRAM]

    def _assistant(self, deployment: Deployment) -> dict[str, Any]:
        return {
            "num_assistant_tokens": deployment.num_tokens,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": deployment.speculation.draft_confidence_threshold,
        }

    def _program(self, deployment: Deployment, call: dict[str, Any], assistant: dict[str, Any]) -> str:
        model = deployment.method == "draft_model"
        other = model and deployment.speculation.vocabulary in ("slem", "tli")
        target = repr(deployment.public_target)
        spread = ', tp_plan="auto"' if deployment.tensor_parallel_size > 1 else ""
        length = f"max_length={deployment.max_model_len}" if deployment.max_model_len else "max_new_tokens=256"
        setup: list[str] = []
        extra = ""
        if model:
            draft = repr(deployment.model("a draft model"))
            setup.append(f'assistant = AutoModelForCausalLM.from_pretrained({draft}, dtype="auto")')
            extra = ", assistant_model=assistant"
            if other:
                setup.append(f"assistant_tokenizer = AutoTokenizer.from_pretrained({draft})")
                extra += ", tokenizer=tokenizer, assistant_tokenizer=assistant_tokenizer"
        owner = "assistant" if model else "model"
        setup += [f"{owner}.generation_config.{key} = {value!r}" for key, value in assistant.items()]
        return lines(
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            f"tokenizer = AutoTokenizer.from_pretrained({target})",
            f'model = AutoModelForCausalLM.from_pretrained({target}, dtype="auto"{spread})',
            setup,
            'inputs = tokenizer("The future of AI is", return_tensors="pt").to(model.device)',
            f"outputs = model.generate(**inputs, {length}, {arguments(call)}{extra})",
            "print(tokenizer.decode(outputs[0], skip_special_tokens=True))",
        )
