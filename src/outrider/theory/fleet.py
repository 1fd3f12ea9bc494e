"""What serving a demand costs, and whether figures that somebody states follow from one another.

    replicas = ceil(demand / (tokens per second of a replica * utilisation))
    GPUs     = replicas * GPUs of a replica
    cost of a million tokens = price of a replica's hour / (tokens per second * utilisation * 3600) * 10^6

Only whole replicas can be rented, so that a small fleet saves less than its speed-up suggests, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from outrider.errors import ConfigError

HOURS_PER_MONTH = 730.0
_HOUR = 3600.0


def cost_per_million(price_per_hour: float, tokens_per_second: float, utilisation: float = 1.0) -> float:
    """Of output tokens, for something that costs ``price_per_hour`` and makes so many a second when it is busy, which
    it is for ``utilisation`` of the time."""
    _check_rate(tokens_per_second, utilisation)
    return price_per_hour / (tokens_per_second * utilisation * _HOUR) * 1e6


def _check_rate(tokens_per_second: float, utilisation: float) -> None:
    if tokens_per_second <= 0:
        raise ConfigError(f"tokens per second: {tokens_per_second} is not over 0")
    if not 0.0 < utilisation <= 1.0:
        raise ConfigError(f"utilisation={utilisation}: over 0 to 1, such as 0.7")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas that serve a demand. ``load``: the share of their tokens per second that the demand takes."""

    replicas: int
    gpus: int
    cost_per_month: float
    cost_per_million: float  # of the tokens that are demanded, idle time paid
    load: float


def fleet(
    demand: float,
    tokens_per_second: float,
    *,
    gpus_per_replica: int = 1,
    price_per_gpu_hour: float,
    utilisation: float = 0.7,
    hours_per_month: float = HOURS_PER_MONTH,
) -> Fleet:
    """For ``demand`` output tokens a second. ``utilisation``: the share of a replica's rate that is planned with, so
    that peaks fit. Raises ConfigError for a demand or rate that is not over 0."""
    _check_rate(tokens_per_second, utilisation)
    if demand <= 0 or gpus_per_replica < 1 or price_per_gpu_hour < 0:
        raise ConfigError(f"demand={demand}, GPUs a replica={gpus_per_replica}, price={price_per_gpu_hour}: impossible")
    replicas = math.ceil(demand / (tokens_per_second * utilisation) - 1e-9)
    gpus = replicas * gpus_per_replica
    month = gpus * price_per_gpu_hour * hours_per_month
    tokens = demand * hours_per_month * _HOUR
    return Fleet(replicas, gpus, month, month / tokens * 1e6, demand / (replicas * tokens_per_second))


@dataclass(frozen=True, slots=True)
class Benefit:
    """Two fleets for one demand. ``break_even_rate``: tokens per second of a speculating replica at which both cost the
    same a token, its own extra price counted; ``months``: until ``one_time`` costs are earned, None for never."""

    plain: Fleet
    speculative: Fleet
    saved_per_month: float
    break_even_rate: float
    months: float | None


def benefit(plain: Fleet, speculative: Fleet, plain_rate: float, price_ratio: float, one_time: float) -> Benefit:
    """``price_ratio``: of a replica with speculation over one without (its draft may need another GPU); ``one_time``:
    what the draft cost to make, such as its training."""
    saved = plain.cost_per_month - speculative.cost_per_month
    months = None if saved <= 0 else one_time / saved
    return Benefit(plain, speculative, saved, plain_rate * price_ratio, months)


@dataclass(frozen=True, slots=True)
class Finding:
    """A stated figure that does not follow from the others. ``rule``: how it would."""

    name: str
    stated: float
    follows: float
    rule: str

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.name}: stated {_number(self.stated)}, but {self.rule} = {_number(self.follows)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


_RULES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("tokens", "{tokens_per_second} tokens/s x {seconds} s", ("tokens_per_second", "seconds")),
    ("tokens", "{requests} requests x {tokens_per_request} tokens", ("requests", "tokens_per_request")),
    ("gpus", "{gpus_per_replica} GPUs x {replicas} replicas", ("gpus_per_replica", "replicas")),
    ("price_per_hour", "{gpus} GPUs x {price_per_gpu_hour}", ("gpus", "price_per_gpu_hour")),
    ("cost", "{price_per_hour} an hour x {seconds} s / 3600", ("price_per_hour", "seconds")),
    ("cost", "{cost_per_million} a million x {tokens} tokens", ("cost_per_million", "tokens")),
    (
        "cost_per_million",
        "{price_per_hour} an hour / ({tokens_per_second} tokens/s x {utilisation} x 3600 s) x 10^6",
        ("price_per_hour", "tokens_per_second", "utilisation"),
    ),
    ("speed_up", "{speculative_rate} / {plain_rate}", ("speculative_rate", "plain_rate")),
    ("saved_share", "1 - {cost_after} / {cost_before}", ("cost_after", "cost_before")),
    ("saved", "{cost_before} - {cost_after}", ("cost_before", "cost_after")),
    ("memory_total_gb", "{target_gb} + {draft_gb} + {kv_gb} GB", ("target_gb", "draft_gb", "kv_gb")),
)


def _follows(name: str, inputs: tuple[str, ...], given: Mapping[str, float]) -> float:
    values = [given[key] for key in inputs]
    if name == "cost" and "seconds" in inputs:
        return values[0] * values[1] / _HOUR
    if name == "cost":
        return values[0] * values[1] / 1e6
    if name == "cost_per_million":
        return cost_per_million(*values)
    if name == "speed_up":
        return values[0] / values[1]
    if name == "saved_share":
        return 1.0 - values[0] / values[1]
    if name == "saved":
        return values[0] - values[1]
    return sum(values) if name == "memory_total_gb" else math.prod(values)


NAMES = tuple(dict.fromkeys(key for name, _, inputs in _RULES for key in (name, *inputs)))


def findings(stated: Mapping[str, float], tolerance: float = 0.02) -> tuple[list[Finding], int]:
    """Stated figures that are off by more than ``tolerance`` from what the others say, and how many rules could be
    checked. ``utilisation`` counts as 1 where it is not stated. Raises ConfigError for a name that no rule knows."""
    unknown = [name for name in stated if name not in NAMES]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: no rule knows it; choose among {', '.join(NAMES)}")
    given = {"utilisation": 1.0, **stated}
    found, checked = [], 0
    for name, rule, inputs in _RULES:
        if name not in stated or any(key not in given for key in inputs):
            continue
        checked += 1
        value = _follows(name, inputs, given)
        if abs(value - stated[name]) > tolerance * max(abs(value), abs(stated[name])):
            shown = {key: _number(given[key]) for key in inputs}
            found.append(Finding(name, stated[name], value, rule.format(**shown)))
    return found, checked
