"""Many simulations: every load x method x number of GPUs that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from outrider.simulate.acceptance import Acceptance
from outrider.simulate.costs import CostModel
from outrider.simulate.loop import Settings, Simulation
from outrider.simulate.report import Result, result_of
from outrider.simulate.workload import Workload, arriving, closed


@dataclass(frozen=True, slots=True)
class Load:
    """``clients`` that ask again and again, or requests that come at ``rate`` a second."""

    clients: int | None = None
    rate: float | None = None

    @property
    def label(self) -> str:
        """In words."""
        if self.clients is None:
            return f"{self.rate:g}/s"
        return f"{self.clients} client{'s' if self.clients > 1 else ''}"


@dataclass(frozen=True, slots=True)
class Method:
    """``name``: None for plain decoding; ``num_speculative_tokens``: None for the planner."""

    name: str | None
    num_speculative_tokens: int | None = None

    @property
    def label(self) -> str:
        """``plain``, ``method`` or ``method:K``."""
        if self.name is None:
            return "plain"
        return self.name if self.num_speculative_tokens is None else f"{self.name}:{self.num_speculative_tokens}"


@dataclass(frozen=True, slots=True)
class Requests:
    """What is asked: tokens of prompts and answers, and how many tokens all prompts begin with alike."""

    prompts: Sequence[int]
    outputs: Sequence[int]
    shared: int = 0
    seed: int = 0

    def at(self, load: Load) -> Workload:
        """Under a load."""
        if load.clients is not None:
            return closed(self.prompts, self.outputs, load.clients, self.shared)
        return arriving(self.prompts, self.outputs, load.rate or 0.0, self.shared, self.seed)


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation and what came of it."""

    load: Load
    method: Method
    num_gpus: int
    result: Result

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        where = {"clients": self.load.clients, "rate": self.load.rate, "method": self.method.label}
        return {**where, "num_gpus": self.num_gpus, **self.result.as_dict()}


def run(
    requests: Requests,
    loads: Sequence[Load],
    methods: Sequence[Method],
    machines: Mapping[int, Callable[[], CostModel]],
    acceptance: Mapping[str, Acceptance],
    settings: Settings,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Case]:
    """Every combination. ``machines``: a cost model by number of GPUs; ``progress(requests answered, of how many, what
    is simulated)``."""
    cases: list[Case] = []
    combined = list(product(machines, loads, methods))
    total, each = len(combined) * len(requests.prompts), len(requests.prompts)
    for number, (num_gpus, load, method) in enumerate(combined):
        costs = machines[num_gpus]()
        own = replace(settings, method=method.name, num_speculative_tokens=method.num_speculative_tokens)
        label, before = f"{load.label}, {method.label}", number * each

        def told(done: int, of: int, label: str = label, before: int = before) -> None:
            if progress is not None and (done % 16 == 0 or done == of):
                progress(before + done, total, label)

        record = Simulation(own, costs, requests.at(load), acceptance).run(told)
        cases.append(Case(load, method, num_gpus, result_of(record, own, costs)))
    return cases
