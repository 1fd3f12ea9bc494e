"""The load-time assertion that a row's bits are its own, for the kernels, shapes and lengths in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.target.batch import Span

if TYPE_CHECKING:
    from outrider.target.model import Target

_PROMPT = 37
_BLOCK = 16


def verify(target: Target) -> tuple[bool, str]:
    """Run rows alone, in a chunk, and in a tree among siblings, and compare bits: (exact, what it rests on or why not)."""
    if target.device.type != "cpu":
        return False, f"exactness is not proven on {target.device.type}"
    if not target.backend.exact:
        return False, f"attention backend {target.backend.name} sums in an order that depends on the rows"
    broken = [linear.format for linear in target.linears if not linear.exact]
    if broken:
        return False, f"no row-exact tile for {broken[0]} (and {len(broken) - 1} more)"
    if not target.linears:
        return False, "linear layers are not packed"
    length = min(_PROMPT, target.max_model_len - 8)
    if length < 8:
        return False, f"max_model_len={target.max_model_len} is too short for the check"
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, target.vocab_size, (length + 8,), generator=generator).tolist()
    if not _same_rows(target, tokens, length):
        return False, "rows differ in bits between a chunk, single rows and a tree on this machine"
    kernels = {type(linear.kernel).__name__ for linear in target.linears}
    return True, f"asserted at load: {', '.join(sorted(kernels))}, attention {target.backend.name}"


def _same_rows(target: Target, tokens: list[int], length: int) -> bool:
    slots = -(-(2 * length + 32) // _BLOCK) * _BLOCK
    context = torch.arange(slots, dtype=torch.int32)
    whole = target.new_storage(slots, _BLOCK)
    chunk = target.forward([Span(tokens[: length + 4], context, 0)], whole).logits
    parts = target.new_storage(slots, _BLOCK)
    rows: list[Tensor] = [target.forward([Span(tokens[:length], context, 0)], parts).logits]
    for at in range(length, length + 4):
        rows.append(target.forward([Span(tokens[at : at + 1], context, at)], parts).logits)
    tree = target.new_storage(slots, _BLOCK)
    target.forward([Span(tokens[:length], context, 0, logits=[])], tree)
    # The path 0 -> 2 -> 4 -> 5 holds the true tokens; 1 and 3 are siblings in between.
    draft = [tokens[length], tokens[length + 5], tokens[length + 1], tokens[length + 6], *tokens[length + 2 : length + 4]]
    branch = target.forward([Span(draft, context, length, parents=[-1, 0, 0, 1, 2, 4])], tree).logits
    same_chunk = torch.equal(torch.cat(rows), chunk)
    return same_chunk and torch.equal(branch[[0, 2, 4, 5]], chunk[length : length + 4])
