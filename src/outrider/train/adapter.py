"""A target that is trained: low-rank updates beside its frozen matrices (LoRA, arXiv 2106.09685), merged in the end."""

from __future__ import annotations

import hashlib
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from outrider.errors import ConfigError
from outrider.target.load import VARIANT, load_model
from outrider.target.quiet import quiet

RANK = 32
_ALPHA = 16.0  # updates count alpha / rank
_MISSING = "--joint needs peft: pip install 'outrider[train]'"


def num_updates(network: Any, rank: int = RANK) -> int:
    """Weights of the updates of a model: two matrices of ``rank`` for each one that gets them."""
    head = network.get_output_embeddings()
    layers = [module for module in network.modules() if isinstance(module, nn.Linear) and module is not head]
    return sum(rank * (layer.in_features + layer.out_features) for layer in layers)


def check_installed() -> None:
    """Raise ConfigError where peft is not."""
    if find_spec("peft") is None:
        raise ConfigError(_MISSING)


class Adapter(nn.Module):
    """The updates of a target, and what the target computes with them; only they are parameters of this module.

    All matrices but the embedding's and the vocabulary's have one, which changes nothing at first. Raises ConfigError
    where peft is not installed.
    """

    def __init__(self, model: str, seed: int, device: torch.device, rank: int = RANK) -> None:
        super().__init__()
        check_installed()
        from peft import LoraConfig, get_peft_model

        self._loaded = load_model(model, dtype=torch.float32, device=device, attn_implementation="sdpa")
        config = LoraConfig(r=rank, lora_alpha=_ALPHA, lora_dropout=0.0, target_modules="all-linear")
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft's questions to transformers
            torch.manual_seed(seed)
            self._tuned: list[Any] = [get_peft_model(self._loaded.model, config)]  # in a list: it is no part of this
        learnt = {name: weight for name, weight in self._tuned[0].named_parameters() if weight.requires_grad}
        self.updates = nn.ParameterDict({name.replace(".", "/"): weight for name, weight in learnt.items()})

    @property
    def head(self) -> Tensor:
        """The vocabulary's matrix [vocab, hidden], which stays as it is."""
        weight: Tensor = self._network.get_output_embeddings().weight
        return weight

    @property
    def _network(self) -> Any:
        return self._tuned[0].get_base_model()

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [texts, length] -> last hidden states with the final norm [texts, length, hidden]; a row sees those
        before it, so that what fills a text up behind its end changes nothing."""
        hidden: Tensor = self._network.model(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden.float()

    def variant(self) -> str:
        """A name for the target with these updates, equal for equal ones."""
        digest = hashlib.sha256()
        for name, weight in sorted(self.updates.items()):
            digest.update(name.encode() + weight.detach().cpu().contiguous().numpy().tobytes())
        return f"joint-{digest.hexdigest()[:12]}"

    def write(self, folder: Path) -> None:
        """The target with the updates merged into its matrices, as a model folder with tokenizer, chat template and
        generation config, named by ``variant``. A stop at any moment leaves no folder or a whole one. This module is of
        no use afterwards."""
        partial = folder.with_name(folder.name + ".new")
        shutil.rmtree(partial, ignore_errors=True)
        setattr(self._network.config, VARIANT, self.variant())
        with quiet():
            merged = self._tuned[0].merge_and_unload()
            merged.save_pretrained(partial)
            self._loaded.tokenizer.hf.save_pretrained(partial)
        for file in partial.glob("*.safetensors"):
            file.chmod(0o644)  # save_file lets nobody else read it
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
