"""What every drafter must do, checked without an engine; parametrised over the registry.

A text is fed to a drafter as an engine would: ``begin`` on a beginning of it, then one ``observe`` a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from drafters.fakes import Counting, FakeSequence, NoNoise, Unprocessed
from drafters.stores import written
from outrider.config import SpeculativeConfig
from outrider.core.draft import Draft
from outrider.drafters import registry
from outrider.drafters.base import Committed, Drafter
from outrider.drafters.registry import REGISTRY, DrafterContext

VOCAB_SIZE = 50
EOS_ID = 49
MAX_MODEL_LEN = 400
CONTEXT = DrafterContext(VOCAB_SIZE, MAX_MODEL_LEN, frozenset({EOS_ID}), load_draft=None, seed=7)
DATASTORE = str(written([[1, 2, 3, 4, 5, 6, 7, 8] * 3, [1, 2, 3] * 20], [[3, 0, 0, 1, EOS_ID, 2, 2, 1, 3, 0, 2]]))

SETTINGS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram"},
    "ngram, long": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 8},
    "suffix": {"method": "suffix"},
    "suffix, shallow": {"method": "suffix", "suffix_decoding_max_tree_depth": 3, "suffix_decoding_max_spec_factor": 4},
    "suffix, tree": {"method": "suffix", "suffix_decoding_tree": True, "suffix_decoding_min_token_prob": 0.0},
    "rest": {"method": "rest", "datastore": DATASTORE, "rest_min_context": 2, "rest_tree": False},
    "rest, tree": {"method": "rest", "datastore": [DATASTORE], "rest_max_continuations": 4},
    "prediction": {"method": "prediction"},
    "token_recycling": {"method": "token_recycling"},
    "token_recycling, widths": {"method": "token_recycling", "tree": [2, 1], "token_recycling_topk": 2},
    "lookahead": {"method": "lookahead"},
    "lookahead, window only": {"method": "lookahead", "lookahead_pool_from_prompt": False},
    "merge": {"method": "merge", "drafters": [{"method": "suffix", "suffix_decoding_tree": True}, {"method": "ngram"}]},
    "route": {"method": "route", "drafters": [{"method": "suffix"}, {"method": "ngram"}]},
    "route, bandit": {
        "method": "route",
        "route_by": "bandit",
        "drafters": [{"method": "prediction"}, {"method": "ngram"}],
    },
    "auto": {"method": "auto"},
    "synthetic": {"method": "synthetic", "synthetic_acceptance_rates": [0.9, 0.5, 0.2]},
}
"""Settings that need no model; every such method of the registry has one, its defaults where nothing is said."""
LISTED = tuple(SETTINGS)  # what is known of them is tested too: that they find repetitions and miss a begin
SETTINGS |= {
    row.method: {"method": row.method}
    for row in REGISTRY.values()
    if not (row.required or row.needs_target or row.needs_head)
    and all(value["method"] != row.method for value in SETTINGS.values())
}
HINTS = frozenset(
    {"token_recycling", "lookahead", "auto"}
)  # methods whose drafts rest on hints alone: rollback leaves them


def make(name: str) -> Drafter:
    """A fresh drafter for an entry of ``SETTINGS``."""
    return registry.build(SpeculativeConfig(**SETTINGS[name]), CONTEXT)


def one(drafter: Drafter, seq: FakeSequence, budget: int) -> Draft:
    """The draft for a single sequence, checked against its contract."""
    (draft,) = drafter.propose([seq], [budget], NoNoise())
    check_draft(draft, seq, budget)
    return draft


def check_draft(draft: Draft, seq: FakeSequence, budget: int) -> None:
    """Shape, budget, context, laws, scores, source, and nothing behind an end-of-sequence token."""
    draft.check(VOCAB_SIZE, budget)
    assert draft.all_delta
    if not len(draft):
        return
    assert draft.source
    assert len(seq.token_ids) + max(draft.depths()) <= MAX_MODEL_LEN
    assert draft.scores is not None
    assert all(0.0 <= score <= 1.0 for score in draft.scores)
    assert all(draft.parent(node) < 0 or draft.tokens[draft.parent(node)] != EOS_ID for node in range(len(draft)))
    for siblings in draft.children():
        assert len({draft.tokens[node] for node in siblings}) == len(siblings)


def same(left: Draft, right: Draft) -> bool:
    """Equal in everything that a step or the planner reads."""
    return (
        list(left.tokens) == list(right.tokens)
        and [left.parent(node) for node in range(len(left))] == [right.parent(node) for node in range(len(right))]
        and left.scores == right.scores
    )


def grow(
    drafter: Drafter, text: Sequence[int], start: int, sizes: Sequence[int], prediction: Sequence[int], seq_id: int = 0
) -> Iterator[FakeSequence]:
    """Feed ``text``: ``begin`` after ``start`` tokens, then steps of ``sizes`` tokens; yields after each."""
    prompt = max(1, start - 1)
    seq = FakeSequence(
        list(text[:start]),
        seq_id=seq_id,
        num_prompt_tokens=prompt,
        prediction=prediction,
        pipeline=Unprocessed(Counting()),
    )
    drafter.begin(seq)
    yield seq
    for size in sizes:
        new = list(text[len(seq.token_ids) : len(seq.token_ids) + size])
        if not new:
            return
        seq.token_ids.extend(new)
        drafter.observe(seq, Committed(new, row_top=_root_row(drafter, new[0])))
        yield seq


def _root_row(drafter: Drafter, token: int) -> Tensor | None:
    """What the target thought likely at a root that had no draft, for a drafter that asks for it."""
    k = drafter.needs.row_topk or int(drafter.needs.row_argmax)
    return torch.arange(token, token + k)[None] % VOCAB_SIZE if k else None


def check_budgets(drafter: Drafter, seq: FakeSequence) -> None:
    """Every budget is kept, none is an empty draft, and asking twice changes nothing."""
    for budget in (0, 1, 2, 5, 64):
        first = one(drafter, seq, budget)
        assert same(first, one(drafter, seq, budget))
    assert not len(one(drafter, seq, 0))


def check_begin_equals_observe(
    new: Callable[[], Drafter], text: Sequence[int], start: int, sizes: Sequence[int], prediction: Sequence[int]
) -> None:
    """After every step the drafts equal those of a drafter that began on the longer text."""
    drafter = new()
    for seq in grow(drafter, text, start, sizes, prediction):
        fresh = new()
        fresh.begin(seq)
        assert same(one(drafter, seq, 8), one(fresh, seq, 8)) or drafter.method in HINTS


def check_truncate(
    new: Callable[[], Drafter],
    text: Sequence[int],
    start: int,
    sizes: Sequence[int],
    cut: int,
    prediction: Sequence[int],
) -> None:
    """After a cut to ``cut`` tokens the drafts equal those before it, and growing on from there goes the same way."""
    drafter, fresh = new(), new()
    *_, seq = grow(drafter, text, start, sizes, prediction)
    seq.token_ids = seq.token_ids[: max(cut, start)]
    drafter.truncate(seq, len(seq.token_ids))
    fresh.begin(seq)
    for size in (0, *sizes):
        new_tokens = list(reversed(text))[:size]
        seq.token_ids = seq.token_ids + new_tokens
        for each in (drafter, fresh):
            each.observe(seq, Committed(new_tokens))
        assert same(one(drafter, seq, 8), one(fresh, seq, 8)) or drafter.method in HINTS


def check_batch(new: Callable[[], Drafter], texts: Sequence[Sequence[int]], prediction: Sequence[int]) -> None:
    """A ragged batch gets the drafts that its sequences get alone; a released neighbour changes nothing."""
    together = new()
    sequences = [
        FakeSequence(list(text), seq_id=i, num_prompt_tokens=1, prediction=prediction) for i, text in enumerate(texts)
    ]
    for seq in sequences:
        together.begin(seq)
    budgets = [3 + i for i in range(len(sequences))]
    drafts = together.propose(sequences, budgets, NoNoise())
    for seq, budget, draft in zip(sequences, budgets, drafts, strict=True):
        alone = new()
        alone.begin(seq)
        check_draft(draft, seq, budget)
        assert same(draft, one(alone, seq, budget))
