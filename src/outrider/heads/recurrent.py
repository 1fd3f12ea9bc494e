"""Heads of one decoder block that is fed its own output: what EAGLE-1, EAGLE-3 and MTP share.

Training unrolls the block (training-time test, arXiv 2503.01840): step k has the token at t + 1 + k in row t, attends
to the rows up to t of step 0 and to row t of the steps since, and stands at position t + k.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from outrider.heads.base import DraftHead, TargetWeights
from outrider.heads.config import BlockConfig, RecurrentConfig

Rotary = tuple[Tensor, Tensor]  # cos, sin of the positions
Product = Callable[[Tensor], Tensor]  # by the matrix that joins token and feature, packed or not
INIT = 0.02  # deviation of weights that nothing is known of


class Norm(nn.RMSNorm):
    """RMS norm in float32, whatever precision the products around it have."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., hidden] -> like x, float32."""
        return super().forward(x.float())


class Attention(nn.Module):
    """Grouped-query attention over inputs of any width."""

    def __init__(self, config: BlockConfig, width: int) -> None:
        super().__init__()
        dim = config.head_dim
        self.heads, self.kv_heads, self.dim = config.num_attention_heads, config.num_key_value_heads, dim
        self.q_proj = nn.Linear(width, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, config.hidden_size, bias=False)

    def query(self, x: Tensor, rotary: Rotary) -> Tensor:
        """x [batch, rows, width] -> q [batch, heads, rows, dim], with positions in it."""
        return rotate(self._split(self.q_proj(x)), rotary)

    def context(self, x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """x [batch, rows, width] -> k, v [batch, heads, rows, dim], with positions in k."""
        k, v = (
            self._split(linear(x)).repeat_interleave(self.heads // self.kv_heads, dim=1)
            for linear in (self.k_proj, self.v_proj)
        )
        return rotate(k, rotary), v

    def _split(self, x: Tensor) -> Tensor:
        batch, rows, _ = x.shape
        return x.view(batch, rows, -1, self.dim).transpose(1, 2)


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


class Block(nn.Module):
    """The one block, without what stands before its projections."""

    def __init__(self, config: BlockConfig, width: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, width)
        self.mlp = Mlp(config.hidden_size, config.intermediate_size)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    @torch.no_grad()
    def start(self, block: nn.Module, generator: torch.Generator) -> None:
        """Take over the weights of a target's ``block``; inputs that it does not have (a token) start small."""
        mine = dict(self.named_parameters())
        for name, theirs in block.named_parameters():
            if name in mine and mine[name].ndim == theirs.ndim:
                weight, width = mine[name], theirs.shape[-1]
                if weight.shape[-1] > width:  # token beside feature
                    shape = weight[:, :-width].shape
                    weight[:, :-width] = INIT * torch.randn(shape, generator=generator)
                weight[..., -width:] = theirs


class WholeBlock(Block):
    """A block with the norm before its projections."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__(config, config.hidden_size)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)


class RecurrentHead(DraftHead):
    """A head whose block is fed its own output, with the tokens drafted so far."""

    config: RecurrentConfig
    fc: nn.Linear
    midlayer: Block
    norm: Norm | None  # before the vocabulary's matrix

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__(config)
        self.norm = None
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def enter(self, features: Tensor, product: Product) -> Tensor:
        """What the target's features [..., width] are as the first step's hidden state [..., hidden]."""
        return features

    @abstractmethod
    def join(self, embedded: Tensor, hidden: Tensor, product: Product) -> tuple[Tensor, Tensor]:
        """Token and feature [..., hidden] each -> what the block's projections see [..., width], and its residual."""

    def leave(self, hidden: Tensor) -> Tensor:
        """What the vocabulary's matrix sees of an output [..., hidden]."""
        out: Tensor = hidden if self.norm is None else self.norm(hidden)
        return out

    def unroll(self, embedded: Tensor, features: Tensor, steps: int, start: int = 0) -> Iterator[Tensor]:
        """See ``DraftHead``; any number of steps."""
        attention = self.midlayer.self_attn
        batch, rows, _ = embedded.shape
        hidden = self.enter(features, self.fc)
        keys: list[Tensor] = []
        values: list[Tensor] = []
        positions = torch.arange(rows, device=embedded.device)
        unseen = positions[start:, None] < positions
        first = 0  # row of ``hidden``
        for step in range(steps):
            tokens = nn.functional.pad(embedded[:, step:], (0, 0, 0, step))
            inputs, hidden = self.join(tokens[:, first:], hidden, self.fc)
            rotary = factors(positions[first:] + step, self.config)
            k, v = attention.context(inputs, rotary)
            keys.append(k)
            values.append(v)
            cos, sin = (part[start - first :] for part in rotary)
            inputs, hidden, first = inputs[:, start - first :], hidden[:, start - first :], start
            q = attention.query(inputs, (cos, sin))
            attended = _attend(q, keys, values, unseen).transpose(1, 2).reshape(batch, rows - start, -1)
            hidden = hidden + attention.o_proj(attended)
            hidden = hidden + self.midlayer.mlp(self.midlayer.post_attention_layernorm(hidden))
            yield hidden
            hidden = self.hand_down(hidden)

    def hand_down(self, hidden: Tensor) -> Tensor:
        """What the rows below take of an output [..., hidden]."""
        return self.leave(hidden) if self.config.norm_output else hidden

    def vocabulary(self, step: int) -> nn.Linear:
        """See ``DraftHead``; the same for all steps."""
        return self.lm_head

    @torch.no_grad()
    def start(self, target: TargetWeights, generator: torch.Generator) -> None:
        """The target's last block over the feature, all but blind to the token, with the target's own head."""
        self.midlayer.start(target.block, generator)
        self.fc.weight.copy_(INIT * torch.randn(self.fc.weight.shape, generator=generator))
        hidden = self.config.hidden_size
        self.fc.weight[:, -hidden:] += torch.eye(hidden)  # the feature comes last, and passes
        self.lm_head.weight.copy_(target.head[self.target_ids])
        if self.norm is not None:
            self.norm.weight.copy_(target.norm)


def _attend(q: Tensor, keys: list[Tensor], values: list[Tensor], unseen: Tensor) -> Tensor:
    """Rows of step 0 but the ``unseen`` [rows, rows of step 0], and one's own row of every step since."""
    scale = q.shape[-1] ** -0.5
    if len(keys) == 1:
        return nn.functional.scaled_dot_product_attention(q, keys[0], values[0], attn_mask=~unseen, scale=scale)
    first = (q @ keys[0].transpose(-1, -2) * scale).masked_fill(unseen, -torch.inf)
    own = [(q * k).sum(-1, keepdim=True) * scale for k in keys[1:]]
    weights = torch.cat([first.float(), *(each.float() for each in own)], dim=-1).softmax(-1).to(q.dtype)
    rows = first.shape[-1]
    out = weights[..., :rows] @ values[0]
    for step, v in enumerate(values[1:]):
        out = out + weights[..., rows + step, None] * v
    return out


def factors(positions: Tensor, config: BlockConfig) -> Rotary:
    """cos and sin [positions, head_dim / 2] float32."""
    half = torch.arange(0, config.head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float()[:, None] * config.rope_theta ** (-half / config.head_dim)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotary: Rotary) -> Tensor:
    """x [..., rows, dim]: pairs (i, i + dim / 2) turned by the position's angle."""
    cos, sin = (part.to(x.dtype) for part in rotary)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
