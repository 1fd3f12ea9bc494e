"""The load-time assertion that a row's bits are its own, for the kernels, shapes and lengths in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from outrider import native
from outrider.target.batch import Span
from outrider.target.packed import kernel_name

if TYPE_CHECKING:
    from outrider.target.model import Target

_PROMPT = 37
_BLOCK = 16


def verify(target: Target) -> tuple[bool, str]:
    """Compare the bits of rows in one chunk, in pieces and in a tree: (exact, what it rests on or why not)."""
    if target.device.type != "cpu":
        return False, f"exactness is not proven on {target.device.type}"
    if not target.backend.exact:
        return False, f"attention backend {target.backend.name} sums in an order that depends on the rows"
    broken = [linear.format for linear in target.linears if not linear.exact]
    if broken:
        return False, f"no row-exact tile for {broken[0]} (and {len(broken) - 1} more)"
    if target.unpacked is not None:
        return False, f"the matrices of {target.unpacked} stay with torch, whose rows depend on one another"
    length = min(_PROMPT, target.max_model_len - 8)
    if length < 8:
        return False, f"max_model_len={target.max_model_len} is too short for the check"
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, target.vocab_size, (length + 8,), generator=generator).tolist()
    if not _same_rows(target, tokens, length):
        return False, "rows differ in bits between a chunk, its pieces and a tree on this machine"
    kernels = {kernel_name(linear.kernel) for linear in target.linears}
    return True, f"asserted at load: {', '.join(sorted(kernels))}, attention {target.backend.name}"


def _same_rows(target: Target, tokens: list[int], length: int) -> bool:
    """Rows of one chunk, against the same rows in pieces: with neighbours, other slots, other threads, in a tree."""
    slots = -(-(length + 8) // _BLOCK) * _BLOCK
    forwards = torch.arange(slots, dtype=torch.int32)
    chunk = target.forward([Span(tokens[: length + 4], forwards, 0)], target.new_storage(slots, _BLOCK)).logits
    pieces = target.new_storage(slots + _BLOCK, _BLOCK)
    context = forwards.flip(0).contiguous()
    neighbour = Span(tokens[3:6], torch.arange(slots, slots + _BLOCK, dtype=torch.int32), 0, logits=[])
    threads = native.threads()
    try:
        native.set_threads(1)
        rows = [
            target.forward([neighbour, Span(tokens[:5], context, 0)], pieces).logits,
            target.forward([Span(tokens[5:length], context, 5), neighbour], pieces).logits,
        ]
        for first, last in ((0, 1), (1, 2), (2, 4)):
            span = Span(tokens[length + first : length + last], context, length + first)
            rows.append(target.forward([span], pieces).logits)
    finally:
        native.set_threads(threads)
    # The path 0 -> 2 -> 4 -> 5 holds the true tokens; 1 and 3 are siblings in between.
    true, others = tokens[length : length + 4], tokens[length + 5 : length + 7]
    draft = [true[0], others[0], true[1], others[1], *true[2:]]
    tree = Span(draft, context, length, parents=[-1, 0, 0, 1, 2, 4])
    branch = target.forward([neighbour, tree], pieces).logits
    return torch.equal(torch.cat(rows), chunk) and torch.equal(branch[[0, 2, 4, 5]], chunk[length : length + 4])
