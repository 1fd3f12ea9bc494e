"""What a draft head is, as its ``config.json`` says: shapes, the target that it was trained for, and how."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from outrider.config import Settings

HeadKind = Literal["eagle3", "eagle", "mtp", "medusa", "hydra", "hydra_plus"]
RECURRENT: tuple[HeadKind, ...] = ("eagle3", "eagle", "mtp")
KINDS: tuple[HeadKind, ...] = (*RECURRENT, "medusa", "hydra", "hydra_plus")


class HeadConfig(Settings):
    """What every head says of itself, and what it needs from its target.

    ``hidden_layers``: target layers whose outputs it reads; those of ``eagle3`` as they are (after blocks 1, L/2-1 and
    L-4), the last layer's of all others with the target's final norm. ``target``: the fingerprint of the model it was
    trained for. ``trained_length``: the longest text of the training; positions behind it were never seen.
    ``trained_steps``: tokens that it was unrolled for. ``draft_temperature``: divides its logits where tokens are
    sampled (arXiv 1706.04599, by acceptance and not likelihood). ``canary``: a text, over which
    the head's likeliest token was the target's in a share of ``canary_agreement``; empty where none was recorded.
    """

    kind: HeadKind
    hidden_size: int = Field(ge=1)
    vocab_size: int = Field(ge=1)
    draft_vocab_size: int = Field(ge=1)
    hidden_layers: tuple[int, ...] = Field(min_length=1)
    target: str
    trained_length: int = Field(default=0, ge=0)
    trained_steps: int = Field(default=0, ge=0)
    draft_temperature: float = Field(default=1.0, gt=0.0, le=10.0)
    canary: tuple[int, ...] = ()
    canary_agreement: float = 0.0

    @property
    def counted_layers(self) -> list[int]:
        """``hidden_layers`` as engines count them: the embedding is hidden state 0, so that theirs is "the input of
        layer i"."""
        return [layer + 1 for layer in self.hidden_layers]

    @property
    def normed(self) -> bool:
        """Whether its feature is the target's last hidden state with the final norm."""
        return self.kind != "eagle3"

    @model_validator(mode="after")
    def _vocabulary(self) -> Self:
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(f"draft_vocab_size={self.draft_vocab_size} is over vocab_size={self.vocab_size}")
        return self


class BlockConfig(HeadConfig):
    """A head with a decoder block."""

    intermediate_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2)
    rope_theta: float = 10000.0
    max_position_embeddings: int = Field(ge=2)
    rms_norm_eps: float = 1e-5

    @model_validator(mode="after")
    def _attention(self) -> Self:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is no multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        return self


class RecurrentConfig(BlockConfig):
    """A head of one decoder block (EAGLE-1 and -3, MTP).

    ``norm_before_residual``: the normed feature is the block's residual; ``norm_output``: rows below take the output
    with the final norm. Heads that others trained may have them.
    """

    norm_before_residual: bool = False
    norm_output: bool = False


class StackConfig(HeadConfig):
    """A head a position (Medusa, Hydra). ``num_heads``: positions; ``num_layers``: residual blocks of each;
    ``shared_head``: one vocabulary matrix for all, else one each."""

    num_heads: int = Field(default=4, ge=1, le=16)
    num_layers: int = Field(default=1, ge=1, le=8)
    shared_head: bool = True


class PrefixConfig(StackConfig, BlockConfig):
    """A head a position, behind a block that reads the target's hidden states (Hydra++)."""


def config_class(kind: HeadKind) -> type[HeadConfig]:
    """The class of a kind's config."""
    return RecurrentConfig if kind in RECURRENT else PrefixConfig if kind == "hydra_plus" else StackConfig


def config_for(
    kind: HeadKind, target: Any, fingerprint: str, draft_vocab_size: int, max_model_len: int, **changes: Any
) -> HeadConfig:
    """A head in the shape of one block of ``target``, a transformers config; ``changes`` as its class has them."""
    hidden, layers = int(target.hidden_size), int(target.num_hidden_layers)
    values: dict[str, Any] = {
        "kind": kind,
        "hidden_size": hidden,
        "vocab_size": int(target.vocab_size),
        "draft_vocab_size": min(draft_vocab_size, int(target.vocab_size)),
        "hidden_layers": fused_layers(layers) if kind == "eagle3" else (layers - 1,),
        "target": fingerprint,
    }
    if issubclass(config_class(kind), BlockConfig):
        rope = getattr(target, "rope_parameters", None) or {}
        values |= {
            "intermediate_size": int(target.intermediate_size),
            "num_attention_heads": int(target.num_attention_heads),
            "num_key_value_heads": int(target.num_key_value_heads),
            "head_dim": int(getattr(target, "head_dim", None) or hidden // target.num_attention_heads),
            "rope_theta": float(rope.get("rope_theta") or getattr(target, "rope_theta", None) or 10000.0),
            "max_position_embeddings": max_model_len,
            "rms_norm_eps": float(target.rms_norm_eps),
        }
    return config_class(kind)(**values | changes)


def fused_layers(layers: int) -> tuple[int, ...]:
    """The layers that EAGLE-3 reads of a target with so many."""
    return tuple(sorted({min(1, layers - 1), max(0, layers // 2 - 1), max(0, layers - 4)}))
