"""Static trees: for measured acceptance by depth and rank, the tree of n nodes that accepts most (arXiv 2402.12374).

With a_d(r) the chance that the r-th child of an accepted node of depth d is accepted, a node is accepted with the
product of a along its path, and a tree's expected number of accepted tokens is the sum over its nodes. Sequoia has one
vector a for all depths; here a depth may have its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError

VERSION = 1


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A tree by ranks, level by level. ``parents[i]``: -1 is the root; ``ranks[i]``: which child of its parent."""

    parents: Sequence[int]
    ranks: Sequence[int]
    value: float  # expected accepted tokens
    _children: list[list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        children: list[list[int]] = [[] for _ in range(len(self.parents) + 1)]
        for node, parent in enumerate(self.parents):
            children[parent + 1].append(node)
        object.__setattr__(self, "_children", children)

    def children(self, node: int) -> list[int]:
        """Children of ``node`` by rank."""
        return self._children[node + 1]

    def depths(self) -> list[int]:
        """Depth of every node; a child of the root has depth 1."""
        out: list[int] = []
        for parent in self.parents:
            out.append(1 if parent < 0 else out[parent] + 1)
        return out

    @property
    def num_levels(self) -> int:
        """Depth of the deepest node."""
        return max(self.depths(), default=0)

    def expanded_by_level(self) -> list[int]:
        """How many nodes have children, from the root's level downwards."""
        out = [1] if self.parents else []
        for level in range(1, self.num_levels):
            out.append(sum(bool(self.children(node)) for node, depth in enumerate(self.depths()) if depth == level))
        return out


def best_tree(acceptance: Sequence[Sequence[float]], nodes: int) -> StaticTree:
    """The tree of at most ``nodes`` nodes with the highest expected number of accepted tokens.

    ``acceptance[d][r]``: chance of the r-th child of an accepted node ``d`` levels below the root; the depth of the
    tree and the children of a node are bounded by its size. A child's earlier siblings are always in the tree.
    """
    return _best_tree(tuple(tuple(row) for row in acceptance), nodes)


@lru_cache(maxsize=256)
def _best_tree(acceptance: tuple[tuple[float, ...], ...], nodes: int) -> StaticTree:
    program = _Program(acceptance)
    parents: list[int] = []
    ranks: list[int] = []
    level = [(-1, nodes)]
    for depth in range(len(acceptance)):
        below: list[tuple[int, int]] = []
        for parent, count in level:
            for rank, size in enumerate(program.split(depth, count)):
                parents.append(parent)
                ranks.append(rank)
                below.append((len(parents) - 1, size - 1))
        level = below
    return StaticTree(tuple(parents), tuple(ranks), program.value(depth=0, rank=0, count=nodes))


class _Program:
    """V(d, r, n) = max over m of a_d(r) (1 + V(d + 1, 0, m - 1)) + V(d, r + 1, n - m): children r and later of a node
    ``d`` levels below the root, with n nodes among them all."""

    def __init__(self, acceptance: tuple[tuple[float, ...], ...]) -> None:
        self._acceptance = acceptance
        self._known: dict[tuple[int, int, int], tuple[float, int]] = {}

    def value(self, depth: int, rank: int, count: int) -> float:
        """V."""
        return self._solve(depth, rank, count)[0]

    def split(self, depth: int, count: int) -> list[int]:
        """Nodes in the subtree of every child, itself included."""
        out: list[int] = []
        while (size := self._solve(depth, len(out), count)[1]) > 0:
            out.append(size)
            count -= size
        return out

    def _solve(self, depth: int, rank: int, count: int) -> tuple[float, int]:
        """V and the m that reaches it; 0 where no child is worth having. The largest m of equals: deep before wide."""
        if count < 1 or depth >= len(self._acceptance) or rank >= len(self._acceptance[depth]):
            return 0.0, 0
        key = (depth, rank, count)
        if key not in self._known:
            chance, best = self._acceptance[depth][rank], (0.0, 0)
            for size in range(count, 0, -1):
                below = self.value(depth + 1, 0, size - 1)
                value = chance * (1.0 + below) + self.value(depth, rank + 1, count - size)
                if value > best[0]:
                    best = (value, size)
            self._known[key] = best
        return self._known[key]


@dataclass(frozen=True, slots=True)
class AcceptanceTable:
    """What a calibration run has counted. ``hits[d][r]``: the r-th child at depth d + 1 was the target's token;
    ``trials[d]``: how often its parent was accepted. ``target``, ``draft``: fingerprints of the models."""

    target: str
    draft: str
    temperature: float
    trials: list[int]
    hits: list[list[int]]
    prompts: int = 0
    version: int = VERSION

    @property
    def acceptance(self) -> list[list[float]]:
        """a_d(r): the counts of the depth, with those of all depths as ``_PRIOR`` further observations."""
        total = sum(self.trials)
        if not total:
            return []
        pooled = [sum(row[rank] for row in self.hits) / total for rank in range(len(self.hits[0]))]
        return [
            [(hit + _PRIOR * mean) / (count + _PRIOR) for hit, mean in zip(row, pooled, strict=True)]
            for row, count in zip(self.hits, self.trials, strict=True)
        ]

    def check(self, target: str, draft: str) -> None:
        """Raise ConfigError when it was made for other models; an empty name fits any."""
        for what, made_for, now in (("target", self.target, target), ("draft model", self.draft, draft)):
            if made_for and now and made_for != now:
                raise ConfigError(f"tree_file: it was made for the {what} {made_for}, and this one is {now}: {_REMEDY}")

    def write(self, path: str | Path) -> None:
        """As JSON."""
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


_PRIOR = 20.0
_REMEDY = "write it with `outrider tune tree`"


def read_table(path: str) -> AcceptanceTable:
    """A table that ``outrider tune tree`` has written. Raises ConfigError when it is missing or is none."""
    try:
        values: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        table = AcceptanceTable(**values)
        sound = table.version == VERSION and len(table.hits) == len(table.trials) and sum(table.trials) > 0
        sound = sound and len({len(row) for row in table.hits}) == 1 and bool(table.hits[0])
    except OSError as error:
        raise ConfigError(f"tree_file={path!r} cannot be read ({error.strerror}): {_REMEDY}") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"tree_file={path!r} holds no acceptance table ({error}): {_REMEDY}") from None
    if not sound:
        raise ConfigError(f"tree_file={path!r} is of another version or holds no counts: {_REMEDY}")
    return table
