"""From drafts at every position of a text to the steps that the engine would make.

Under the rule ``sample`` a node is accepted iff its token is the one that the target draws, which is the text's own
next token: what was drafted behind a position therefore says how many tokens a step from there commits, without
verifying anything. The engine's steps start where the step before ended, so a walk from the first token of the answer
to its end, for any number of draft tokens, gives the engine's own counts; positions that a long acceptance skips are
skipped here as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outrider.core.draft import Draft

NEVER = 1 << 30  # node of a draft that has none
DEPTH = 8  # positions of acceptance tables


@dataclass(frozen=True, slots=True)
class Shadow:
    """A draft beside the text that followed. ``size``: its nodes; ``path``: those that the text leads along;
    ``below[d]``: the first node under the d-th of them (0: the root), ``NEVER`` for none; ``probes``: its probe rows;
    ``scores`` and ``parents``: as in ``Draft``.

    Nodes come in the order in which a smaller budget keeps them, so that one draft serves all smaller ones.
    """

    size: int
    path: Sequence[int]
    below: Sequence[int]
    probes: int = 0
    scores: Sequence[float] = ()
    parents: Sequence[int] | None = None


def shadow(draft: Draft, following: Sequence[int]) -> Shadow:
    """``draft`` beside the tokens ``following`` its root."""
    probes = 0 if draft.probes is None else len(draft.probes.tokens)
    scores = draft.scores if draft.scores is not None else [0.5] * len(draft)
    if draft.parents is None:
        count = 0
        for mine, theirs in zip(draft.tokens, following, strict=False):
            if mine != theirs:
                break
            count += 1
        size = len(draft)
        return Shadow(size, range(count), [d if d < size else NEVER for d in range(count + 1)], probes, scores)
    path, children = draft.follow(following), draft.children()
    below = [min(children[node + 1], default=NEVER) for node in (-1, *path)]
    return Shadow(len(draft), path, below, probes, scores, list(draft.parents))


@dataclass(slots=True)
class Tally:
    """Counts of the steps behind prefill, as ``SpeculationStats`` has them. ``rows[n]``: steps with n rows (the root,
    nodes and probes); ``drafting[n]``: steps that drafted n nodes; ``reads``: sum of the contexts of all steps."""

    num_steps: int = 0
    num_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted: int = 0
    tested: list[int] = field(default_factory=lambda: [0] * DEPTH)
    accepted: list[int] = field(default_factory=lambda: [0] * DEPTH)
    proposed: list[int] = field(default_factory=lambda: [0] * DEPTH)
    rows: Counter[int] = field(default_factory=Counter)
    drafting: Counter[int] = field(default_factory=Counter)
    reads: int = 0

    def add(self, other: Tally) -> None:
        """Count ``other`` too."""
        self.num_steps += other.num_steps
        self.num_tokens += other.num_tokens
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted += other.num_accepted
        self.reads += other.reads
        for mine, theirs in (
            (self.tested, other.tested),
            (self.accepted, other.accepted),
            (self.proposed, other.proposed),
        ):
            mine[:] = [a + b for a, b in zip(mine, theirs, strict=True)]
        self.rows += other.rows
        self.drafting += other.drafting

    @property
    def tokens_per_step(self) -> float:
        """Mean acceptance length: committed tokens after the first / steps."""
        return self.num_tokens / max(1, self.num_steps)

    @property
    def rows_per_step(self) -> float:
        """Mean rows."""
        return sum(count * times for count, times in self.rows.items()) / max(1, self.num_steps)

    @property
    def context(self) -> float:
        """Mean tokens behind the root."""
        return self.reads / max(1, self.num_steps)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / verified draft tokens, pooled."""
        return self.num_accepted / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def conditional(self) -> list[float | None]:
        """[i] = P(position i accepted | all before it were, and the draft goes on)."""
        return [hits / trials if trials else None for hits, trials in zip(self.accepted, self.tested, strict=True)]

    @property
    def per_position(self) -> list[float]:
        """[i] = P(the first i + 1 accepted), over all steps, those without a draft too."""
        return [hits / max(1, self.num_steps) for hits in self.accepted]


def pooled(parts: Iterable[Tally]) -> Tally:
    """The sum of ``parts``."""
    total = Tally()
    for part in parts:
        total.add(part)
    return total


def walk(shadows: Sequence[Shadow], budget: int, num_prompt_tokens: int, max_tokens: int, *, chain: bool) -> Tally:
    """The engine's steps over one answer of ``len(shadows) + 1`` tokens with ``budget`` draft tokens (0: plain).

    ``shadows[i]``: the draft behind the answer's token i. ``max_tokens``: the longest answer, which bounds the depth of
    the last drafts. ``chain``: a draft no longer than what may still be committed is asked for, as the engine does.
    """
    out, at, last = Tally(), 0, len(shadows)
    while at < last:
        here = shadows[at]
        limit = min(budget, max_tokens - at - 2) if chain else budget if max_tokens - at > 2 else 0
        size = max(0, min(here.size, limit))
        accepted = sum(node < size for node in here.path)
        committed = min(accepted + 1, last - at)
        out.num_steps += 1
        out.num_tokens += committed
        out.num_draft_tokens += size
        out.num_accepted += accepted
        out.rows[1 + size + (here.probes if budget else 0)] += 1
        out.drafting[size] += 1
        out.reads += num_prompt_tokens + at
        _count(out, here, size, accepted, last - at)
        at += committed
    return out


def _count(out: Tally, here: Shadow, size: int, accepted: int, left: int) -> None:
    """Positions of one step; what stands behind the end of the answer was never tested."""
    for depth in range(min(accepted + 1, left, DEPTH)):
        if here.below[depth] < size:
            out.tested[depth] += 1
    for depth in range(min(accepted, DEPTH)):
        out.accepted[depth] += 1
    for depth in range(min(size, DEPTH)):
        out.proposed[depth] += 1
