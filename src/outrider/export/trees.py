"""A dynamic tree as other engines count it: candidates of a node, levels, nodes without the root."""

from __future__ import annotations

from typing import NamedTuple

from outrider.drafters import trees
from outrider.errors import ConfigError
from outrider.export.deployment import Deployment


class Shape(NamedTuple):
    """``topk`` children are looked at below each of at most ``topk`` nodes of ``depth`` levels; ``nodes`` are kept."""

    topk: int
    depth: int
    nodes: int


def shape_of(deployment: Deployment, engine: str) -> Shape:
    """The tree of ``deployment``. Raises ConfigError for kinds of trees that are not dynamic, and for more nodes than
    such a tree can have."""
    config = deployment.speculation
    if config.tree is not None or config.tree_kind not in ("dynamic", None):
        widths = config.tree or [config.tree_topk or trees.TOPK]
        example = f'{{"tree_kind": "dynamic", "tree_topk": {max(widths)}, "tree_depth": {len(config.tree or ()) or 4}}}'
        raise ConfigError(f"{engine} draws trees of one kind only, dynamic ones; the nearest is {example}")
    topk, depth = config.tree_topk or trees.TOPK, config.tree_depth or trees.DEPTH
    nodes = config.tree_nodes or config.num_speculative_tokens or trees.NODES
    most = topk + (depth - 1) * topk * topk
    if nodes > most or nodes < depth:
        raise ConfigError(
            f"tree_nodes={nodes}: a dynamic tree with {topk} children a node and {depth} levels has {depth} to {most}"
        )
    return Shape(topk, depth, nodes)
