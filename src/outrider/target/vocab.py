"""Whether a draft model speaks the target's vocabulary.

A draft token is an id; it means the same to both models only if their id-to-token maps are one. Embedding sizes may
differ, and so may placeholders at unused ids.
"""

from __future__ import annotations

import hashlib
import re

from outrider.errors import VocabularyError
from outrider.target.tokenizer import Tokenizer

PLACEHOLDER = re.compile(
    r"\[PAD\d+\]|\[UNUSED_?\d+\]|<\|?(?:\w*reserved\w*|unused|extra|dummy|placeholder|pad)[_-]?\d+\|?>", re.IGNORECASE
)
SHOWN = 3  # differences that a message lists


def compare_vocabularies(target: Tokenizer, draft: Tokenizer) -> None:
    """Raise VocabularyError when an id stands for different tokens in the two models.

    The message counts the differing ids, shows the first ones and says how many are special tokens.
    """
    ours, theirs = _used(target), _used(draft)
    differing = [id_ for id_ in sorted(ours.keys() | theirs.keys()) if ours.get(id_) != theirs.get(id_)]
    if not differing:
        return
    shown = ", ".join(f"{id_}: {_show(ours, id_)} / {_show(theirs, id_)}" for id_ in differing[:SHOWN])
    special = sum(id_ in target.special_ids or id_ in draft.special_ids for id_ in differing)
    raise VocabularyError(
        f"the draft model's vocabulary ({len(theirs)} tokens) is not the target's ({len(ours)}): {len(differing)} ids "
        f"differ, {special} of them special (target / draft: {shown}); set vocabulary to 'tli' or 'slem', use a draft "
        "model of the target's family, or a method without one"
    )


def fingerprint(tokenizer: Tokenizer) -> str:
    """Equal for tokenizers with one id-to-token map, placeholders left out: 32 hexadecimal digits."""
    lines = (f"{id_} {piece}\n" for id_, piece in sorted(_used(tokenizer).items()))
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _used(tokenizer: Tokenizer) -> dict[int, str]:
    pieces = enumerate(tokenizer.pieces)
    return {id_: piece for id_, piece in pieces if piece is not None and not PLACEHOLDER.fullmatch(piece)}


def _show(pieces: dict[int, str], id_: int) -> str:
    return repr(pieces[id_]) if id_ in pieces else "none"
