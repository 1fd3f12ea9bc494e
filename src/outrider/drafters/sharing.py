"""Sharing out a step among the members of a drafter: hidden states, row outputs, probe rows, and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider.core.draft import Draft, Probes
from outrider.drafters.base import Committed, DraftNoise, DraftSequence, Needs


def taps_of(all_needs: Needs, needs: Needs, hidden: Tensor | None) -> Tensor | None:
    """The columns of ``hidden`` [rows, layers * size], which has the layers of ``all_needs``, that ``needs`` names."""
    if hidden is None or not needs.hidden_layers:
        return None
    if needs.hidden_layers == all_needs.hidden_layers:
        return hidden
    size = hidden.shape[1] // len(all_needs.hidden_layers)
    places = [all_needs.hidden_layers.index(layer) for layer in needs.hidden_layers]
    return torch.cat([hidden[:, place * size : (place + 1) * size] for place in places], dim=1)


def share_of(committed: Committed, all_needs: Needs, needs: Needs, key: int) -> Committed:
    """``committed`` as member ``key`` would have got it by itself. The nodes of the draft are those of all members."""
    draft, top, wanted = committed.draft, committed.row_top, needs.row_topk or int(needs.row_argmax)
    probing = draft is not None and draft.probes is not None
    if committed.hidden is None and top is None and not probing:
        return committed
    if draft is not None and draft.probes is not None:
        first, count = probes_of(draft, key)
        mine = [*range(1 + len(draft)), *(1 + len(draft) + first + row for row in range(count))]
        top = top[mine] if top is not None else None
        probes = draft.probes
        below = [parent - first if parent >= 0 else -1 for parent in probes.parents[first : first + count]]
        draft = replace(draft, probes=Probes(probes.tokens[first : first + count], below) if count else None)
    return replace(
        committed,
        draft=draft,
        hidden=taps_of(all_needs, needs, committed.hidden),
        row_top=None if top is None or not wanted else top[:, :wanted],
    )


def probes_of(draft: Draft, key: int) -> tuple[int, int]:
    """First row and number of a member's probes in the probes of a joint draft."""
    known = draft.info.get("probes")
    return known.get(key, (0, 0)) if isinstance(known, dict) else (0, 0)


def with_probes(draft: Draft, parts: Mapping[int, Draft]) -> Draft:
    """``draft`` with the probes of all ``parts``, by member, one after the other."""
    tokens: list[int] = []
    parents: list[int] = []
    places: dict[int, tuple[int, int]] = {}
    for key, part in parts.items():
        if part.probes is None:
            continue
        first = len(tokens)
        places[key] = (first, len(part.probes.tokens))
        tokens += part.probes.tokens
        parents += [parent + first if parent >= 0 else -1 for parent in part.probes.parents]
    if not tokens:
        return draft
    return replace(draft, probes=Probes(tokens, parents), info={**draft.info, "probes": places})


def union(needs: Sequence[Needs]) -> Needs:
    """What all of ``needs`` ask for together: the wider of the row outputs, every layer once, ascending."""
    layers = sorted({layer for each in needs for layer in each.hidden_layers})
    return Needs(
        hidden_layers=tuple(layers),
        row_argmax=any(each.row_argmax for each in needs),
        row_topk=max((each.row_topk for each in needs), default=0),
        can_truncate=all(each.can_truncate for each in needs),
    )


class OwnNoise:
    """The noise of member ``place`` of ``count``: under a classical rule no two members share a draw."""

    def __init__(self, noise: DraftNoise, place: int, count: int) -> None:
        self.shared, self.merge_paths = noise.shared, noise.merge_paths
        self._noise, self._place, self._count = noise, place, count

    def candidates(self, seq: DraftSequence, scores: Tensor, position: int, count: int) -> list[int]:
        """As in ``DraftNoise``: the target's noise is the same for all."""
        return self._noise.candidates(seq, scores, position, count)

    def perturbed(self, seq: DraftSequence, scores: Tensor, position: int, tokens: Sequence[int]) -> Tensor:
        """As in ``DraftNoise``: the target's noise is the same for all."""
        return self._noise.perturbed(seq, scores, position, tokens)

    def inner_key(self, seq: DraftSequence) -> int:
        """As in ``DraftNoise``, a key that no other member shares."""
        return self._noise.inner_key(seq) if self.shared else self._noise.inner_key(seq) ^ self._place

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        """As in ``DraftNoise``, from draws that no other member sees."""
        return self._noise.sample(seq, weights, position, index * self._count + self._place)
