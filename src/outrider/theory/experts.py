"""Mixtures of experts: the more rows a step has, the more experts it reads.

With E experts of which a row uses k, chosen evenly and independently of other rows, n rows touch
E * (1 - (1 - k/E)^n) of them in expectation. Real routers repeat
themselves between neighbouring tokens, so that this is an upper estimate for one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from outrider.errors import ConfigError
from outrider.theory.speedup import Curve


def experts_touched(num_experts: int, experts_per_token: int, num_rows: float) -> float:
    """E * (1 - (1 - k/E)^n): expected experts of one layer that n rows use between them. Raises ConfigError."""
    if not 1 <= experts_per_token <= num_experts:
        raise ConfigError(f"experts_per_token={experts_per_token}: choose 1 to num_experts={num_experts}")
    if num_rows < 0:
        raise ConfigError(f"num_rows={num_rows}: it cannot be negative")
    return float(num_experts * (1.0 - (1.0 - experts_per_token / num_experts) ** num_rows))


def rows_touching(num_experts: int, experts_per_token: int, share: float) -> float:
    """Rows that touch ``share`` (below 1) of the experts: log(1 - share) / log(1 - k/E)."""
    if not 0.0 <= share < 1.0:
        raise ConfigError(f"share={share}: choose a number from 0 to below 1")
    if experts_per_token >= num_experts:
        return 1.0
    return log(1.0 - share) / log(1.0 - experts_per_token / num_experts)


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Bytes of a mixture's weights. ``shared_bytes``: what every step reads (attention, embeddings, shared experts);
    ``expert_bytes``: of one expert, over all layers."""

    shared_bytes: float
    expert_bytes: float
    num_experts: int
    experts_per_token: int

    def touched(self, num_rows: float) -> float:
        """Expected experts of a layer that a step of so many rows uses."""
        return experts_touched(self.num_experts, self.experts_per_token, num_rows)

    def step_bytes(self, num_rows: float) -> float:
        """Expected bytes of weights that a step of so many rows reads."""
        return self.shared_bytes + self.expert_bytes * self.touched(num_rows)

    @property
    def bytes(self) -> float:
        """All of them."""
        return self.shared_bytes + self.expert_bytes * self.num_experts

    def curve(self, bandwidth: float) -> Curve:
        """t(rows) of a machine that reads ``bandwidth`` bytes a second and whose arithmetic is free."""
        return lambda rows: self.step_bytes(rows) / bandwidth
