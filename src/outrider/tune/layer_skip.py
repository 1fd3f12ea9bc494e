"""The search for the sublayers that layer skipping leaves out: Bayesian optimisation, as in arXiv 2309.08168.

Objective: expected tokens per second, from the measured agreement of the drafts and the measured cost of a forward.
Every sublayer is first skipped alone, which ranks them; the search starts from the least harmful ones together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.drafters import skip_file
from outrider.drafters.skip_file import SkipSet
from outrider.errors import ConfigError
from outrider.target.facts import facts_of
from outrider.target.model import Target
from outrider.target.skip import ATTENTION, MLP, NO_SKIPPING, skipped
from outrider.tune.agreement import Agreement, Costs, Text

Progress = Callable[[int, int], None]  # done, total


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best mask, what is expected of it, and on how much that rests."""

    mask: bytes
    speedup: float
    num_speculative_tokens: int
    survival: Sequence[float]
    draft_seconds: float
    plain_seconds: float
    num_chains: int
    num_trials: int

    def facts(self) -> dict[str, Any]:
        """Plain values for the file and for JSON."""
        return {
            "expected_speedup": round(self.speedup, 4),
            "num_speculative_tokens": self.num_speculative_tokens,
            "survival": [round(value, 4) for value in self.survival],
            "draft_ms": round(1e3 * self.draft_seconds, 4),
            "plain_ms": round(1e3 * self.plain_seconds, 4),
            "num_chains": self.num_chains,
            "num_trials": self.num_trials,
        }


def check(target: Target) -> None:
    """Raise ConfigError when the target's sublayers cannot be skipped."""
    if not target.lean:
        raise ConfigError(f"tune layer_skip: {NO_SKIPPING.format(target.config.model_type)}")


def require_optuna() -> Any:
    """The library that searches. Raises ConfigError where it is missing."""
    try:
        import optuna
    except ImportError:
        raise ConfigError("tune needs the library optuna: pip install 'outrider[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def search(target: Target, texts: Sequence[Text], *, trials: int, seed: int, progress: Progress) -> Tuned:
    """The best set of ``trials`` after one look at every sublayer alone."""
    optuna = require_optuna()
    check(target)
    agreement, costs = Agreement(target, texts), Costs(target)
    total = 2 * target.num_layers + trials
    ranked = _ranked(target.num_layers, agreement, lambda done: progress(done, total))
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, n_ei_candidates=64)
    )
    for count in _starts(len(ranked), trials):
        study.enqueue_trial({f"{place}": int(place in ranked[:count]) for place in range(len(ranked))})
    best: Tuned | None = None

    def objective(trial: Any) -> float:
        nonlocal best
        mask = _mask([trial.suggest_categorical(f"{place}", [0, 1]) for place in range(len(ranked))])
        survival = agreement.survival(mask)
        speedup, count = costs.speedup(mask, survival)
        if best is None or speedup > best.speedup:
            seconds = costs.draft(mask), costs.verify(1)
            best = Tuned(mask, speedup, count, survival, *seconds, agreement.num_chains, trials)
        progress(len(ranked) + trial.number + 1, total)
        return speedup

    study.optimize(objective, n_trials=trials)
    assert best is not None
    return best


def save(target: Target, tuned: Tuned, path: Path | None) -> Path:
    """Write the file that ``skip_file`` reads; where layer_skip finds it by itself unless ``path`` is given."""
    facts = facts_of(target)
    path = path or skip_file.default_path(facts.fingerprint)
    chosen = SkipSet(skipped(tuned.mask, ATTENTION), skipped(tuned.mask, MLP))
    skip_file.write(path, chosen, facts.fingerprint, {"model": facts.name, "dtype": facts.dtype, **tuned.facts()})
    return path


def _ranked(num_layers: int, agreement: Agreement, progress: Callable[[int], None]) -> list[int]:
    """Places of all sublayers (2 * layer for attention, 2 * layer + 1 for the MLP), the least harmful first."""
    kept = []
    for place in range(2 * num_layers):
        kept.append(sum(agreement.survival(_mask([int(at == place) for at in range(2 * num_layers)]))))
        progress(place + 1)
    return sorted(range(2 * num_layers), key=lambda place: -kept[place])


def _starts(num_sublayers: int, trials: int) -> list[int]:
    """How many of the least harmful sublayers the first trials skip: up to two thirds of them, in even steps."""
    count = max(1, min(16, trials // 2))
    return [round(2 * num_sublayers * (index + 1) / (3 * count)) for index in range(count)]


def _mask(bits: Sequence[int]) -> bytes:
    """A mask from one bit a sublayer, in the order of ``_ranked``."""
    return bytes(ATTENTION * bits[2 * layer] | MLP * bits[2 * layer + 1] for layer in range(len(bits) // 2))
