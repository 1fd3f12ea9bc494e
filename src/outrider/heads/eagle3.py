"""EAGLE-3 (arXiv 2503.01840): one decoder layer over the target's features, with a head over a reduced vocabulary.

Row t sees the token at t + 1 and a feature of position t, and says what token t + 2 is. The first feature is a fusion
of three of the target's layers; each further drafted token takes the layer's own output, before the final norm, in its
place. Training unrolls that (training-time test): step k has the token at t + 1 + k in row t, attends to the rows up to
t of step 0 and to row t of the steps since, and stands at position t + k.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from outrider.heads.config import HeadConfig


class Norm(nn.RMSNorm):
    """RMS norm in float32, whatever precision the products around it have."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden] -> like x, float32."""
        return super().forward(x.float())


class Attention(nn.Module):
    """Grouped-query attention whose input is twice as wide as its output: token beside feature."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        dim, wide = config.head_dim, 2 * config.hidden_size
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, dim
        self.q_proj = nn.Linear(wide, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(wide, self.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(wide, self.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, config.hidden_size, bias=False)

    def project(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """x [batch, rows, 2 * hidden] -> q, k, v [batch, heads, rows, dim], with positions in q and k."""
        parts = []
        for linear, count in ((self.q_proj, self.heads), (self.k_proj, self.kv_heads), (self.v_proj, self.kv_heads)):
            part = linear(x).unflatten(-1, (count, self.dim)).transpose(1, 2)
            parts.append(part.repeat_interleave(self.heads // count, dim=1))
        q, k, v = parts
        return rotate(q, rotary), rotate(k, rotary), v


class Mlp(nn.Module):
    """The gated feed-forward of a Llama block."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden] -> [..., hidden]."""
        out: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    """The one block; its names are those of published checkpoints."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.self_attn = Attention(config)
        self.mlp = Mlp(hidden, config.intermediate_size)
        self.input_layernorm = Norm(hidden, eps)
        self.hidden_norm = Norm(hidden, eps)
        self.post_attention_layernorm = Norm(hidden, eps)


class Eagle3(nn.Module):
    """The head as it is trained. ``d2t`` [draft vocab]: target id minus draft id; ``t2d`` [vocab]: ids it knows."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.hidden_layers) * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(config)
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        self.set_vocabulary(torch.arange(config.draft_vocab_size))

    def set_vocabulary(self, ids: Tensor) -> None:
        """``ids`` [draft vocab]: the target ids that it can draft, ascending."""
        self.d2t.copy_(ids - torch.arange(len(ids)))
        self.t2d.zero_()
        self.t2d[ids] = True

    @property
    def target_ids(self) -> Tensor:
        """The target id of every draft id."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def unroll(self, embedded: Tensor, features: Tensor, steps: int) -> Iterator[Tensor]:
        """The hidden states [batch, rows, hidden] of ``steps`` steps; ``logits`` makes of each what is predicted.

        embedded [batch, rows, hidden]: of the token one behind each row's feature; features [batch, rows, layers *
        hidden]. In step k the last k rows have no token and mean nothing.
        """
        attention = self.midlayer.self_attn
        batch, rows, _ = embedded.shape
        hidden = self.fc(features)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        causal = torch.ones(rows, rows, dtype=torch.bool, device=embedded.device).triu(1)
        for step in range(steps):
            tokens = nn.functional.pad(embedded[:, step:], (0, 0, 0, step))
            both = torch.cat((self.midlayer.input_layernorm(tokens), self.midlayer.hidden_norm(hidden)), dim=-1)
            positions = torch.arange(step, rows + step, device=embedded.device)
            q, k, v = attention.project(both, factors(positions, self.config))
            keys.append(k)
            values.append(v)
            attended = _attend(q, keys, values, causal).transpose(1, 2).reshape(batch, rows, -1)
            hidden = hidden + attention.o_proj(attended)
            hidden = hidden + self.midlayer.mlp(self.midlayer.post_attention_layernorm(hidden))
            yield hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., hidden] -> [..., draft vocab]."""
        out: Tensor = self.lm_head(self.norm(hidden))
        return out


def _attend(q: Tensor, keys: list[Tensor], values: list[Tensor], causal: Tensor) -> Tensor:
    """Rows up to one's own of step 0, and one's own row of every step since."""
    scale = q.shape[-1] ** -0.5
    if len(keys) == 1:
        return nn.functional.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True, scale=scale)
    first = (q @ keys[0].transpose(-1, -2) * scale).masked_fill(causal, -torch.inf)
    own = [(q * k).sum(-1, keepdim=True) * scale for k in keys[1:]]
    weights = torch.cat([first.float(), *(each.float() for each in own)], dim=-1).softmax(-1).to(q.dtype)
    rows = first.shape[-1]
    out = weights[..., :rows] @ values[0]
    for step, v in enumerate(values[1:]):
        out = out + weights[..., rows + step, None] * v
    return out


def factors(positions: Tensor, config: HeadConfig) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, head_dim / 2] float32."""
    half = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float()[:, None] * config.rope_theta ** (-half / config.head_dim)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """x [..., rows, dim]: pairs (i, i + dim / 2) turned by the position's angle."""
    cos, sin = (part.to(x.dtype) for part in rotary)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
