"""Medusa heads of others: FasterDecoding's files and vLLM's.

| layout | tensors |
|---|---|
| FasterDecoding | `{head}.{block}.linear.weight` and `.bias`, `{head}.{blocks}.weight` over the whole vocabulary |
| vLLM | `blocks.{head}.layers.{block}.weight` and `.bias`, `lm_heads.{head}.weight`, `token_map` where reduced |

vLLM 0.33 has no Medusa any more.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from outrider.errors import ModelError
from outrider.heads.base import DraftHead
from outrider.heads.config import StackConfig
from outrider.heads.layouts.base import Bound, Checkpoint, Layout, fill, half, needed
from outrider.heads.medusa import Medusa

GONE = "vLLM has no method medusa since 0.33: older versions load this, newer ones do not"


class _MedusaLayout(Layout):
    """What both have: a head's number, a block's number, and which tensor it is."""

    kinds = ("medusa",)
    _linear: re.Pattern[str]
    _head: re.Pattern[str]

    def read(self, checkpoint: Checkpoint, target: Bound | None) -> DraftHead:
        """See ``Layout``; the target gives its fingerprint and its sizes."""
        target = needed(target, checkpoint.name)
        tensors = {key.removeprefix("medusa_heads."): value for key, value in checkpoint.tensors.items()}
        ids = tensors.pop("token_map", None)
        blocks: dict[tuple[int, int, str], Tensor] = {}
        lm_heads: dict[int, Tensor] = {}
        for key, value in tensors.items():
            if found := self._linear.fullmatch(key):
                blocks[int(found[1]), int(found[2]), found[3]] = value
            elif found := self._head.fullmatch(key):
                lm_heads[int(found[1])] = value
            else:
                raise ModelError(f"{checkpoint.name} has {key}, which no Medusa head has")
        if not blocks or not lm_heads:
            raise ModelError(f"{checkpoint.name} holds no Medusa heads")
        config = StackConfig(
            kind="medusa",
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            draft_vocab_size=len(next(iter(lm_heads.values()))),
            hidden_layers=(target.num_layers - 1,),
            num_heads=len(lm_heads),
            num_layers=1 + max(block for _, block, _ in blocks),
            shared_head=False,
            target=target.fingerprint,
        )
        head = Medusa(config)
        if ids is None and config.draft_vocab_size != config.vocab_size:
            raise ModelError(f"{checkpoint.name} has {config.draft_vocab_size} rows a head and no token_map")
        head.set_vocabulary(torch.arange(config.vocab_size) if ids is None else ids.long())
        named = {f"blocks.{head}.{block}.linear.{part}": value for (head, block, part), value in blocks.items()}
        named |= {f"lm_heads.{number}.weight": value for number, value in lm_heads.items()}
        named = {key: value.float() for key, value in named.items()}
        for key, value in head.state_dict().items():  # the bias is left out where all are zero
            if key.endswith("bias") and key not in named:
                named[key] = torch.zeros_like(value)
        return fill(head, named | {"d2t": head.d2t, "t2d": head.t2d}, checkpoint.name)

    def _tensors(self, head: Medusa, linear: str, lm_head: str) -> dict[str, Tensor]:
        """``linear`` and ``lm_head``: their names, with head, block and part to be filled in."""
        layers, out = head.config.num_layers, {}
        for key, value in head.state_dict().items():
            if found := re.fullmatch(r"blocks\.(\d+)\.(\d+)\.linear\.(weight|bias)", key):
                out[linear.format(head=found[1], block=found[2], part=found[3])] = value
        for step in range(head.config.num_heads):
            out[lm_head.format(head=step, block=layers)] = head.vocabulary(step).weight.detach().clone()
        return half(out)


class FasterDecoding(_MedusaLayout):
    """The files of the paper's authors."""

    name = "medusa"
    _linear = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
    _head = re.compile(r"(\d+)\.\d+\.weight")

    def claims(self, checkpoint: Checkpoint) -> bool:
        """By the key that their config has."""
        return "medusa_num_heads" in checkpoint.facts

    def write(self, head: DraftHead, target: str) -> Checkpoint:
        """Whole vocabularies alone."""
        assert isinstance(head, Medusa)
        if head.config.draft_vocab_size != head.config.vocab_size:
            sizes = f"{head.config.draft_vocab_size} of {head.config.vocab_size} tokens"
            raise ModelError(
                f"layout {self.name!r} has no reduced vocabularies, and this head drafts {sizes}: train one with "
                f"--draft-vocab {head.config.vocab_size}"
            )
        facts = {"medusa_num_heads": head.config.num_heads, "medusa_num_layers": head.config.num_layers}
        names = "{head}.{block}.linear.{part}", "{head}.{block}.weight"
        return Checkpoint(target, facts | {"base_model_name_or_path": target}, self._tensors(head, *names))


class VllmMedusa(_MedusaLayout):
    """vLLM's, while it had the method."""

    name = "vllm-medusa"
    _linear = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
    _head = re.compile(r"lm_heads\.(\d+)\.weight")

    def claims(self, checkpoint: Checkpoint) -> bool:
        """By the model type."""
        return checkpoint.facts.get("model_type") == "medusa" and "outrider" not in checkpoint.facts

    def write(self, head: DraftHead, target: str) -> Checkpoint:
        """With a token map where the vocabulary is reduced."""
        assert isinstance(head, Medusa)
        config = head.config
        facts: dict[str, Any] = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "num_heads": config.num_heads,
            "num_hidden_layers": config.num_layers,
            "medusa_fc_bias": True,
        }
        tensors = self._tensors(head, "blocks.{head}.layers.{block}.{part}", "lm_heads.{head}.weight")
        if config.draft_vocab_size != config.vocab_size:
            facts["truncated_vocab_size"] = config.draft_vocab_size
            tensors["token_map"] = head.target_ids
        return Checkpoint(target, facts, tensors)
