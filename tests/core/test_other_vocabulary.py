"""Losslessness by enumeration of a draft model with another vocabulary, whose law is that of the intersection."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from core.enumeration import VOCAB, Drafter, Draws, Model, Text, models, run_steps, tv
from core.test_lossless import CAUGHT, EXACT
from drafters.fakes import FakeSequence
from outrider.core.draft import Draft, Iid, Law
from outrider.core.logits import LogitsPipeline
from outrider.core.verifiers.registry import make_verifier
from outrider.drafters.translate import Mirror, mapped
from outrider.target.token_map import TokenMap

OURS = [b"a", b"b", b"c", b"d"]
THEIRS = [b"x", b"c", b"a", b"y", b"d"]  # no b, two tokens of its own, another order


def vocabulary(tokens: list[bytes]) -> Any:
    """A vocabulary without special tokens."""
    ids = {text: id_ for id_, text in enumerate(tokens)}
    tokenizer = SimpleNamespace(eos_id=None, bos_id=None)
    return SimpleNamespace(
        bytes_of=tokens,
        id_of=ids,
        special={},
        tokenizer=tokenizer,
        prefix=[],
        leading_space=False,
        encode=lambda text: [0],
    )


TOKEN_MAP = TokenMap(vocabulary(OURS), vocabulary(THEIRS))
assert len(OURS) == VOCAB


def draft_logits(model: Model, prefix: Text) -> Tensor:
    """Logits of the draft model [draft vocab]: the toy's own draft model where the tokens are shared."""
    rng = np.random.default_rng([model.seed, 5, *prefix])
    row = torch.tensor(rng.normal(size=len(THEIRS)) - 1.5, dtype=torch.float32)
    for theirs, ours in TOKEN_MAP.to_target.items():
        row[theirs] = float(model.law(1, prefix)[ours].log().clamp(min=-30.0))
    return row


Claim = Callable[[Tensor, Tensor], Tensor]


def honest(q: Tensor, row: Tensor) -> Tensor:
    """The law that the token was drawn from."""
    return q


def not_renormalised(q: Tensor, row: Tensor) -> Tensor:
    """The draft's law over its whole vocabulary, of which the target sees a part."""
    return torch.softmax(row.double(), 0)


def chain(length: int, siblings: int = 1, claim: Claim = honest) -> Drafter:
    """Iid nodes drawn in the draft's vocabulary and translated by the real code; the first level has ``siblings``."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        seq = FakeSequence(list(context), pipeline=LogitsPipeline(vocab_size=VOCAB))
        mirror = Mirror(seq, TOKEN_MAP)
        tokens: list[int] = []
        parents: list[int] = []
        laws: list[Law] = []
        frontier = [(-1, ())]
        for depth in range(1, length + 1):
            below: list[tuple[int, Any]] = []
            for node, path in frontier:
                row = draft_logits(model, context + tuple(TOKEN_MAP.to_target[token] for token in path))
                q = torch.softmax(mirror.pipeline.process(row, (), path).double(), 0)
                for _ in range(siblings if depth == 1 else 1):
                    tokens.append(draws.propose(q, depth, len(tokens)))
                    parents.append(node)
                    laws.append(Iid(claim(q, row)))
                    below.append((len(tokens) - 1, (*path, tokens[-1])))
            frontier = below
        return mapped(Draft(tokens, parents, laws), TOKEN_MAP)

    return drafter


def unrestricted(model: Model, context: Text, draws: Draws) -> Draft:
    """Mutant: a token drawn in the intersection, claimed to come from the toy's law of the whole vocabulary."""
    draft = chain(1)(model, context, draws)
    return Draft(draft.tokens, draft.parents, [Iid(model.law(1, context))])


PROOFS = [(rule, chain(2)) for rule in ("rejection", "block", "traversal", "kseq", "sample")]
PROOFS += [(rule, chain(2, siblings=2)) for rule in ("rejection", "traversal")] + [("sample", chain(1, siblings=2))]


@pytest.mark.parametrize(("rule", "drafter"), PROOFS)
def test_the_law_of_the_target_is_kept(rule: str, drafter: Drafter) -> None:
    for model in models(6):
        assert tv(run_steps(make_verifier(rule), [drafter], model), model) <= EXACT


def test_two_steps_keep_it_too() -> None:
    for model in models(3):
        assert tv(run_steps(make_verifier("rejection"), [chain(2), chain(1)], model), model) <= EXACT


@pytest.mark.parametrize("rule", ["rejection", "block", "traversal", "kseq"])
@pytest.mark.parametrize("mutant", [chain(2, claim=not_renormalised), unrestricted], ids=["sum < 1", "unrestricted"])
def test_a_law_that_is_not_the_restricted_one_is_caught(rule: str, mutant: Drafter) -> None:
    dense = [model for model in models(6) if not model.zeros_q]
    assert max(tv(run_steps(make_verifier(rule), [mutant], model), model) for model in dense) > CAUGHT
