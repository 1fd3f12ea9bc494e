"""The general path: transformers' own modules, with our attention, cache and packed linear layers put in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from outrider.cache.storage import KVStorage
from outrider.errors import ConfigError, ModelError
from outrider.target.attention import Backend, HeadShape
from outrider.target.batch import FlatBatch
from outrider.target.experts import TiledRouter, replace_experts
from outrider.target.formats import STORED_AS
from outrider.target.packed import PackedLinear
from outrider.target.packer import Packer
from outrider.target.pointwise import RowExact
from outrider.target.skip import NO_SKIPPING


@dataclass(frozen=True, slots=True)
class _Pass:
    """What the attention function needs of the forward that it is part of."""

    backend: Backend
    storage: KVStorage
    batch: FlatBatch


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    outrider: _Pass | None = None,
    **unused: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, q_heads, rows, dim], key and value [1, kv_heads, rows, dim].

    Raises ModelError when the model does not hand ``outrider`` on, or its keys do not fit the cache.
    """
    if outrider is None:
        raise ModelError(f"{type(module).__name__} is not supported: it drops keyword arguments of its attention")
    if (key.shape[1], key.shape[3]) != outrider.storage.head_shape or value.shape != key.shape:
        raise ModelError(f"{type(module).__name__} is not supported: its config.json does not tell its key shape")
    shape = HeadShape(
        query.shape[1], key.shape[1], query.shape[3], float(scaling), int(sliding_window or 0), float(softcap or 0.0)
    )
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    out = outrider.backend(q, k, v, module.layer_idx, outrider.storage, outrider.batch, shape)
    return out.to(query.dtype)[None], None


def register() -> None:
    """Make ``attn_implementation="outrider"`` known to transformers (idempotent)."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register("outrider", attention_forward)
    AttentionMaskInterface.register("outrider", lambda *args, **kwargs: None)


def pack_linears(module: nn.Module, packer: Packer) -> list[PackedLinear]:
    """Replace every linear layer below ``module`` by a packed one; the list of them."""
    from transformers.pytorch_utils import Conv1D  # a linear layer with its weight transposed

    packed: list[PackedLinear] = []
    for name, child in module.named_children():
        if isinstance(child, (nn.Linear, Conv1D)):
            linear = packer.linear(child) if isinstance(child, nn.Linear) else packer.matrix(child.weight.T, child.bias)
            setattr(module, name, linear)
            packed.append(linear)
        else:
            packed.extend(pack_linears(child, packer))
    return packed


class GeneralDecoder:
    """A transformers model called with a flat batch; float32 between its packed layers on the CPU."""

    checks_logits = False  # of NaN and infinity

    def __init__(self, model: Any, backend: Backend) -> None:
        self.model, self.backend = model, backend
        self.device = next(model.parameters()).device
        self.linears: list[PackedLinear] = []
        self.unpacked: str | None = None
        self._mode: AbstractContextManager[Any] = nullcontext()
        body = getattr(model, model.base_model_prefix)
        self._layers = next(child for child in body.modules() if isinstance(child, nn.ModuleList))

    def pack(self, packer: Packer) -> None:
        """On the CPU: put packed linear layers and experts in, and round the embeddings as its format has them.

        ``unpacked`` then names a matrix that stays with torch, if there is one.
        """
        if self.device.type != "cpu":
            return
        self._mode = RowExact() if packer.exact else nullcontext()
        packer.name_modules(self.model)
        self.linears = replace_experts(self.model, packer) + pack_linears(self.model, packer)
        routers = [module for module in self.model.modules() if isinstance(module, TiledRouter)]
        tiled = {id(part) for router in routers for part in router.modules()}
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Embedding):
                module.weight.data = module.weight.data.to(STORED_AS[packer.weight_format]).float()
            elif id(module) not in tiled and any(weight.dim() > 1 for weight in module.parameters(recurse=False)):
                self.unpacked = name

    def embed(self, tokens: Tensor) -> Tensor:
        """tokens [rows] -> [rows, hidden] float32."""
        out: Tensor = self.model.get_input_embeddings()(tokens)
        return out.float()

    def normed(self, hidden: Tensor) -> Tensor:
        """The last layer's output [rows, hidden] behind the final norm."""
        out: Tensor = getattr(self.model, self.model.base_model_prefix).norm(hidden)
        return out.float()

    def forward(
        self, batch: FlatBatch, storage: KVStorage, hidden_layers: Sequence[int] = (), skip: bytes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [wanted, vocab] and, when asked, the outputs of ``hidden_layers`` [rows, layers * hidden].

        Raises ConfigError when sublayers are to be skipped: they are transformers' own here.
        """
        if skip is not None:
            raise ConfigError(NO_SKIPPING.format(self.model.config.model_type))
        taps: dict[int, Tensor] = {}
        hooks = [self._tap(index, taps) for index in hidden_layers]
        keep = torch.arange(batch.num_rows) if batch.logit_rows is None else batch.logit_rows
        try:
            with self._mode:
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

        return self._layers[index].register_forward_hook(keep)
