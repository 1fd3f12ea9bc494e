"""Who asks for what, and when."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, count

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. ``arrival``: seconds, None for one that a client sends when its last one has ended; ``prompt``: token
    ids; ``output``: tokens that the answer has; ``profile``: which recorded request its drafts are like."""

    arrival: float | None
    prompt: Sequence[int]
    output: int
    profile: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """``clients``: that ask again as soon as they have their answer; None where requests arrive by themselves."""

    asks: Sequence[Ask]
    clients: int | None = None

    def __post_init__(self) -> None:
        if not self.asks:
            raise ConfigError("the workload has no request: raise --requests")
        if self.clients is not None and self.clients < 1:
            raise ConfigError(f"clients={self.clients}: at least 1")


def prompts_of(lengths: Sequence[int], shared: int = 0) -> Iterator[list[int]]:
    """Token ids for prompts of these lengths. The first ``shared`` tokens are the same in all of them, as those of a
    system prompt are; no other token occurs twice."""
    fresh = count(1 << 20)
    for length in lengths:
        same = min(shared, length)
        yield [*range(same), *(next(fresh) for _ in range(length - same))]


def closed(prompts: Sequence[int], outputs: Sequence[int], clients: int, shared: int = 0) -> Workload:
    """A fixed number of clients that share a list of requests."""
    rows = zip(prompts_of(prompts, shared), outputs, strict=True)
    return Workload([Ask(None, prompt, output, at) for at, (prompt, output) in enumerate(rows)], clients)


def arriving(prompts: Sequence[int], outputs: Sequence[int], rate: float, shared: int = 0, seed: int = 0) -> Workload:
    """Requests that arrive by a Poisson process with ``rate`` a second. Raises ConfigError for one that is not over
    0."""
    if rate <= 0:
        raise ConfigError(f"--rate {rate}: requests a second; over 0")
    gaps = random.Random(seed)
    arrivals = accumulate(gaps.expovariate(rate) for _ in prompts)
    rows = zip(arrivals, prompts_of(prompts, shared), outputs, strict=True)
    return Workload([Ask(arrival, prompt, output, at) for at, (arrival, prompt, output) in enumerate(rows)])


def lengths(mean: int, spread: float, num_requests: int, seed: int, least: int = 1) -> list[int]:
    """Lognormal lengths with this mean; ``spread``: their standard deviation over the mean, 0 for all the same."""
    if mean < least or spread < 0:
        raise ConfigError(f"lengths: a mean of {mean} and a spread of {spread}; at least {least} and 0")
    if spread == 0:
        return [mean] * num_requests
    import math

    draw, sigma = random.Random(seed), math.sqrt(math.log(1.0 + spread**2))
    mu = math.log(mean) - sigma**2 / 2
    return [max(least, round(draw.lognormvariate(mu, sigma))) for _ in range(num_requests)]
