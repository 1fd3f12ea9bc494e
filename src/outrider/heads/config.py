"""What a draft head is, as its ``config.json`` says: shapes, the target that it was trained for, and how."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from outrider.config import Settings

HeadKind = Literal["eagle3"]


class HeadConfig(Settings):
    """The shape of a head and what it needs from its target.

    ``hidden_layers``: target layers whose outputs it reads (EAGLE-3: after blocks 1, L/2-1 and L-4). ``target``: the
    fingerprint of the model it was trained for. ``trained_length``: the longest text of the training; positions behind
    it were never seen. ``trained_steps``: tokens that it was unrolled for.
    """

    kind: HeadKind
    hidden_size: int = Field(ge=1)
    intermediate_size: int = Field(ge=1)
    num_attention_heads: int = Field(ge=1)
    num_key_value_heads: int = Field(ge=1)
    head_dim: int = Field(ge=2)
    vocab_size: int = Field(ge=1)
    draft_vocab_size: int = Field(ge=1)
    hidden_layers: tuple[int, ...] = Field(min_length=1)
    rope_theta: float = 10000.0
    max_position_embeddings: int = Field(ge=2)
    rms_norm_eps: float = 1e-5
    target: str
    trained_length: int = Field(default=0, ge=0)
    trained_steps: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.draft_vocab_size > self.vocab_size:
            raise ValueError(f"draft_vocab_size={self.draft_vocab_size} is over vocab_size={self.vocab_size}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is no multiple of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )
        return self


def eagle3_config(target: Any, fingerprint: str, draft_vocab_size: int, max_model_len: int) -> HeadConfig:
    """An EAGLE-3 head in the shape of one block of ``target``, a transformers config."""
    layers = int(target.num_hidden_layers)
    rope = getattr(target, "rope_parameters", None) or {}
    return HeadConfig(
        kind="eagle3",
        hidden_size=int(target.hidden_size),
        intermediate_size=int(target.intermediate_size),
        num_attention_heads=int(target.num_attention_heads),
        num_key_value_heads=int(target.num_key_value_heads),
        head_dim=int(getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads),
        vocab_size=int(target.vocab_size),
        draft_vocab_size=min(draft_vocab_size, int(target.vocab_size)),
        hidden_layers=tuple(sorted({min(1, layers - 1), max(0, layers // 2 - 1), max(0, layers - 4)})),
        rope_theta=float(rope.get("rope_theta") or getattr(target, "rope_theta", None) or 10000.0),
        max_position_embeddings=max_model_len,
        rms_norm_eps=float(target.rms_norm_eps),
        target=fingerprint,
    )
