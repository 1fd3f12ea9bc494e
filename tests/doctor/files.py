"""Models and heads on disk, small, with one thing changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from engine.tiny import tokenizer
from outrider.engine.heads import bound_by_name
from outrider.heads.base import DraftHead
from outrider.heads.config import config_for
from outrider.heads.kinds import make
from outrider.heads.layouts.base import Checkpoint
from outrider.heads.layouts.table import LAYOUTS

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}> {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}<assistant> {% endif %}"
)
CONTEXT, DRAFT_VOCAB, LAYERS = 512, 64, 8


def model(
    folder: Path,
    layers: int = 1,
    hidden: int = 16,
    context: int = CONTEXT,
    words: PreTrainedTokenizerFast | None = None,
    template: str = TEMPLATE,
    dtype: torch.dtype = torch.float32,
) -> str:
    """A random Llama with a tokenizer; the name to open it by."""
    own = tokenizer() if words is None else words
    config = LlamaConfig(
        vocab_size=len(own),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(dtype).save_pretrained(folder)
    own.chat_template = template or None
    own.save_pretrained(folder)
    return str(folder)


def target(folder: Path, **changes: Any) -> str:
    """One that is much larger than ``model`` is by itself."""
    return model(folder, layers=LAYERS, hidden=64, **changes)


def new_head(name: str) -> DraftHead:
    """An untrained EAGLE-3 head for the target ``name``; it drafts ids 20 to 83."""
    bound = bound_by_name(name)
    config = LlamaConfig.from_pretrained(name)
    head = make(config_for("eagle3", config, bound.fingerprint, DRAFT_VOCAB, bound.max_model_len))
    head.set_vocabulary(torch.arange(DRAFT_VOCAB) + 20)
    return head


def written(head: DraftHead, folder: Path, layout: str = "sglang", **facts: Any) -> Checkpoint:
    """``head`` in ``folder``, with ``facts`` in the place of those of its config."""
    checkpoint = LAYOUTS[layout].write(head, head.config.target)
    out = Checkpoint(str(folder), {**checkpoint.facts, **facts}, checkpoint.tensors)
    out.write(folder)
    return out


def reordered(shipped: Path, folder: Path, layers: list[int]) -> Path:
    """A copy of a head of ours that says it reads ``layers``."""
    folder.mkdir()
    for path in shipped.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    facts = json.loads((folder / "config.json").read_text())
    facts["outrider"]["hidden_layers"] = layers
    (folder / "config.json").write_text(json.dumps(facts))
    return folder
