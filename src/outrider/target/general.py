"""The general path: transformers' own modules, with our attention, cache and packed linear layers put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outrider.cache.storage import KVStorage
from outrider.target.attention import Backend, HeadShape
from outrider.target.batch import FlatBatch
from outrider.target.experts import replace_experts
from outrider.target.packed import PackedLinear


@dataclass(frozen=True, slots=True)
class _Pass:
    """What the attention function needs of the forward that it is part of."""

    backend: Backend
    storage: KVStorage
    batch: FlatBatch


def attention_forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *, scaling: float,
    sliding_window: int | None = None, softcap: float | None = None, outrider: _Pass, **unused: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, q_heads, rows, dim], key and value [1, kv_heads, rows, dim]."""
    shape = HeadShape(
        query.shape[1], key.shape[1], query.shape[3], float(scaling), int(sliding_window or 0), float(softcap or 0.0)
    )
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    out = outrider.backend(*rows, module.layer_idx, outrider.storage, outrider.batch, shape)
    return out.to(query.dtype)[None], None


def register() -> None:
    """Make ``attn_implementation="outrider"`` known to transformers (idempotent)."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register("outrider", attention_forward)
    AttentionMaskInterface.register("outrider", lambda *args, **kwargs: None)


def pack_linears(module: nn.Module, dtype: torch.dtype, exact: bool) -> list[PackedLinear]:
    """Replace every linear layer below ``module`` by a packed one, experts too; the list of them."""
    packed: list[PackedLinear] = []
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            linear = PackedLinear(child.weight.detach(), child.bias, dtype, exact)
            setattr(module, name, linear)
            packed.append(linear)
        else:
            packed.extend(pack_linears(child, dtype, exact))
    return packed


class GeneralDecoder:
    """A transformers model called with a flat batch; float32 between its packed layers on the CPU."""

    def __init__(self, model: Any, dtype: torch.dtype, exact: bool, backend: Backend) -> None:
        self.model, self.backend = model, backend
        self.device = next(model.parameters()).device
        self.linears: list[PackedLinear] = []
        if self.device.type == "cpu":
            self.linears = replace_experts(model, dtype, exact) + pack_linears(model, dtype, exact)

    def forward(
        self, batch: FlatBatch, storage: KVStorage, hidden_layers: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [wanted, vocab] and, when asked, the outputs of ``hidden_layers`` [rows, layers * hidden]."""
        taps: dict[int, Tensor] = {}
        hooks = [self._tap(index, taps) for index in hidden_layers]
        keep = torch.arange(batch.num_rows) if batch.logit_rows is None else batch.logit_rows
        try:
            out = self.model(
                input_ids=batch.tokens[None].to(self.device),
                position_ids=batch.positions[None].to(self.device),
                use_cache=False,
                logits_to_keep=keep.to(self.device),
                outrider=_Pass(self.backend, storage, batch),
            )
        finally:
            for hook in hooks:
                hook.remove()
        hidden = torch.cat([taps[i].float() for i in hidden_layers], dim=1) if hidden_layers else None
        return out.logits[0].float(), hidden

    def _tap(self, index: int, taps: dict[int, Tensor]) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            taps[index] = (output[0] if isinstance(output, tuple) else output)[0]

        return self.model.model.layers[index].register_forward_hook(keep)
