"""Which tokens a head with a reduced vocabulary can draft: those that the target wrote most often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.train.answers import Sample


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """``ids`` [draft vocab], ascending; ``coverage``: share of the answers' tokens that are among them."""

    ids: Tensor
    coverage: float


def choose(samples: Iterable[Sample], size: int, vocab_size: int, forced: Sequence[int]) -> DraftVocabulary:
    """The ``size`` most frequent tokens of the answers, ``forced`` ones first; the lowest ids fill up."""
    counts: Counter[int] = Counter()
    for sample in samples:
        counts.update(sample.token_ids[sample.num_prompt_tokens :])
    ranked = [token for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    order = dict.fromkeys([*forced, *ranked, *range(vocab_size)])
    ids = sorted(list(order)[: min(size, vocab_size)])
    known = set(ids)
    total = sum(counts.values())
    covered = sum(count for token, count in counts.items() if token in known)
    return DraftVocabulary(torch.tensor(ids), covered / total if total else 0.0)
