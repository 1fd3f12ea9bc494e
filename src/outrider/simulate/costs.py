"""What a step costs: a measured machine read from JSON, or the roofline of one known by its data sheet."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from outrider.errors import ConfigError, why_unread
from outrider.target.costs import CostCurve
from outrider.theory.roofline import Machine, ModelShape, step_seconds

FORMAT = "outrider costs 1"
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_CONTEXT = 256


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a forward is given. ``decode_rows``: roots and draft nodes; ``chunk_rows``: rows of prompts;
    ``num_sequences``: that decode; ``context``: tokens behind the rows, on average over them."""

    decode_rows: int
    chunk_rows: int
    num_sequences: int
    context: float

    @property
    def rows(self) -> int:
        """All of them."""
        return self.decode_rows + self.chunk_rows


class CostModel(ABC):
    """Seconds of everything that a step does. ``curve``: what the planner is told; ``price``: of the machine an hour;
    ``kv_bytes``: of a token in the target's cache; ``kv_tokens``: that the cache holds, None where nothing is known."""

    curve: CostCurve
    price: float = 0.0
    kv_bytes: float = 0.0
    kv_tokens: int | None = None
    front: float = 0.0  # seconds that a request takes, one after the other, before the engine may see it

    @abstractmethod
    def forward(self, shape: StepShape) -> float:
        """Seconds of the target's forward."""

    @abstractmethod
    def level(self, method: str, num_sequences: int) -> float:
        """Seconds of one level of drafting for so many sequences; 0 for a method without a model."""

    def drafting(self, method: str, num_sequences: int) -> float:
        """Seconds of asking for drafts that do not depend on their length."""
        return 0.0

    def begin(self, method: str, num_tokens: int) -> float:
        """Seconds of a drafter's meeting a sequence of so many tokens."""
        return 0.0

    def overhead(self, num_sequences: int, num_tokens: int, num_ended: int = 0) -> float:
        """Seconds of a step that are neither: scheduling, sampling, writing texts, and the time between steps."""
        return 0.0


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """``rows``, ``seconds``: of a draft forward (none for a lookup); ``step`` and ``sequence``: seconds of asking;
    ``begin_token``: seconds a prompt token when the drafter meets a sequence."""

    rows: Sequence[int] = ()
    seconds: Sequence[float] = ()
    step: float = 0.0
    sequence: float = 0.0
    begin_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds. ``step``: of every step; ``sequence``: of each sequence in it; ``token``: of each token that it commits;
    ``request``: of each answer that ends; ``front``: as in ``CostModel``."""

    step: float = 0.0
    sequence: float = 0.0
    token: float = 0.0
    request: float = 0.0
    front: float = 0.0


@dataclass(frozen=True, slots=True)
class ChunkCosts:
    """Of prompt rows: ``row`` seconds each, after ``step`` seconds where no sequence decodes beside them."""

    step: float
    row: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The document of a measured machine. ``pace_rows`` and ``pace``: by what factor steps of so many rows take longer
    than the curve says, because caches are colder between drafts and others use the machine."""

    target: CostCurve
    chunk: ChunkCosts
    overhead: Overhead = Overhead()
    pace_rows: Sequence[int] = (1,)
    pace: Sequence[float] = (1.0,)
    drafts: Mapping[str, DraftCosts] = field(default_factory=dict)
    price_per_hour: float = 0.0
    kv_bytes_per_token: float = 0.0
    kv_cache_tokens: int | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


class MeasuredCosts(CostModel):
    """A machine that was measured."""

    def __init__(self, measured: Measured) -> None:
        self.measured, self.curve = measured, measured.target
        self.price, self.kv_bytes = measured.price_per_hour, measured.kv_bytes_per_token
        self.kv_tokens = measured.kv_cache_tokens
        self.front = measured.overhead.front
        self._levels = {
            method: CostCurve(tuple(costs.rows), tuple(costs.seconds))
            for method, costs in measured.drafts.items()
            if costs.rows
        }

    def forward(self, shape: StepShape) -> float:
        """The curve at this context times the pace, and the chunk's rows."""
        seconds = self.measured.chunk.step
        if shape.decode_rows:
            curve = self.curve.behind(shape.context, shape.num_sequences)
            factor = float(np.interp(np.log2(shape.decode_rows), np.log2(self.measured.pace_rows), self.measured.pace))
            seconds = curve(shape.decode_rows) * factor
        return seconds + shape.chunk_rows * self.measured.chunk.row if shape.chunk_rows else seconds

    def level(self, method: str, num_sequences: int) -> float:
        """By the draft's curve, one row a sequence."""
        curve = self._levels.get(method)
        return 0.0 if curve is None else curve(num_sequences)

    def drafting(self, method: str, num_sequences: int) -> float:
        """A constant, and some for each sequence."""
        costs = self.measured.drafts.get(method, DraftCosts())
        return costs.step + costs.sequence * num_sequences

    def begin(self, method: str, num_tokens: int) -> float:
        """In proportion to the tokens."""
        return self.measured.drafts.get(method, DraftCosts()).begin_token * num_tokens

    def overhead(self, num_sequences: int, num_tokens: int, num_ended: int = 0) -> float:
        """A constant, some for each sequence, for each token, and for each answer that ends."""
        costs = self.measured.overhead
        each = costs.sequence * num_sequences + costs.token * num_tokens + costs.request * num_ended
        return costs.step + each


class RooflineCosts(CostModel):
    """A machine known by its data sheet. ``drafts``: shapes of the methods' draft models or heads; a method without one
    is a lookup. ``launch``: seconds of a step that no roofline shows (kernel launches, sampling, Python)."""

    def __init__(
        self,
        shape: ModelShape,
        machine: Machine,
        drafts: Mapping[str, ModelShape] | None = None,
        *,
        launch: float = 0.002,
        share: float = 0.9,
    ) -> None:
        self.shape, self.machine, self.drafts, self._launch = shape, machine, dict(drafts or {}), launch
        self.price, self.kv_bytes = machine.price, shape.kv_bytes_per_token
        weights = shape.weight_bytes if shape.experts is None else shape.experts.bytes
        held = weights + sum(draft.weight_bytes for draft in self.drafts.values())
        room = machine.memory * share - held
        if machine.memory and room <= 0:
            raise ConfigError(
                f"the weights take {held / 1e9:.0f} GB of {machine.memory * share / 1e9:.0f} GB: more GPUs "
                "(--num-gpus), or a narrower format (--bytes-per-weight)"
            )
        each = self.kv_bytes + sum(draft.kv_bytes_per_token for draft in self.drafts.values())
        self.kv_tokens = int(room / each) if machine.memory and each else None
        read = self.kv_bytes / (machine.bandwidth * machine.efficiency[0])
        seconds = tuple(step_seconds(shape, machine, rows, 1, _CONTEXT) for rows in _ROWS)
        self.curve = CostCurve(_ROWS, seconds, context=_CONTEXT, per_read=read)

    def forward(self, shape: StepShape) -> float:
        """The roofline of all rows, each sequence's KV read once."""
        sequences = shape.num_sequences or 1
        return step_seconds(self.shape, self.machine, shape.rows, sequences, shape.context)

    def level(self, method: str, num_sequences: int) -> float:
        """The roofline of the draft's shape."""
        draft = self.drafts.get(method)
        if draft is None:
            return 0.0
        return step_seconds(draft, self.machine, num_sequences, num_sequences, _CONTEXT) + self._launch / 10

    def overhead(self, num_sequences: int, num_tokens: int, num_ended: int = 0) -> float:
        """The same for every step."""
        return self._launch


def read_costs(path: Path, price: float | None = None) -> MeasuredCosts:
    """A measured machine from a file. Raises ConfigError for one that is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--costs {path}: cannot be read ({why_unread(error)})") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ConfigError(f'--costs {path}: its "format" is not {FORMAT!r}; benchmarks/serving/simulated.py writes one')
    try:
        return MeasuredCosts(parse(value, price))
    except (KeyError, TypeError) as error:
        raise ConfigError(f"--costs {path}: {error} is missing or unknown") from None


def parse(value: Mapping[str, Any], price: float | None = None) -> Measured:
    """A document as ``Measured``; ``price`` replaces its own."""
    make: Callable[[Mapping[str, Any]], CostCurve] = lambda curve: CostCurve(  # noqa: E731
        **{**curve, "rows": tuple(curve["rows"]), "seconds": tuple(curve["seconds"])}
    )
    return Measured(
        target=make(value["target"]),
        chunk=ChunkCosts(**value["chunk"]),
        overhead=Overhead(**value.get("overhead", {})),
        pace_rows=value.get("pace_rows", (1,)),
        pace=value.get("pace", (1.0,)),
        drafts={method: DraftCosts(**costs) for method, costs in value.get("drafts", {}).items()},
        price_per_hour=value.get("price_per_hour", 0.0) if price is None else price,
        kv_bytes_per_token=value.get("kv_bytes_per_token", 0.0),
        kv_cache_tokens=value.get("kv_cache_tokens"),
        about=value.get("about", {}),
    )
