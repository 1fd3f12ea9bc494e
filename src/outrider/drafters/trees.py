"""The shapes of drafted trees: how many children a node gets, which nodes are expanded, which are kept.

| kind | shape | laws | source |
|---|---|---|---|
| paths | a chain, or K chains that part at the root | any | arXiv 2211.17192, 2310.15141 |
| `widths` | so many children at every node of a depth | any | arXiv 2305.09781 |
| `comb` | a chain with further children at every node, which are leaves | any | a chain's forwards, more candidates |
| `static` | the best tree for measured acceptance by rank, see ``static_trees`` | any | arXiv 2402.12374 |
| `dynamic` | grown where the drafter is sure, then re-ranked | delta | arXiv 2406.16858, 2406.17276 |

A shape that takes any law depends on ranks and on tokens that are in the draft already, never on a token that has yet
to be drawn: sampled siblings are neither pruned nor re-ranked by q, which would make their law a lie.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft, Law
from outrider.core.verifiers.table import Rule
from outrider.drafters.static_trees import StaticTree, best_tree, read_table
from outrider.errors import ConfigError

NODES, DEPTH, TOPK = 16, 6, 4  # of a static or dynamic tree when nobody says; the planner verifies what pays of it


@dataclass(slots=True)
class Growth:
    """A draft while it grows, level by level. Node -1 is the root."""

    budget: int
    levels: int  # that it may have
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # paths through a node
    scores: list[float] = field(default_factory=list)  # the drafter's estimate of P(accepted | parent accepted)
    reach: list[float] = field(default_factory=list)  # chance that all of a node's path is accepted
    places: list[int] = field(default_factory=list)  # node of the static tree
    frontier: list[int] = field(default_factory=lambda: [-1])  # nodes to expand next
    static: StaticTree | None = None
    expected: float = 0.0  # accepted tokens that the best ``budget`` nodes promise

    def add(
        self,
        parent: int,
        place: int,
        token: int,
        score: float,
        law: Law | None,
        count: int,
        chance: float | None = None,
    ) -> None:
        """A child of ``parent``. ``chance``: what its score has turned out to mean, where that was counted."""
        score = min(1.0, score)
        chance = score if chance is None else chance
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(score)
        self.reach.append(chance * (self.reach[parent] if parent >= 0 else 1.0))
        self.counts.append(count)
        self.places.append(place)
        if law is not None:
            self.laws.append(law)

    def path(self, node: int) -> list[int]:
        """Nodes from the child of the root down to ``node``."""
        out: list[int] = []
        while node >= 0:
            out.append(node)
            node = self.parents[node]
        return out[::-1]

    def draft(self, counted: bool, source: str) -> Draft:
        """The draft of all nodes; ``counted``: with the number of paths through each."""
        if not self.tokens:
            return EMPTY
        chain = all(parent == node - 1 for node, parent in enumerate(self.parents))
        return Draft(
            tokens=self.tokens,
            parents=None if chain else self.parents,
            laws=self.laws or None,
            multiplicity=self.counts if counted else None,
            scores=self.scores,
            source=source,
        )


class Shape(ABC):
    """How a draft grows. ``max_levels``: None where only the budget ends it."""

    max_levels: int | None = None

    @abstractmethod
    def nodes(self, levels: int) -> int:
        """The most nodes of a draft of so many levels."""

    @abstractmethod
    def levels(self, budget: int) -> int:
        """Levels of a draft of ``budget`` nodes."""

    def limit(self, budget: int) -> int:
        """Nodes that are grown for a draft of ``budget``, those that are not kept included."""
        return budget

    def rows(self, budget: int) -> int:
        """Nodes that are expanded at most: rows of the drafter's forwards besides the root's."""
        return budget

    def start(self, growth: Growth) -> None:
        """Called before the first level."""
        return None

    def place(self, growth: Growth, parent: int, rank: int) -> int:
        """The place of a child of ``parent`` in the plan, where there is one."""
        return 0

    @abstractmethod
    def width(self, growth: Growth, node: int, depth: int, counted: bool) -> int:
        """Children of ``node``, which is ``depth`` levels below the root; ``counted``: equal ones will be merged."""

    def frontier(self, growth: Growth, nodes: Sequence[int]) -> list[int]:
        """Which of the new ``nodes`` are expanded next."""
        return list(nodes)

    def kept(self, growth: Growth) -> list[int] | None:
        """Nodes of the finished draft, ascending; None for all."""
        return None

    @abstractmethod
    def seconds(self, num_nodes: int, cost: Callable[[int], float]) -> float:
        """Time of the forwards that draw ``num_nodes`` nodes; ``cost``: seconds of so many rows a sequence."""


class Paths(Shape):
    """A chain, or ``count`` chains that part at the root."""

    def __init__(self, count: int = 1) -> None:
        self.count = count

    def nodes(self, levels: int) -> int:
        """A node a path and level."""
        return levels * self.count

    def levels(self, budget: int) -> int:
        """With less budget than paths, fewer are drawn."""
        return budget // min(self.count, budget)

    def width(self, growth: Growth, node: int, depth: int, counted: bool) -> int:
        """All paths leave the root; a node is left by those that enter it."""
        if depth == 0:
            return min(self.count, growth.budget)
        return growth.counts[node] if counted else 1

    def seconds(self, num_nodes: int, cost: Callable[[int], float]) -> float:
        """One forward a level."""
        return -(-num_nodes // self.count) * cost(self.count)


class Widths(Shape):
    """``widths[d]`` children at every node ``d`` levels below the root, in the order of the levels until the budget."""

    def __init__(self, widths: Sequence[int]) -> None:
        self.widths = widths
        self.max_levels = len(widths)
        self._sizes = list(accumulate(widths, lambda above, width: above * width))

    def nodes(self, levels: int) -> int:
        """All nodes of the first levels."""
        return sum(self._sizes[:levels])

    def levels(self, budget: int) -> int:
        """All of them: the budget ends the growth."""
        return len(self.widths)

    def width(self, growth: Growth, node: int, depth: int, counted: bool) -> int:
        """That of the depth."""
        return self.widths[depth]

    def seconds(self, num_nodes: int, cost: Callable[[int], float]) -> float:
        """One forward a level, of the nodes that the level above has."""
        rows, left, total = 1, num_nodes, 0.0
        for size in self._sizes:
            if left <= 0:
                break
            total += cost(rows)
            rows, left = size, left - size
        return total


class Comb(Shape):
    """``topk`` children a level, of which the first is expanded: as many forwards as a chain, and as small ones."""

    def __init__(self, topk: int, depth: int) -> None:
        self._topk = topk
        self.max_levels = depth

    def nodes(self, levels: int) -> int:
        """``topk`` a level."""
        return levels * self._topk

    def levels(self, budget: int) -> int:
        """The last one may have fewer children."""
        assert self.max_levels is not None
        return min(self.max_levels, -(-budget // self._topk))

    def rows(self, budget: int) -> int:
        """One a level."""
        return self.levels(budget)

    def width(self, growth: Growth, node: int, depth: int, counted: bool) -> int:
        """The same for all."""
        return self._topk

    def frontier(self, growth: Growth, nodes: Sequence[int]) -> list[int]:
        """The first child, unless its path has stopped."""
        first = len(growth.tokens) - sum(parent == growth.parents[-1] for parent in growth.parents)
        return [node for node in nodes if node == first]

    def seconds(self, num_nodes: int, cost: Callable[[int], float]) -> float:
        """One forward of one row a level."""
        return -(-num_nodes // self._topk) * cost(1)


class Static(Shape):
    """The best tree of as many nodes as the budget has, for measured acceptance by depth and rank.

    Levels deeper than were measured are taken to be like the last one.
    """

    def __init__(self, acceptance: Sequence[Sequence[float]], nodes: int, depth: int) -> None:
        self._acceptance = [acceptance[min(level, len(acceptance) - 1)] for level in range(depth)]
        self._best = nodes
        tree = best_tree(self._acceptance, nodes)
        self._sizes = [sum(depth <= level for depth in tree.depths()) for level in range(1, tree.num_levels + 1)]
        self.max_levels = tree.num_levels

    def nodes(self, levels: int) -> int:
        """Nodes of the whole tree within the first levels."""
        return self._sizes[min(levels, len(self._sizes)) - 1] if levels > 0 else 0

    def levels(self, budget: int) -> int:
        """Levels of the best tree."""
        return best_tree(self._acceptance, min(budget, self._best)).num_levels

    def start(self, growth: Growth) -> None:
        """Look the tree up."""
        growth.static = best_tree(self._acceptance, min(growth.budget, self._best))

    def place(self, growth: Growth, parent: int, rank: int) -> int:
        """The child of that rank."""
        assert growth.static is not None
        return growth.static.children(growth.places[parent] if parent >= 0 else -1)[rank]

    def width(self, growth: Growth, node: int, depth: int, counted: bool) -> int:
        """Children of its place."""
        assert growth.static is not None
        return len(growth.static.children(growth.places[node] if node >= 0 else -1))

    def frontier(self, growth: Growth, nodes: Sequence[int]) -> list[int]:
        """Those that have children."""
        return [node for node in nodes if self.width(growth, node, 0, False)]

    def seconds(self, num_nodes: int, cost: Callable[[int], float]) -> float:
        """One forward a level, of the nodes that have children."""
        tree = best_tree(self._acceptance, min(num_nodes, self._best))
        return sum(cost(rows) for rows in tree.expanded_by_level())


class Dynamic(Shape):
    """Each level expands its ``topk`` likeliest nodes by ``topk`` children; the likeliest of all nodes are kept.

    The value of a node is the product of scores along its path, so a kept node's ancestors are kept. EAGLE-2 runs all
    ``depth`` levels (arXiv 2406.16858); with ``min_gain`` growth ends with the level that adds no more than that to
    the sum of the kept values, the expected number of accepted tokens (OPT-Tree, arXiv 2406.17276, which has ``topk``
    equal to ``nodes``). A node that is not among the best already is not expanded: nothing below it would be kept.
    """

    def __init__(self, nodes: int, depth: int, topk: int, min_gain: float = 0.0) -> None:
        self._nodes, self._topk, self._min_gain = nodes, topk, min_gain
        self.max_levels = depth

    def nodes(self, levels: int) -> int:
        """The budget, or all that the levels have where that is less."""
        return min(self._nodes, self._grown(levels))

    def levels(self, budget: int) -> int:
        """All; growth ends where nothing more would be kept."""
        assert self.max_levels is not None
        return self.max_levels

    def _grown(self, levels: int) -> int:
        return self._topk + max(0, levels - 1) * self._topk**2 if levels > 0 else 0

    def limit(self, budget: int) -> int:
        """Every candidate."""
        return self._grown(self.levels(budget))

    def rows(self, budget: int) -> int:
        """``topk`` a level, but for the last."""
        return self._topk * self.levels(budget)

    def width(self, growth: Growth, node: int, depth: int, counted: bool) -> int:
        """The same for all."""
        return self._topk

    def frontier(self, growth: Growth, nodes: Sequence[int]) -> list[int]:
        """The likeliest of the new nodes that are among the best of all."""
        best = self._best(growth)
        expected = sum(growth.reach[node] for node in best)
        gain, growth.expected = expected - growth.expected, expected
        if self._min_gain and gain <= self._min_gain:
            return []
        hopeful = set(best)
        return heapq.nsmallest(
            self._topk, (node for node in nodes if node in hopeful), key=lambda node: (-growth.reach[node], node)
        )

    def kept(self, growth: Growth) -> list[int]:
        """The likeliest nodes."""
        return sorted(self._best(growth))

    def _best(self, growth: Growth) -> list[int]:
        """Ties go to the earlier node, so that a parent comes before its child."""
        return heapq.nsmallest(
            min(growth.budget, self._nodes), range(len(growth.reach)), key=lambda node: (-growth.reach[node], node)
        )

    def seconds(self, num_nodes: int, cost: Callable[[int], float]) -> float:
        """The root's forward, and one for each further level."""
        assert self.max_levels is not None
        return cost(1) + (self.max_levels - 1) * cost(min(self._topk, num_nodes)) if num_nodes > 0 else 0.0


def shape_of(config: SpeculativeConfig) -> Shape:
    """The shape that a config asks for. Raises ConfigError for a tree file that is none."""
    nodes = config.tree_nodes or config.num_speculative_tokens or NODES
    depth = config.tree_depth or DEPTH
    if config.tree_kind == "dynamic":
        return Dynamic(nodes, depth, config.tree_topk or TOPK, config.tree_min_gain)
    if config.tree_kind == "static":
        assert config.tree_file is not None  # check saw to it
        return Static(read_table(config.tree_file).acceptance, nodes, depth)
    if config.tree_kind == "comb":
        return Comb(config.tree_topk or TOPK, depth)
    return Widths(config.tree) if config.tree is not None else Paths(config.num_paths)


def branching_option(config: SpeculativeConfig) -> str | None:
    """The option that makes a model's draft branch at its nodes, if any does."""
    if config.tree_kind not in (None, "widths"):
        return "tree_kind"
    return "tree" if config.tree is not None and any(width > 1 for width in config.tree) else None


def check(config: SpeculativeConfig, rule: Rule) -> None:
    """Raise ConfigError for tree settings that do not go together or that ``rule`` makes dishonest."""
    kind = config.tree_kind or ("widths" if config.tree is not None else None)
    if kind is not None and config.num_paths > 1:
        option = "tree" if config.tree is not None else "tree_kind"
        raise ConfigError(f"{option}: it has its own widths and does not go with num_paths; set one of the two")
    if kind == "widths" and config.tree is None:
        raise ConfigError("tree: tree_kind 'widths' needs it; set the children per depth, such as [3, 2, 1]")
    if kind == "static" and config.tree_file is None:
        raise ConfigError("tree_file: tree_kind 'static' needs it; write one with `outrider tune tree`")
    readers = {
        "tree": ("widths",),
        "tree_nodes": ("static", "dynamic"),
        "tree_depth": ("comb", "static", "dynamic"),
        "tree_topk": ("comb", "dynamic"),
        "tree_min_gain": ("dynamic",),
        "tree_file": ("static",),
    }
    for key, kinds in readers.items():
        if key in config.model_fields_set and getattr(config, key) is not None and kind not in kinds:
            raise ConfigError(f"{key}: it is used by tree_kind {' or '.join(kinds)}; set tree_kind or leave {key} out")
    if kind == "dynamic" and not rule.shared_noise:
        raise ConfigError(
            f"tree_kind: verifier {rule.name!r} takes siblings that were sampled, and choosing among them by their "
            "probability afterwards would bias the text; use verifier 'sample', or tree_kind 'static' or 'widths'"
        )
