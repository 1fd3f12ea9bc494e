"""What a worker speaks: one JSON object a line on stdin, one on stdout. Standard library only: it runs everywhere.

| command | keys | answer |
|---|---|---|
| load | those of ``Load`` | `facts` |
| answer | those of ``Ask`` | those of ``Answer`` |

An answer holds `token_ids` (new ones, an EOS included), `num_first` (how many came with the first emission),
`prefill_seconds` (call to first emission), `seconds` (whole call) and `num_steps` (emissions after the first).
Where a command fails the line holds `error`, and the worker lives on.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True, slots=True)
class Load:
    """What to load. ``options``: of this engine alone; ``end_ids``: every id after which an answer ends."""

    model: str
    draft: str | None
    dtype: str
    threads: int
    context: int
    end_ids: list[int]
    modes: list[str]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt. ``num_tokens``: drafted a step, None leaves it to the engine; ``salt``: parts stores of runs."""

    token_ids: list[int]
    max_tokens: int
    mode: str
    num_tokens: int | None
    salt: str


@dataclass(slots=True)
class Answer:
    """See the module's table; ``num_steps`` None: the engine does not tell."""

    token_ids: list[int]
    num_first: int
    prefill_seconds: float
    seconds: float
    num_steps: int | None


@dataclass(slots=True)
class Emissions:
    """Collects what an engine emits, with the time of the first and of the last emission."""

    began: float = field(default_factory=time.perf_counter)
    token_ids: list[int] = field(default_factory=list)
    num_first: int = 0
    first: float = 0.0
    num_emissions: int = 0

    def add(self, token_ids: Iterable[int]) -> None:
        """One emission; an empty one does not count."""
        new = list(token_ids)
        if not new:
            return
        if not self.num_emissions:
            self.first, self.num_first = time.perf_counter(), len(new)
        self.num_emissions += 1
        self.token_ids += new

    def answer(self, num_steps: int | None = None) -> Answer:
        """The call ends now. ``num_steps``: forwards of the target after the first emission, if not one each."""
        ended = time.perf_counter()
        if not self.num_emissions:
            raise RuntimeError("the engine emitted no token")
        steps = self.num_emissions - 1 if num_steps is None else num_steps
        return Answer(self.token_ids, self.num_first, self.first - self.began, ended - self.began, steps)


class Engine(Protocol):
    """What a worker file implements."""

    def load(self, load: Load) -> dict[str, Any]:
        """Load the model; returns facts for the manifest."""
        ...

    def answer(self, ask: Ask) -> Answer:
        """Answer one prompt greedily."""
        ...


def serve(engine: Engine) -> None:
    """Answer commands until stdin ends. What libraries print goes to stderr."""
    if sys.platform == "linux":  # a stopped worker cannot see that its stdin has ended
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            reply = _reply(engine, command.pop("command"), command)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {str(error).strip()}"}
        out.write(json.dumps(reply) + "\n")
        out.flush()


def _reply(engine: Engine, name: str, values: dict[str, Any]) -> dict[str, Any]:
    if name == "load":
        return {"facts": engine.load(Load(**values))}
    return asdict(engine.answer(Ask(**values)))
