"""Who races: the engines, what each reads, and their modes and settings."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from environments import python_of
from protocol import Answer, Ask, Load
from weights import Weights

from outrider.errors import ConfigError, OutriderError

HERE = Path(__file__).resolve().parent
MODES = ("plain", "lookup", "draft")


@dataclass(frozen=True, slots=True)
class Kind:
    """One engine. ``environment`` None: the Python that runs the race. ``lookup``, ``draft``: tokens drafted a step,
    one entrant each; None leaves it to the engine."""

    worker: str
    environment: str | None
    reads: Callable[[Weights], Path]
    modes: tuple[str, ...] = MODES
    lookup: tuple[int | None, ...] = (None,)
    draft: tuple[int | None, ...] = (None,)


# Tokens a step: transformers' documentation says 10; llama-cpp-python's default is 10 and its documentation says that 2
# is better without a GPU; llama.cpp drafts 3 with a draft model; OpenVINO GenAI's samples say 5.
KINDS = {
    "outrider": Kind("worker_outrider.py", None, lambda weights: weights.file),
    "outrider-source": Kind("worker_outrider.py", None, lambda weights: weights.source),
    "transformers": Kind("worker_transformers.py", "transformers", lambda weights: weights.folder, lookup=(10,)),
    "llama-cpp-python": Kind(
        "worker_llama.py", "llama-cpp-python", lambda weights: weights.file, lookup=(2, 10), draft=(3,)
    ),
    "llama-cpp-source": Kind(
        "worker_llama.py", "llama-cpp-python", lambda weights: weights.source, lookup=(2, 10), draft=(3,)
    ),
    "openvino-genai": Kind("worker_openvino.py", "openvino-genai", Weights.openvino, lookup=(5, 10), draft=(5,)),
    "openvino-gguf": Kind(
        "worker_openvino.py", "openvino-genai", lambda weights: weights.file, modes=("plain", "lookup"), lookup=(5, 10)
    ),
}
OURS = ("outrider", "outrider-source")


@dataclass(frozen=True, slots=True)
class Entrant:
    """One engine in one mode with one number of drafted tokens (None: the engine's own choice)."""

    engine: str
    mode: str
    num_tokens: int | None

    @property
    def label(self) -> str:
        """Its name in tables."""
        return f"{self.engine} {self.mode}" + (f" {self.num_tokens}" if self.num_tokens is not None else "")


def entrants(args: argparse.Namespace) -> list[Entrant]:
    """All entrants of a run. Raises ConfigError for unknown names, and for a draft mode without a draft."""
    numbers = {"lookup": _numbers(args.lookup_tokens), "draft": _numbers(args.draft_tokens)}
    for name in [*args.engines, *numbers["lookup"], *numbers["draft"]]:
        if name not in KINDS:
            raise ConfigError(f"engine {name!r} is unknown; there are: {', '.join(KINDS)}")
    for mode in args.modes:
        if mode not in MODES:
            raise ConfigError(f"--modes {mode}: unknown; there are: {', '.join(MODES)}")
    if "draft" in args.modes and args.draft is None:
        raise ConfigError("--modes draft needs --draft: name the draft model, or leave the mode out")
    out = []
    for name in args.engines:
        kind = KINDS[name]
        for mode in (mode for mode in args.modes if mode in kind.modes):
            default: tuple[int | None, ...] = {"lookup": kind.lookup, "draft": kind.draft}.get(mode, (None,))
            out += [Entrant(name, mode, number) for number in numbers.get(mode, {}).get(name, default)]
    if not out:
        raise ConfigError("no engine is left: name one in --engines that has a mode in --modes")
    return out


def _numbers(items: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``ENGINE=K,K`` options."""
    out = {}
    for item in items:
        name, _, text = item.partition("=")
        try:
            out[name] = tuple(int(number) for number in text.split(","))
        except ValueError:
            raise ConfigError(f"{item!r}: write ENGINE=K or ENGINE=K,K") from None
    return out


class Worker:
    """The process of one engine. It is stopped (SIGSTOP, with its threads) whenever it has nothing to answer."""

    def __init__(self, engine: str, cache: Path, threads: int, say: Callable[[str], None]) -> None:
        kind = KINDS[engine]
        variables = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        python = sys.executable
        if kind.environment is not None:
            python = str(python_of(kind.environment, cache, say))
            variables.pop("PYTHONPATH", None)
        self.engine, self._log = engine, cache / "logs" / f"{engine}.log"
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("w") as stderr:
            self._process = subprocess.Popen(
                [python, str(HERE / kind.worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                encoding="utf-8",
                env=variables,
                start_new_session=True,  # Ctrl-C goes to the driver alone
            )

    def load(self, load: Load) -> dict[str, Any]:
        """Load models; returns facts for the manifest. Raises OutriderError when the worker cannot."""
        return dict(self._send({"command": "load", **asdict(load)})["facts"])

    def answer(self, ask: Ask) -> Answer:
        """Answer one prompt. Raises OutriderError when the worker cannot."""
        return Answer(**self._send({"command": "answer", **asdict(ask)}))

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _send(self, command: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = ""
        try:
            os.killpg(self._process.pid, signal.SIGCONT)
            stdin.write(json.dumps(command) + "\n")
            stdin.flush()
            line = stdout.readline()
            os.killpg(self._process.pid, signal.SIGSTOP)
        except (BrokenPipeError, ProcessLookupError):
            pass  # the process has ended: no line
        reply = json.loads(line) if line else {"error": f"its process ended with {self._process.wait()}"}
        if "error" in reply:
            raise OutriderError(f"{self.engine}: {reply['error']} (see {self._log})")
        return dict(reply)
