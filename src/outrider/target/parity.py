"""The load-time comparison of the general path with transformers' own forward, before any weight is packed.

A transformers class may compute its positions itself, keep its mask to itself, or not hand keyword arguments on to its
attention; served regardless, its rows would be wrong without an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outrider.cache.storage import KVStorage
from outrider.errors import ModelError, NumericsError
from outrider.target.batch import Span, flatten

if TYPE_CHECKING:
    from outrider.target.general import GeneralDecoder

LENGTH, _CUT, _BLOCK = 12, 8, 16
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}  # of the largest logit


@torch.inference_mode()
def check_parity(name: str, decoder: GeneralDecoder, storage: KVStorage, vocab_size: int) -> None:
    """Compare a prompt that is packed with another and continued in a second forward; ``storage`` has 2 blocks of 16.

    Raises ModelError when a row is not what transformers computes for it, NumericsError when that is not finite.
    """
    ids = torch.randint(0, vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(2)).tolist()
    want = _plain(decoder.model, ids, decoder.device)
    if not bool(want.isfinite().all()):
        raise NumericsError(f"model={name!r} computes NaN or infinity: its weights are damaged; fetch it again")
    context, other = torch.arange(2 * _BLOCK, dtype=torch.int32).view(2, _BLOCK).unbind()
    try:
        first, _ = decoder.forward(flatten([Span(ids[1:5], context, 0), Span(ids[:_CUT], other, 0)]), storage)
        rest, _ = decoder.forward(flatten([Span(ids[_CUT:], other, _CUT)]), storage)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"model={name!r} is not supported: it cannot take packed rows ({reason})") from error
    difference = float((torch.cat([first[4:], rest]) - want).abs().max())
    largest = float(want.abs().max())
    if not difference <= _TOLERANCE[decoder.model.dtype] * largest:
        raise ModelError(
            f"model={name!r} is not supported: packed rows differ from its transformers class by {difference:.2g} of "
            f"{largest:.2g}; use another model"
        )


def _plain(model: Any, ids: list[int], device: torch.device) -> Tensor:
    ours = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        logits: Tensor = model(torch.tensor([ids], device=device), use_cache=False).logits[0].float()
    finally:
        model.set_attn_implementation(ours)
    return logits
