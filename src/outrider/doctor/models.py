"""A target and its draft model or draft head on this machine, as far as their files say what they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.engine.heads import bound_by_name
from outrider.errors import ConfigError, ModelError
from outrider.heads.base import DraftHead
from outrider.heads.layouts.base import Bound, Checkpoint
from outrider.heads.layouts.table import layout_of
from outrider.target.load import load_config, load_tokenizer, resolve
from outrider.target.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class DraftSide:
    """A model: ``config`` is transformers'."""

    name: str
    config: Any
    tokenizer: Tokenizer

    @property
    def context(self) -> int | None:
        """Positions that it was made for."""
        value = getattr(self.config, "max_position_embeddings", None)
        return None if value is None else int(value)

    @property
    def num_weights(self) -> float:
        """Weights that a token's forward reads, by the shapes; of mixtures those of the experts in use."""
        config = self.config
        hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
        size = int(getattr(config, "head_dim", None) or hidden // heads)
        pairs = heads + int(getattr(config, "num_key_value_heads", None) or heads)
        inner = int(getattr(config, "moe_intermediate_size", None) or config.intermediate_size)
        inner *= int(getattr(config, "num_experts_per_tok", None) or 1)
        block = 2 * hidden * size * pairs + 3 * hidden * inner
        return float(config.num_hidden_layers * block + config.vocab_size * hidden)

    @property
    def number_format(self) -> str | None:
        """Of its weights, as its config says: a quantisation's name, or a dtype."""
        return format_of(self.config.to_dict())


@dataclass(frozen=True, slots=True)
class HeadSide:
    """A head's folder. ``head`` is None where it cannot be read, and ``problem`` says why. ``tokenizer``: its own,
    where the folder has one."""

    folder: Path
    checkpoint: Checkpoint
    layout: str
    bound: Bound
    head: DraftHead | None
    problem: str
    tokenizer: Tokenizer | None

    @property
    def block(self) -> dict[str, Any]:
        """Its config, that of the block first."""
        facts = dict(self.checkpoint.facts)
        return facts | dict(facts.get("transformer_layer_config") or {})


@dataclass(frozen=True, slots=True)
class Measured:
    """How often the head's first draft is the target's likeliest token over a text of ``num_tokens``: with the layers
    that its files name, and with ``others``. ``recorded``: what it was when the head was trained, where it says."""

    layers: tuple[int, ...]
    agreement: float
    recorded: float | None
    num_tokens: int
    others: dict[tuple[int, ...], float]


@dataclass(frozen=True, slots=True)
class Models:
    """What is known. ``measured`` is None where nothing was run."""

    target: DraftSide
    draft: DraftSide | None = None
    head: HeadSide | None = None
    measured: Measured | None = None


def read(target: str, draft: str | None, head: Path | None) -> Models:
    """From files alone, no weights of models are read. Raises ModelError for what cannot be found."""
    if head is not None and not head.is_dir():
        raise ConfigError(f"--head {head} is no folder: name the folder of a draft head")
    return Models(
        read_model(target),
        None if draft is None else read_model(draft),
        None if head is None else _head(head, bound_by_name(target)),
    )


def read_model(name: str) -> DraftSide:
    """A model's config and tokenizer."""
    return DraftSide(name, load_config(resolve(name)), load_tokenizer(name))


def _head(folder: Path, bound: Bound) -> HeadSide:
    checkpoint = Checkpoint.read(folder)
    layout = layout_of(checkpoint)
    head, problem = None, ""
    try:
        head = layout.read(checkpoint, bound)
    except (ModelError, ConfigError) as error:
        problem = str(error)
    tokenizer = Tokenizer.load(str(folder)) if (folder / "tokenizer.json").exists() else None
    return HeadSide(folder, checkpoint, layout.name, bound, head, problem, tokenizer)


def format_of(facts: dict[str, Any]) -> str | None:
    """The format of weights that a config names."""
    quantised = facts.get("quantization_config") or {}
    method = quantised.get("quant_method") or quantised.get("format")
    dtype = facts.get("dtype") or facts.get("torch_dtype")
    return str(method) if method else None if dtype is None else str(dtype).removeprefix("torch.")
