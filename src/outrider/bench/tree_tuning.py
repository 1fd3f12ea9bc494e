"""Calibration of static trees: which child of an accepted node the target takes, counted by depth and rank.

Every step drafts a comb, a chain whose nodes have further siblings, so that all ranks are seen at every depth behind
first children. A child behind a later sibling is taken to do as well as one behind the first. Counted are the
candidates of the rule `sample`: siblings that are sampled for a classical rule do worse at the later ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from outrider.bench.data import Prompt
from outrider.config import SamplingParams
from outrider.core.draft import Draft
from outrider.drafters.static_trees import AcceptanceTable, StaticTree, best_tree

if TYPE_CHECKING:
    from rich.table import Table

    from outrider.llm import LLM

SIZES = (4, 8, 16, 32, 64)


class RankCounts:
    """Counts of the accepted children, by depth and rank."""

    def __init__(self, depth: int, topk: int) -> None:
        self.trials = [0] * depth
        self.hits = [[0] * topk for _ in range(depth)]

    def __call__(self, draft: Draft, emitted: Sequence[int]) -> None:
        """Follow what the target ``emitted`` through ``draft`` for as long as it holds it."""
        children, node = draft.children(), -1
        for depth, token in enumerate(emitted[: len(self.trials)]):
            below = children[node + 1]
            if len(below) < len(self.hits[depth]):  # a leaf, or cut short by the end of the text
                return
            self.trials[depth] += 1
            rank = next((rank for rank, child in enumerate(below) if draft.tokens[child] == token), None)
            if rank is None:
                return
            self.hits[depth][rank] += 1
            node = below[rank]


def comb(draft: str, depth: int, topk: int, **more: Any) -> dict[str, Any]:
    """The speculative config of a calibration run."""
    shape = {"tree_kind": "comb", "tree_depth": depth, "tree_topk": topk, "num_speculative_tokens": depth * topk}
    return {"method": "draft_model", "model": draft, **shape, **more}


def calibrate(
    llm: LLM,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    raw: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> AcceptanceTable:
    """Answer the first turn of every prompt with an engine that drafts a ``comb``, and count."""
    engine: Any = llm._engine
    (method,) = engine.drafting.methods.values()
    counts = RankCounts(method.config.tree_depth, method.config.tree_topk)
    engine.planner.watchers.append(counts)
    try:
        for number, prompt in enumerate(prompts):
            one = params.model_copy(update={"seed": (params.seed or 0) + number})
            if raw:
                llm.generate(prompt.turns[0], one, use_tqdm=False)
            else:
                llm.chat([{"role": "user", "content": prompt.turns[0]}], one, use_tqdm=False)
            if progress is not None:
                progress(number + 1, len(prompts), f"{sum(counts.trials)} tokens")
    finally:
        engine.planner.watchers.remove(counts)
    return AcceptanceTable(
        target=engine.target.fingerprint,
        draft=method.drafter.model.fingerprint,
        temperature=params.temperature,
        trials=counts.trials,
        hits=counts.hits,
        prompts=len(prompts),
    )


def report(table: AcceptanceTable) -> list[Table]:
    """Acceptance by depth and rank, and the best tree of several sizes."""
    from rich.table import Table

    acceptance = table.acceptance
    ranks = Table("depth", "drafts", *(f"rank {rank + 1}" for rank in range(len(acceptance[0]))), "any", box=None)
    for depth, (row, count, hits) in enumerate(zip(acceptance, table.trials, table.hits, strict=True), 1):
        total = f"{sum(hits) / count:.3f}" if count else ""
        ranks.add_row(str(depth), str(count), *(f"{chance:.3f}" for chance in row), total)
    trees = Table("nodes", "depth", "expected accepted tokens", "nodes by depth", "children of the root", box=None)
    for size in SIZES:
        tree = best_tree(acceptance, size)
        trees.add_row(
            str(len(tree.parents)), str(tree.num_levels), f"{tree.value:.2f}", levels(tree), str(len(tree.children(-1)))
        )
    return [ranks, trees]


def levels(tree: StaticTree) -> str:
    """Nodes of each depth, such as ``4 3 2``."""
    depths = tree.depths()
    return " ".join(str(depths.count(depth)) for depth in range(1, tree.num_levels + 1))
