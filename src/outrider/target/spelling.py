"""A vocabulary as bytes: what each token spells, and how a stretch of text is spelled.

Byte-level alphabets, SentencePiece's space mark and byte tokens all become plain bytes, so that the tokens of two
models can be compared. Special tokens and placeholders spell nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.target.tokenizer import Tokenizer
from outrider.target.vocab import PLACEHOLDER

_LEFT = b"\n"  # text behind which a stretch is encoded: no leading space is added there, and few tokens cross it
CONTINUATION = bytes(range(0x80, 0xC0))  # bytes within a UTF-8 character
_OTHER_LEFT = b"a"  # for a stretch that begins with line breaks


class Spelling:
    """The tokens of ``tokenizer`` with ids below ``size``, the rows that the model has logits for.

    ``bytes_of[id]``: the bytes of a token; empty for special and unused ids. ``id_of``: the id that spells some bytes;
    of several the one that a tokenizer would write, a byte token never before a piece of text. ``special``: ids of
    special tokens by their text. ``leading_space``: the tokenizer puts a space before a text, and the ids ``prefix``.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.tokenizer = tokenizer
        pieces = tokenizer.pieces[:size]
        self.bytes_of = [self._spelled(id_, piece) for id_, piece in enumerate(pieces)]
        self.bytes_of += [b""] * (size - len(pieces))
        self.id_of: dict[bytes, int] = {}
        for id_ in sorted(range(size), key=lambda id_: id_ in tokenizer.byte_token_ids):
            if self.bytes_of[id_]:
                self.id_of.setdefault(self.bytes_of[id_], id_)
        self.special = {piece: id_ for id_ in tokenizer.special_ids if id_ < size and (piece := self._piece(id_))}
        self._longest = max(map(len, self.id_of), default=0)
        self.leading_space = self._spell(tokenizer.encode("a", add_special_tokens=False)) == b" a"
        bos = tokenizer.bos_id
        self.prefix = [bos] if bos is not None and tokenizer.encode("a")[:1] == [bos] else []

    def _piece(self, id_: int) -> str | None:
        return self.tokenizer.pieces[id_] if id_ < len(self.tokenizer) else None

    def _spelled(self, id_: int, piece: str | None) -> bytes:
        if piece is None or id_ in self.tokenizer.special_ids or PLACEHOLDER.fullmatch(piece):
            return b""
        try:
            return self.tokenizer.token_bytes(id_)
        except KeyError:  # not written in the byte-level alphabet, so that no text is encoded with it
            return b""

    def _spell(self, ids: Sequence[int]) -> bytes:
        return b"".join(self.bytes_of[id_] for id_ in ids if id_ < len(self.bytes_of))

    @property
    def num_used(self) -> int:
        """Ids that stand for something."""
        return sum(map(bool, self.bytes_of)) + len(self.special)

    def first(self, data: bytes) -> int | None:
        """The longest token that ``data`` begins with."""
        for size in range(min(len(data), self._longest), 0, -1):
            if (id_ := self.id_of.get(data[:size])) is not None:
                return id_
        return None

    def encode(self, data: bytes, left: bytes = _LEFT) -> list[int]:
        """Ids that spell ``data``, as the tokenizer writes it behind the text ``left`` where that can be.

        Where it cannot (half a character at either end, a token that would cross the seam, a normaliser that changes
        the text), the longest token comes next, again and again; bytes that no token begins with are left out.
        """
        text = data.lstrip(CONTINUATION)
        start, end = len(data) - len(text), len(data) - len(text) + len(whole_characters(text))
        for behind in dict.fromkeys((left if not start else _LEFT, _LEFT, _OTHER_LEFT)) if start < end else ():
            if (ids := self._tokenized(data[start:end], behind)) is not None:
                return [*self._longest_first(data[:start]), *ids, *self._longest_first(data[end:])]
        return self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        out, at = [], 0
        while at < len(data):
            id_ = self.first(data[at : at + self._longest])
            if id_ is not None:
                out.append(id_)
            at += len(self.bytes_of[id_]) if id_ is not None else 1
        return out

    def _tokenized(self, data: bytes, left: bytes) -> list[int] | None:
        """What the tokenizer writes for ``data`` behind ``left``; None unless a token begins at the seam."""
        try:
            text = (left + data).decode()
        except UnicodeDecodeError:
            return None
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        spelled = self._spell(ids)
        seam, at = len(spelled) - len(data), 0
        if not spelled.endswith(data) or max(ids) >= len(self.bytes_of):
            return None
        for index, id_ in enumerate(ids):
            if at == seam and self.bytes_of[id_]:
                return ids[index:] if all(self.bytes_of[other] for other in ids[index:]) else None
            at += len(self.bytes_of[id_])
        return None


def whole_characters(data: bytes) -> bytes:
    """``data`` without the UTF-8 character that it ends within."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            return data[:-back] if back < 2 + (byte >= 0xE0) + (byte >= 0xF0) else data
        if byte < 0x80:
            break
    return data
