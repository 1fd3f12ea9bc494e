"""How much of a draft any lossless rule can accept: bounds from the laws p (target) and q (draft) of one position.

Laws are arrays over the vocabulary that sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from outrider.errors import ConfigError

Law = NDArray[np.float64]
_SLACK = 1e-6


def _law(values: ArrayLike, name: str) -> Law:
    law: Law = np.asarray(values, dtype=np.float64).ravel()
    if law.size == 0 or not np.isfinite(law).all() or (law < 0).any() or abs(law.sum() - 1.0) > _SLACK:
        raise ConfigError(f"{name}: a law has no negative entries and sums to 1; it sums to {law.sum():.6g}")
    return law


def _pair(target: ArrayLike, draft: ArrayLike) -> tuple[Law, Law]:
    p, q = _law(target, "target"), _law(draft, "draft")
    if p.size != q.size:
        raise ConfigError(f"target and draft: {p.size} and {q.size} tokens; both laws are over one vocabulary")
    return p, q


def overlap(target: ArrayLike, draft: ArrayLike) -> float:
    """sum_v min(p(v), q(v)) = 1 - TV(p, q): the acceptance of rejection sampling, and the most that any rule reaches
    with one token drawn from q (Leviathan et al. 2023, theorem 3.5; maximal coupling)."""
    p, q = _pair(target, draft)
    return float(np.minimum(p, q).sum())


def certain(target: ArrayLike, token: int) -> float:
    """p(token): the acceptance of a token that was chosen without chance, such as a looked-up one."""
    return float(_law(target, "target")[token])


def candidates(target: ArrayLike, draft: ArrayLike, num_candidates: int) -> float:
    """sum_v min(p(v), 1 - (1 - q(v))^k): an upper bound for k tokens drawn independently from q (Sun et al., "SpecTr",
    NeurIPS 2023): v can only be accepted where it is the target's token and among those drawn."""
    p, q = _pair(target, draft)
    return float(np.minimum(p, 1.0 - (1.0 - q) ** num_candidates).sum())


def top_candidates(target: ArrayLike, num_candidates: int) -> float:
    """The sum of the k highest p(v): no k candidates that are chosen without knowing the draw are accepted more often
    by a rule that emits the target's own draw."""
    law = np.sort(_law(target, "target"))[::-1]
    return float(min(1.0, law[:num_candidates].sum()))


def block_tokens(targets: Sequence[ArrayLike], drafts: Sequence[ArrayLike]) -> float:
    """The most tokens that a step can commit in expectation with one chain, whatever the rule.

    ``targets[i]`` and ``drafts[i]``: the laws of all strings of i + 1 tokens, in the same order. P(the first i tokens
    of the output are the draft's) is at most sum over strings min(p, q), so that the bound is 1 + the sum of those
    (Sun et al., "Block Verification Accelerates Speculative Decoding", ICLR 2025).
    """
    if len(targets) != len(drafts):
        raise ConfigError(
            f"targets and drafts: {len(targets)} and {len(drafts)} lengths; give one law of each a length"
        )
    return 1.0 + sum(overlap(p, q) for p, q in zip(targets, drafts, strict=True))


def most_tokens(alpha: float) -> float:
    """1 / (1 - alpha): tokens of a step that no K exceeds at a constant conditional acceptance; infinite for 1."""
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha={alpha} is no probability; give a number from 0 to 1")
    return 1.0 / (1.0 - alpha) if alpha < 1.0 else float("inf")
