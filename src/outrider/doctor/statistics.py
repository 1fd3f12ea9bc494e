"""Whether a rate has fallen, or only looks so."""

from __future__ import annotations

import math


def z_of_fall(hits: float, trials: float, later_hits: float, later_trials: float) -> float:
    """Standard errors between two rates, positive where the later one is lower (pooled two-proportion z)."""
    if not trials or not later_trials:
        return 0.0
    pooled = (hits + later_hits) / (trials + later_trials)
    error = math.sqrt(max(pooled * (1.0 - pooled), 1e-12) * (1.0 / trials + 1.0 / later_trials))
    return (hits / trials - later_hits / later_trials) / error
