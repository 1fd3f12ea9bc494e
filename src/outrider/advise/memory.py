"""What a candidate needs in memory: weights, and keys and values of all sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outrider.advise.rig import Rig


@dataclass(frozen=True, slots=True)
class Part:
    """``weights``: bytes; ``token``: bytes of a cached token."""

    weights: int = 0
    token: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """``target`` and, by label, what each candidate adds; ``tokens``: of an average sequence at its end."""

    target: Part
    drafts: Mapping[str, Part]
    tokens: int

    def needed(self, label: str, batch: int) -> int:
        """Bytes for ``batch`` sequences; an unknown label is plain decoding."""
        draft = self.drafts.get(label, Part())
        cached = batch * self.tokens * (self.target.token + draft.token)
        return self.target.weights + draft.weights + cached

    def most(self, label: str, limit: int) -> int:
        """Sequences that ``limit`` bytes hold."""
        room = limit - self.needed(label, 0)
        return max(0, room // max(1, self.needed(label, 1) - self.needed(label, 0)))


def memory_of(rig: Rig, tokens: int) -> Memory:
    """Of a loaded target and its candidates."""
    target = rig.target
    return Memory(
        Part(target.weight_bytes, target.kv_bytes_per_token),
        {label: _part(drafter) for label, drafter in rig.drafters.items()},
        tokens,
    )


def _part(drafter: Any) -> Part:
    """Of a drafter: its model, its head, or the copy of the target that it drafts with."""
    inner = getattr(drafter, "inner", None) or drafter  # behind a map of vocabularies
    model, head = getattr(inner, "model", None), getattr(inner, "head", None)
    if head is not None:
        return Part(_packed(head), _cached(inner))
    if model is None:
        return Part()
    own = getattr(inner, "target", None)  # of a self-drafter, whose cache is the target's
    if own is not None:
        return Part(0 if own.model is model else int(model.weight_bytes))
    return Part(int(model.weight_bytes), int(model.kv_bytes_per_token))


def _packed(thing: Any, depth: int = 4) -> int:
    """Bytes of all packed matrices within ``thing``."""
    from outrider.target.packed import PackedLinear

    if isinstance(thing, PackedLinear):
        return int(thing.num_bytes)
    if depth == 0:
        return 0
    if isinstance(thing, list | tuple):
        return sum(_packed(each, depth - 1) for each in thing)
    if not type(thing).__module__.startswith("outrider.heads"):
        return 0
    return sum(_packed(each, depth - 1) for each in vars(thing).values())


def _cached(drafter: Any) -> int:
    """Bytes of a position in a head's own cache."""
    storage = getattr(drafter, "_storage", None)
    return 0 if storage is None else int(storage.num_bytes) // int(storage.values.shape[1])
