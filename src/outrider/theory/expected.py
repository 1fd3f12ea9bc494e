"""Expected tokens of one step, its own token (bonus or recovered) included.

A step of a chain of K tokens commits 1 + sum_i P(first i accepted). With conditional acceptances a_1 ... a_K, where
a_i = P(token i accepted | all before it accepted), that is 1 + sum_i a_1 * ... * a_i, and (1 - a^(K+1)) / (1 - a) when
they are all a (Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023,
equation 1). A step of a tree commits 1 + the sum over its nodes of the probability that the whole path to the node is
accepted (Chen et al., "Sequoia", 2024, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul

from outrider.errors import ConfigError


def check_rates(rates: Iterable[float], name: str = "rates") -> None:
    """Raise ConfigError unless all of ``rates`` are within 0 to 1."""
    for rate in rates:
        if not 0.0 <= rate <= 1.0:
            raise ConfigError(f"{name}: {rate} is no probability; give numbers from 0 to 1")


def rates_of(alpha: float, num_speculative_tokens: int) -> list[float]:
    """A constant conditional acceptance as a list of K. Raises ConfigError for an alpha outside 0 to 1."""
    check_rates([alpha], "alpha")
    return [alpha] * num_speculative_tokens


def conditional(per_position: Sequence[float]) -> list[float]:
    """Conditional acceptances from P(first i + 1 accepted), which must not rise. Raises ConfigError."""
    check_rates(per_position, "per_position")
    out, before = [], 1.0
    for reached in per_position:
        if reached > before:
            raise ConfigError(f"per_position: {reached} follows {before}; later positions cannot be reached more often")
        out.append(reached / before if before else 0.0)
        before = reached
    return out


def reached(rates: Sequence[float]) -> list[float]:
    """P(first i + 1 accepted) from conditional acceptances."""
    check_rates(rates)
    return list(accumulate(rates, mul))


def chain_tokens(rates: Sequence[float], num_speculative_tokens: int | None = None) -> float:
    """Expected tokens of a step of a chain: 1 + sum_i prod_{j <= i} rates[j].

    ``num_speculative_tokens``: K; positions after the last of ``rates`` repeat it. None: as many as there are rates.
    """
    return 1.0 + sum(reached(extended(rates, num_speculative_tokens)))


def extended(rates: Sequence[float], num_speculative_tokens: int | None) -> Sequence[float]:
    """``rates`` cut to K, or continued with their last one (0 when there is none)."""
    if num_speculative_tokens is None:
        return rates
    if num_speculative_tokens < 0:
        raise ConfigError(f"num_speculative_tokens={num_speculative_tokens}: it cannot be negative")
    last = rates[-1] if rates else 0.0
    return [*rates[:num_speculative_tokens], *[last] * (num_speculative_tokens - len(rates))]


def constant_tokens(alpha: float, num_speculative_tokens: int) -> float:
    """(1 - alpha^(K+1)) / (1 - alpha), which is K + 1 for alpha = 1 (Leviathan et al. 2023, equation 1)."""
    check_rates([alpha], "alpha")
    return 1.0 + sum(alpha**power for power in range(1, num_speculative_tokens + 1))  # no cancellation near 1


def tree_tokens(parents: Sequence[int], rates: Sequence[float]) -> float:
    """Expected tokens of a step of a tree: 1 + sum over nodes of the product of ``rates`` on the path to the node.

    ``parents``: of every node, -1 for a child of the root, always less than the node's own index. ``rates``: P(node is
    the next token | its parent was accepted); those of siblings exclude each other, so they sum to 1 at most. Raises
    ConfigError when the two do not make a tree.
    """
    return 1.0 + sum(path_probabilities(parents, rates))


def path_probabilities(parents: Sequence[int], rates: Sequence[float]) -> list[float]:
    """P(node accepted, its ancestors included), by node; see ``tree_tokens``."""
    check_rates(rates)
    if len(parents) != len(rates):
        raise ConfigError(f"parents and rates: {len(parents)} and {len(rates)} entries; give one of each a node")
    out: list[float] = []
    below = [0.0] * (len(parents) + 1)
    for node, (parent, rate) in enumerate(zip(parents, rates, strict=True)):
        if not -1 <= parent < node:
            raise ConfigError(f"parents[{node}]={parent}: a parent is -1 (the root) or an earlier node")
        below[parent + 1] += rate
        if below[parent + 1] > 1.0 + 1e-9:
            raise ConfigError(f"rates: the children of node {parent} sum to {below[parent + 1]:.3f}; 1 at most")
        out.append(rate if parent < 0 else rate * out[parent])
    return out


def best_nodes(parents: Sequence[int], rates: Sequence[float], num_nodes: int) -> list[int]:
    """The ``num_nodes`` nodes with the highest path probabilities, in the tree's order: the subtree that commits most.

    It is a tree, because a node is never more probable than its parent.
    """
    chances = path_probabilities(parents, rates)
    order = sorted(range(len(chances)), key=lambda node: (-chances[node], node))
    return sorted(order[:num_nodes])
