"""Token recycling: a tree of what the target itself thought likely after each token, when it last met that token.

Source: token recycling, arXiv 2408.08696. A matrix holds, for every token of the vocabulary, the target's k best next
tokens at the last row with that token: accepted or rejected, the rows of a step are paid for and most engines throw
them away. The draft is the breadth-first tree that the matrix spans from the root. The paper's tree has one shape for
all steps; here it takes the nodes that are most likely accepted, by their rank in the row and by how often the best
token of the row stayed the same, unless ``tree`` fixes the children per depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Committed, DraftSequence, Needs
from outrider.drafters.hints import PerSalt
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.registry import DrafterContext

_BYTES = 64 << 20  # of all matrices together
_STEADY = 3  # repeats that are told apart


class Adjacency:
    """The target's best next tokens after each token, and how often in a row the very best one was the same."""

    def __init__(self, vocab_size: int, k: int) -> None:
        self._next: NDArray[np.int32] = np.full((vocab_size, k), -1, dtype=np.int32)
        self._repeats: NDArray[np.uint8] = np.zeros(vocab_size, dtype=np.uint8)

    def update(self, tokens: Sequence[int], top: NDArray[np.int64]) -> None:
        """The target's best ids after ``tokens`` are ``top`` [tokens, k]; of equal tokens the last one counts."""
        at = np.fromiter(tokens, dtype=np.int64, count=len(tokens))
        same = self._next[at, 0] == top[:, 0]
        self._repeats[at] = np.where(same, np.minimum(self._repeats[at] + 1, _STEADY), 0)
        self._next[at] = top

    def following(self, token: int) -> tuple[list[int], int]:
        """The best ids after ``token``, best first (none when it was never met), and the repeats of the first."""
        ids: list[int] = self._next[token].tolist()
        return (ids, int(self._repeats[token])) if ids[0] >= 0 else ([], 0)


class Followed:
    """The state of a sequence: its length. What is recycled belongs to no sequence."""

    def __init__(self, length: int) -> None:
        self.length = length

    def extend(self, tokens: Sequence[int]) -> None:
        """Append ``tokens``."""
        self.length += len(tokens)

    def truncate(self, length: int) -> None:
        """Back to ``length`` tokens."""
        self.length = length


class TokenRecycling(LookupDrafter[Followed]):
    """Token recycling; the matrix is a hint that all requests with the same salt share."""

    def __init__(
        self, vocab_size: int, k: int, widths: Sequence[int] | None, eos_ids: frozenset[int], max_model_len: int
    ) -> None:
        super().__init__("token_recycling", max_model_len)
        self.needs = Needs(row_topk=min(k, vocab_size))
        size = vocab_size * (4 * self.needs.row_topk + 1)
        self.matrices = PerSalt(lambda: Adjacency(vocab_size, self.needs.row_topk), _BYTES // size)
        self._widths, self._eos_ids = widths, eos_ids

    def start(self, seq: DraftSequence) -> Followed:
        """Nothing but the length."""
        return Followed(len(seq.token_ids))

    def draft(self, seq: DraftSequence, state: Followed, budget: int) -> Draft:
        """The likeliest ``budget`` nodes below the root, or the tree of the fixed widths; nothing for a new token."""
        matrix = self.matrices.get(seq.cache_salt)
        if matrix is None:
            return EMPTY
        if self._widths is not None:
            return self._level_by_level(matrix, seq.token_ids[-1], self._widths, budget)
        return self._best_first(matrix, seq.token_ids[-1], budget)

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Recycle all rows of the step; where a token had several, the one on the accepted path counts."""
        top = committed.row_top
        if top is None:
            return
        draft = EMPTY if committed.draft is None else committed.draft
        root = seq.token_ids[-len(committed.token_ids) - 1]
        tokens = [root, *draft.tokens, *(draft.probes.tokens if draft.probes else ())]
        path = {0, *(node + 1 for node in draft.follow(committed.token_ids[: committed.num_accepted]))}
        order = [row for row in range(len(tokens)) if row not in path] + sorted(path)
        self.matrices.use(seq.cache_salt).update([tokens[row] for row in order], _numpy(top)[order])

    def close(self) -> None:
        """Drop all states and matrices."""
        super().close()
        self.matrices.clear()

    def _best_first(self, matrix: Adjacency, root: int, budget: int) -> Draft:
        """Grow by the highest path probability. Of siblings only the best one left waits in the frontier."""
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        frontier: list[tuple[float, int, int, int, float, list[int], tuple[float, ...]]] = []
        pushed = 0

        def push(parent: int, rank: int, above: float, ids: list[int], by_rank: tuple[float, ...]) -> None:
            nonlocal pushed
            path = above * by_rank[min(rank, len(by_rank) - 1)]
            if path >= self.confidence_floor:
                heappush(frontier, (-path, pushed, parent, rank, above, ids, by_rank))
                pushed += 1

        ids, repeats = matrix.following(root)
        if ids:
            push(-1, 0, 1.0, ids, _BY_RANK[repeats])
        while frontier and len(tokens) < budget:
            path, _, parent, rank, above, ids, by_rank = heappop(frontier)
            tokens.append(ids[rank])
            parents.append(parent)
            scores.append(by_rank[min(rank, len(by_rank) - 1)])
            if rank + 1 < len(ids):
                push(parent, rank + 1, above, ids, by_rank)
            if tokens[-1] not in self._eos_ids:
                below, repeats = matrix.following(tokens[-1])
                if below:
                    push(len(tokens) - 1, 0, -path, below, _BY_RANK[repeats])
        return Draft(tokens, parents, scores=scores, source=self.method)

    def _level_by_level(self, matrix: Adjacency, root: int, widths: Sequence[int], budget: int) -> Draft:
        """``widths[depth]`` children for every node at ``depth``."""
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        level = [(-1, root)]
        for width in widths:
            below: list[tuple[int, int]] = []
            for parent, token in level:
                ids, repeats = matrix.following(token) if token not in self._eos_ids or parent < 0 else ([], 0)
                for rank, following in enumerate(ids[: min(width, budget - len(tokens))]):
                    below.append((len(tokens), following))
                    tokens.append(following)
                    parents.append(parent)
                    scores.append(_BY_RANK[repeats][min(rank, len(_BY_RANK[repeats]) - 1)])
            level = below
        return Draft(tokens, parents, scores=scores, source=self.method)


# P(accepted | parent accepted) by rank in the row, for rows whose best token had stayed the same 0, 1, 2, 3 or more
# times: measured on greedy answers of a small chat model; the planner corrects them for the model at hand.
_BY_RANK: tuple[tuple[float, ...], ...] = (
    (0.24, 0.10, 0.06, 0.04, 0.03, 0.02, 0.02, 0.02),
    (0.46, 0.08, 0.06, 0.03, 0.02, 0.02, 0.01, 0.01),
    (0.61, 0.05, 0.03, 0.02, 0.02, 0.02, 0.01, 0.01),
    (0.84, 0.04, 0.03, 0.02, 0.01, 0.01, 0.01, 0.01),
)


def _numpy(top: Tensor) -> NDArray[np.int64]:
    rows: NDArray[np.int64] = top.cpu().numpy()
    return rows


def build(config: SpeculativeConfig, context: DrafterContext) -> TokenRecycling:
    """The drafter of method ``token_recycling``."""
    return TokenRecycling(
        context.vocab_size, config.token_recycling_topk, config.tree, context.eos_ids, context.max_model_len
    )
