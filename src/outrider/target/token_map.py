"""Maps between the vocabularies of a target and of a draft model that has another one (arXiv 2502.05202).

| map | a draft token stands for | what the draft model can propose |
|---|---|---|
| ``TokenMap`` (token-level intersection, TLI) | the target's token of the same bytes | what both vocabularies have |
| ``TextMap`` (string-level exact match, SLEM) | its text, whatever the target's tokens for that are | any text |

Special tokens correspond when they are written the same; an end-of-sequence token that is not does to the target's own.
"""

from __future__ import annotations

import logging
from collections import Counter

import torch
from torch import Tensor

from outrider.config import VocabularyName
from outrider.errors import VocabularyError
from outrider.target.spelling import Spelling
from outrider.target.tokenizer import Tokenizer
from outrider.target.vocab import compare_vocabularies

log = logging.getLogger(__name__)


class TokenMap:
    """Tokens that spell the same bytes, one to one: ``to_target`` and ``to_draft``, by id.

    ``target`` and ``draft`` are the two vocabularies. ``alike``: for ids of the target outside the intersection too, a
    draft token of the same bytes (a byte token for a piece of text, or the other way round). Raises VocabularyError
    when no token is shared.
    """

    name = "tli"
    by_text = False  # a draft token may be several of the target's, so that texts are compared and not tokens

    def __init__(self, target: Spelling, draft: Spelling, device: torch.device | str = "cpu") -> None:
        self.target, self.draft, self.device = target, draft, torch.device(device)
        shared = [(id_, draft.id_of[text]) for text, id_ in target.id_of.items() if text in draft.id_of]
        if not shared:
            raise VocabularyError("the draft model's vocabulary shares no token with the target's: use another draft")
        pairs = dict(sorted([*shared, *_special_pairs(target, draft)]))
        self.to_draft = pairs
        self.to_target = {theirs: ours for ours, theirs in pairs.items()}
        self.alike = {
            id_: draft.id_of[text] for id_, text in enumerate(target.bytes_of) if text and text in draft.id_of
        } | pairs
        self._ours = torch.tensor(list(pairs), dtype=torch.int64, device=self.device)
        self._theirs = torch.tensor(list(pairs.values()), dtype=torch.int64, device=self.device)

    def describe(self) -> str:
        """How much of either vocabulary the intersection covers."""
        count, ours, theirs = len(self.to_draft), self.target.num_used, self.draft.num_used
        return (
            f"vocabulary={self.name!r}: {count} tokens are in both vocabularies, {count / theirs:.0%} of the draft "
            f"model's {theirs} and {count / ours:.0%} of the target's {ours}"
        )

    def widen(self, row: Tensor) -> Tensor:
        """Logits [draft vocab] over the target's vocabulary; -infinity outside the intersection."""
        out = row.new_full((len(self.target.bytes_of),), -torch.inf)
        out[self._ours] = row[self._theirs]
        return out

    def narrow(self, scores: Tensor, row: Tensor, wide: Tensor) -> Tensor:
        """``scores`` [target vocab], processed from ``wide = widen(row)``, over the draft's vocabulary."""
        out = scores.new_full(row.shape, -torch.inf)
        out[self._theirs] = scores[self._ours]
        return out

    def over_target(self, q: Tensor) -> Tensor:
        """A law [draft vocab] without mass outside the intersection, over the target's vocabulary."""
        out = q.new_zeros(len(self.target.bytes_of))
        out[self._ours] = q[self._theirs]
        return out

    def choose(self, token: int, scores: Tensor) -> int:
        """The draft token that stands for the target's ``token``; ``scores`` [draft vocab] are the draft's."""
        return self.to_draft[token]

    def spell(self, token: int) -> list[int]:
        """The target's tokens that a draft token stands for."""
        return [self.to_target[token]]


class TextMap(TokenMap):
    """Draft tokens of any text: each belongs to the target's token that its text begins with.

    The law of the target's next token is then the sum over the draft tokens that begin with it.
    """

    name = "slem"
    by_text = True

    def __init__(self, target: Spelling, draft: Spelling, device: torch.device | str = "cpu") -> None:
        super().__init__(target, draft, device)
        first = [target.first(text) if text else self.to_target.get(id_) for id_, text in enumerate(draft.bytes_of)]
        known = sorted((begin, id_) for id_, begin in enumerate(first) if begin is not None)
        self._tokens = torch.tensor([id_ for _, id_ in known], dtype=torch.int64, device=self.device)
        sizes = Counter(begin for begin, _ in known)  # in the order of ``known``
        self._begins = torch.tensor(list(sizes), dtype=torch.int64, device=self.device)
        self._sizes = torch.tensor(list(sizes.values()), dtype=torch.int64, device=self.device)
        self._groups = dict(zip(sizes, torch.split(self._tokens, list(sizes.values())), strict=True))
        self._first = torch.tensor([begin or 0 for begin in first], dtype=torch.int64, device=self.device)
        self._unknown = torch.tensor([begin is None for begin in first], device=self.device)
        self._spelled: dict[int, list[int]] = {}

    def widen(self, row: Tensor) -> Tensor:
        """Log of the draft's law of the target's next token [target vocab], up to a constant."""
        highest = row.max()
        mass = torch.exp(row[self._tokens] - highest)
        out = row.new_full((len(self.target.bytes_of),), -torch.inf)
        out[self._begins] = torch.segment_reduce(mass, "sum", lengths=self._sizes).log() + highest
        return out

    def narrow(self, scores: Tensor, row: Tensor, wide: Tensor) -> Tensor:
        """Scores [draft vocab]: a target token's score, shared among the draft tokens that begin with it."""
        out = row + (scores - wide)[self._first]
        return out.masked_fill_(self._unknown | out.isnan(), -torch.inf)

    def choose(self, token: int, scores: Tensor) -> int:
        """The likeliest draft token that begins with ``token``."""
        group = self._groups[token]
        return int(group[scores[group].argmax()])

    def spell(self, token: int) -> list[int]:
        """The target's tokens for the text of ``token`` alone."""
        if token not in self._spelled:
            text = self.draft.bytes_of[token]
            self._spelled[token] = self.target.encode(text) if text else super().spell(token)
        return self._spelled[token]


def _special_pairs(target: Spelling, draft: Spelling) -> list[tuple[int, int]]:
    """Special tokens of one role: those that are written the same, and the two ends of a text."""
    pairs = {id_: draft.special[text] for text, id_ in target.special.items() if text in draft.special}
    ours, theirs = target.tokenizer.eos_id, draft.tokenizer.eos_id
    known = ours in target.special.values() and theirs in draft.special.values()
    if ours is not None and theirs is not None and known and ours not in pairs and theirs not in pairs.values():
        pairs[ours] = theirs
    return list(pairs.items())


def match_vocabularies(
    wish: VocabularyName,
    target: Tokenizer,
    draft: Tokenizer,
    sizes: tuple[int, int],
    device: torch.device | str = "cpu",
    needs_laws: bool = True,
) -> TokenMap | None:
    """The map that a draft model needs, None when its ids mean what the target's do.

    ``wish``: ``same`` refuses other vocabularies (VocabularyError), ``tli`` and ``slem`` name a map. ``auto`` is
    ``same`` where that goes, else ``slem``, which can propose any text, or ``tli`` where the rule ``needs_laws``.
    ``sizes``: ids that target and draft have logits for.
    """
    if wish in ("auto", "same"):
        try:
            compare_vocabularies(target, draft)
            return None
        except VocabularyError as error:
            if wish == "same":
                raise
            log.info("%s", error)
    kind = TextMap if wish == "slem" or (wish == "auto" and not needs_laws) else TokenMap
    token_map = kind(Spelling(target, sizes[0]), Spelling(draft, sizes[1]), device)
    log.info("draft model: %s", token_map.describe())
    return token_map
