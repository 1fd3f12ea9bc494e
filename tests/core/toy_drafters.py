"""Drafters over toy models, honest ones and ones that break their promises: ``(model, context, draws) -> Draft``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from core.enumeration import VOCAB, Drafter, Draws, LazyTokens, Model, Name, Text, ToyLaws, edge
from outrider.core.draft import DELTA, Draft, Iid, Law, WithoutReplacement
from outrider.core.verifiers.base import Verifier
from outrider.core.verifiers.rejection import Rejection
from outrider.drafters import union

Reshape = Callable[[Tensor], Tensor]


def same(q: Tensor) -> Tensor:
    """The law itself."""
    return q


def reduced(q: Tensor) -> Tensor:
    """A draft head without the last token of the vocabulary."""
    return torch.cat([q[:-1] + 1e-3, torch.zeros(1, dtype=q.dtype)]) / (q[:-1] + 1e-3).sum()


def tempered(q: Tensor) -> Tensor:
    """The law at temperature 1/2."""
    return q**2 / (q**2).sum()


def without(q: Tensor, tokens: Sequence[int]) -> Tensor:
    """The law after ``tokens`` were drawn without replacement; uniform over the rest when q is used up."""
    rest, left = q.clone(), torch.ones(VOCAB, dtype=q.dtype)
    rest[list(tokens)] = 0.0
    left[list(tokens)] = 0.0
    return rest / rest.sum() if float(rest.sum()) > 0.0 else left / left.sum()


def static(
    parents: Sequence[int],
    kinds: str,
    who: Sequence[int] | None = None,
    claim: str | None = None,
    draft_law: Reshape = same,
    claimed_law: Reshape | None = None,
) -> Drafter:
    """A tree of fixed shape. ``kinds``: a letter a node: d = delta (next best of q), i = iid, w = without replacement.

    ``claim`` and ``claimed_law`` are what the laws say; by default the truth. ``who``: the draft model of each node.
    """
    claim, claimed_law = claim or kinds, claimed_law or draft_law
    authors = who or [1] * len(parents)

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        shape = Draft(tokens=[0] * len(parents), parents=parents)
        depths, children = shape.depths(), shape.children()

        def law(node: int) -> Tensor:
            prefix = context + tuple(tokens[n] for n in shape.path(node)[:-1])
            return model.law(authors[node], prefix)

        def make(node: int) -> int:
            earlier = [n for n in children[parents[node] + 1] if n < node]
            q = draft_law(law(node))
            if kinds[node] == "d":
                rank = sum(kinds[n] == "d" for n in earlier)
                return int(torch.argsort(q, descending=True, stable=True)[rank])
            q = without(q, [tokens[n] for n in earlier]) if kinds[node] == "w" else q
            return draws.propose(q, depths[node], node)

        def promise(node: int) -> Law:
            if claim[node] == "d":
                return DELTA
            return edge(Iid if claim[node] == "i" else WithoutReplacement, lambda: claimed_law(law(node)))

        tokens = LazyTokens(len(parents), make)
        return Draft(tokens=tokens, parents=parents, laws=[promise(node) for node in range(len(parents))])

    return drafter


def chain(length: int, kind: str = "i", **options: object) -> Drafter:
    """A chain of ``length`` edges of one kind."""
    return static(range(-1, length - 1), kind * length, **options)  # type: ignore[arg-type]


TWO_TWO = (-1, -1, 0, 0, 1, 1)
TWO_ONE = (-1, -1, 0, 1)


def tree(kind: str, parents: Sequence[int] = TWO_TWO, **options: object) -> Drafter:
    """A tree with edges of one kind."""
    return static(parents, kind * len(parents), **options)  # type: ignore[arg-type]


def stopping(length: int, bar: float, include: bool = True) -> Drafter:
    """A sampled chain that stops after a token of probability below ``bar``; a mutant leaves that token out."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        tokens: list[int] = []
        laws: list[Law] = []
        for node in range(length):
            q = model.law(1, (*context, *tokens))
            token = draws.propose(q, node + 1, node)
            low = float(q[token]) < bar
            if include or not low:
                tokens.append(token)
                laws.append(Iid(q))
            if low:
                break
        return Draft(tokens=tokens, laws=laws)

    return drafter


def stop_before(length: int, bar: float) -> Drafter:
    """A sampled chain that stops when the law of the next token is flat, before it draws from it."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        tokens: list[int] = []
        laws: list[Law] = []
        for node in range(length):
            q = model.law(1, (*context, *tokens))
            if float(q.max()) < bar:
                break
            tokens.append(draws.propose(q, node + 1, node))
            laws.append(Iid(q))
        return Draft(tokens=tokens, laws=laws)

    return drafter


def pruned_delta(keep: int) -> Drafter:
    """A top-2 tree of depth 2 of which the ``keep`` nodes of the highest path probability stay (EAGLE-2)."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        full = tree("d")(model, context, draws)
        scores: list[float] = []
        for node in range(len(full)):
            path = full.path(node)
            q = model.law(1, context + tuple(full.tokens[n] for n in path[:-1]))
            above = scores[path[-2]] if len(path) > 1 else 1.0
            scores.append(above * float(q[full.tokens[node]]))
        best = sorted(range(len(full)), key=lambda node: (-scores[node], node))[:keep]
        return full.keep(sorted(best))

    return drafter


def merged_delta() -> Drafter:
    """The union of the greedy chains of two draft models under one root, equal prefixes merged."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        for who in (1, 2):
            node, prefix = -1, context
            for _ in range(2):
                token = int(model.law(who, prefix).argmax())
                known = [n for n, parent in enumerate(parents) if parent == node and tokens[n] == token]
                if not known:
                    tokens.append(token)
                    parents.append(node)
                node, prefix = known[0] if known else len(tokens) - 1, (*prefix, token)
        return Draft(tokens=tokens, parents=parents)

    return drafter


Part = Callable[[Model, Text, Draws, str], Draft]
Edit = Callable[[Draft, Model, Text], Draft]


def greedy_part(who: int, length: int = 2) -> Part:
    """A member's deterministic chain, scored by its model."""

    def part(model: Model, context: Text, draws: Draws, purpose: str) -> Draft:
        tokens: list[int] = []
        scores: list[float] = []
        for _ in range(length):
            q = model.law(who, (*context, *tokens))
            scores.append(float(q.max()))
            tokens.append(int(q.argmax()))
        return Draft(tokens, scores=scores, source="greedy")

    return part


def drawn_part(who: int, kind: type[Law] = Iid, parents: Sequence[int] = (-1,)) -> Part:
    """A member's samples; its draws are its own when its ``purpose`` is."""

    def part(model: Model, context: Text, draws: Draws, purpose: str) -> Draft:
        shape = Draft([0] * len(parents), parents)
        depths, children = shape.depths(), shape.children()
        tokens: list[int] = []
        laws: list[Law] = []
        for node, parent in enumerate(parents):
            q = model.law(who, context + tuple(tokens[n] for n in shape.path(node)[:-1]))
            earlier = [tokens[n] for n in children[parent + 1] if n < node]
            rest = without(q, earlier) if kind is WithoutReplacement else q
            tokens.append(draws.propose(rest, depths[node], node, purpose))
            laws.append(kind(q))  # type: ignore[call-arg]
        return Draft(tokens, parents, laws, scores=[0.5] * len(tokens), source="drawn")

    return part


def merged_by_union(budget: int, *parts: Part) -> Drafter:
    """What ``merge`` makes of deterministic members: one trie, cut to the likeliest nodes."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        made = [(f"member {n}", part(model, context, draws, f"draft {n}")) for n, part in enumerate(parts)]
        return union.merge(made, budget, lambda source, depth, score: score, "merge")

    return drafter


def joined_by_union(*parts: Part, edit: Edit | None = None, own_draws: bool = True) -> Drafter:
    """What ``merge`` makes of members with laws: side by side. ``edit`` and shared draws are what it must not do."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        made = []
        for number, part in enumerate(parts):
            purpose = f"draft {number}" if own_draws else "draft"
            made.append((f"member {number}", part(model, context, draws, purpose)))
        draft = union.join(made, "merge")
        return draft if edit is None else edit(draft, model, context)

    return drafter


def once(draft: Draft, model: Model, context: Text) -> Draft:
    """Equal children of the root are one: the later ones and what hangs on them are dropped."""
    first = {}
    for node in range(len(draft)):
        if draft.parent(node) < 0:
            first.setdefault(draft.tokens[node], node)
    return draft.keep([n for n in range(len(draft)) if draft.path(n)[0] in first.values()])


def likeliest(draft: Draft, model: Model, context: Text) -> Draft:
    """The budget is kept by cutting the nodes whose tokens came out least likely."""
    q = model.law(1, context)
    roots = [node for node in range(len(draft)) if draft.parent(node) < 0]
    best = max(roots, key=lambda node: float(q[draft.tokens[node]]))
    return draft.keep([n for n in range(len(draft)) if draft.path(n)[0] == best])


def routed(look: bool) -> Drafter:
    """Greedy chain of model 2 or a sample of model 1, chosen by the first one's score; ``look``: and by the sample."""
    free, drawn = greedy_part(2, 1), drawn_part(1)

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        sure = free(model, context, draws, "draft 0")
        assert sure.scores is not None
        if look:
            other = drawn(model, context, draws, "draft 1")
            confidence = float(model.law(1, context)[other.tokens[0]])
            return sure if sure.scores[0] > confidence else other
        return sure if sure.scores[0] > 0.5 else drawn(model, context, draws, "draft 1")

    return drafter


def siblings(edit: Callable[[list[int], Tensor], list[int]], count: int = 2) -> Drafter:
    """iid children of the root, edited after they were drawn: what no drafter may do."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        q = model.law(1, context)
        drawn = [draws.propose(q, 1, node) for node in range(count)]
        kept = edit(drawn, q)
        return Draft(tokens=kept, parents=[-1] * len(kept), laws=[Iid(q)] * len(kept))

    return drafter


def paths(count: int, length: int, counted: bool = True) -> Drafter:
    """``count`` iid chains merged into a trie; a mutant forgets the multiplicities."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        laws: list[Law] = []
        counts: list[int] = []
        for path in range(count):
            node, prefix = -1, context
            for depth in range(1, length + 1):
                q = model.law(1, prefix)
                token = draws.propose(q, depth, path * length + depth)
                known = [n for n, parent in enumerate(parents) if parent == node and tokens[n] == token]
                if not known:
                    tokens.append(token)
                    parents.append(node)
                    laws.append(Iid(q))
                    counts.append(0)
                node, prefix = known[0] if known else len(tokens) - 1, (*prefix, token)
                counts[node] += 1
        return Draft(tokens=tokens, parents=parents, laws=laws, multiplicity=counts if counted else [1] * len(counts))

    return drafter


def hierarchical(rule: Verifier | None = None, length: int = 2) -> Drafter:
    """A chain that an inner engine wrote (draft model 2 verified by middle model 1), with the middle model's law.

    ``rule``: the inner verifier; a wrong one makes the claimed law wrong.
    """
    inner = rule or Rejection()

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        middle = _Middle(model)
        text, rounds = context, 0
        while len(text) < len(context) + length:
            nested = _Nested(draws, rounds)
            q = model.law(2, text)
            draft = Draft(tokens=[draws.propose(q, 1, 0, f"inner {rounds}")], laws=[Iid(q)])
            walk = inner.walk(draft, ToyLaws(middle, text, draft, draws), nested)
            text, rounds = (*text, *(draft.tokens[n] for n in walk.path), walk.next_token), rounds + 1
        tokens = text[len(context) : len(context) + length]
        laws = [Iid(model.law(1, context + tokens[:depth])) for depth in range(length)]
        return Draft(tokens=tokens, laws=laws)

    return drafter


class _Middle(Model):
    """The middle model in the role of a target."""

    def __init__(self, model: Model) -> None:
        super().__init__(model.seed)
        self._model = model

    def p(self, prefix: Text) -> Tensor:
        return self._model.law(1, prefix)


class _Nested:
    """The outer draws under names of their own, for an inner rule."""

    def __init__(self, draws: Draws, rounds: int) -> None:
        self._draws, self._rounds = draws, rounds

    def categorical(self, weights: Tensor, purpose: str, node: int) -> int:
        return self._draws.propose(weights, 1, node, f"inner {purpose} {self._rounds}")

    def bernoulli(self, probability: float, purpose: str, node: int) -> bool:
        chance = min(1.0, probability)
        name = f"inner {purpose} {self._rounds}"
        return self._draws.propose(torch.tensor([chance, 1.0 - chance], dtype=torch.float64), 1, node, name) == 0


def shared_noise_chain(length: int) -> Drafter:
    """A chain drawn with the numbers that the target will use at the same positions; its law is delta."""

    def drafter(model: Model, context: Text, draws: Draws) -> Draft:
        tokens: list[int] = []
        for depth in range(1, length + 1):
            weights = model.law(1, (*context, *tokens)).tolist()
            tokens.append(draws.draw(weights, Name("target", draws.root, depth - 1, draws.root + depth)))
        return Draft(tokens=tokens)

    return drafter
