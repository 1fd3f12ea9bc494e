"""Online distillation: a head that goes on learning from what it drafts for.

Finished requests go into a bounded buffer with the features that serving computed anyway. Now and then a process of its
own trains the head on them; the new one is taken when it does better on the latest requests, between two steps, and
given back when acceptance falls. Nothing of it touches the text: a head only guesses.
Source: Online Speculative Decoding, arXiv 2310.07177.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.closing import Closing
from outrider.core.draft import Draft
from outrider.drafters.base import DraftSequence
from outrider.drafters.eagle import EagleDrafter
from outrider.drafters.features import Features
from outrider.engine import heads
from outrider.engine.canary import agreement
from outrider.errors import ConfigError
from outrider.heads import files
from outrider.heads.decoder import HeadDecoder
from outrider.llm import LLM
from outrider.telemetry.drift import DriftMonitor, cause_of
from outrider.train.features import FeatureStore, Text
from outrider.train.online_worker import Job, Result

_POLL = 8  # steps between two looks at the process
_WINDOW = 500  # steps that are looked back on


@dataclass(frozen=True, slots=True)
class OnlineOptions:
    """``buffer``: requests that are kept; ``every``: new ones between two trainings; ``share``: of a core that training
    may use; ``epochs`` and ``lr``: of one training; ``gain``: how much longer drafts must be accepted on the latest
    requests for a new head to be taken; ``trial``: steps after which it is judged on live traffic."""

    buffer: int = 64
    every: int = 32
    epochs: int = 3
    lr: float = 3e-4
    share: float = 0.5
    held_out: float = 0.2
    gain: float = 0.01
    trial: int = 300
    shortest: int = 8  # tokens of an answer that is worth keeping


@dataclass(slots=True)
class _Trial:
    """A head that was just taken: the one before it, and the tokens that were accepted of its drafts, a step."""

    old: HeadDecoder
    old_folder: Path
    before: float


class Distiller(Closing):
    """Attached to an ``LLM`` that drafts with a recurrent head; detach it by ``close`` or as a context manager.

    ``events`` tells what happened; they are also appended to ``folder/events.jsonl``. Raises ConfigError when the
    engine has no method with such a head.
    """

    def __init__(self, llm: LLM, folder: Path, options: OnlineOptions | None = None) -> None:
        self._engine: Any = llm._engine
        self._options, self._folder = options or OnlineOptions(), folder
        self._drafter = _eagle(self._engine)
        self._target_name = self._engine.target.loaded.source.name
        folder.mkdir(parents=True, exist_ok=True)
        self.events: list[dict[str, Any]] = []
        self.drift = DriftMonitor()
        self._buffer: deque[Text] = deque(maxlen=self._options.buffer)
        self._new = self._round = self._calls = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._trial: _Trial | None = None
        self._window: deque[int] = deque(maxlen=max(_WINDOW, self._options.trial))  # accepted tokens, of this head
        self._head_folder = folder / "head-0"
        files.save(heads.source_of(self._engine.target, self._method()), self._head_folder)
        self._drafter.collect(self._collect)
        self._engine.planner.watchers.append(self._watch)

    def close(self) -> None:
        """Stop training and collecting; the engine goes on with the head that it has."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._watch in self._engine.planner.watchers:
            self._engine.planner.watchers.remove(self._watch)
        self._drafter.collect(None)

    @property
    def accepted(self) -> float:
        """Tokens of this head's drafts that were accepted of late, a step."""
        return sum(self._window) / max(1, len(self._window))

    def _method(self) -> Any:
        return next(m.config for m in self._engine.drafting.methods.values() if m.drafter is self._drafter)

    def _collect(self, seq: DraftSequence, known: Features) -> None:
        """A sequence leaves: keep its text and features."""
        tokens, features, last = list(seq.token_ids), known.rows().half(), known.last().half()
        rows = min(len(features), len(last))
        if rows - seq.num_prompt_tokens < self._options.shortest:
            return
        empty = torch.zeros(rows)
        text = Text(
            torch.tensor(tokens[:rows], dtype=torch.int32),
            features[:rows].clone(),
            last[:rows].clone(),
            empty,
            empty.to(torch.int32),
            seq.num_prompt_tokens,
        )
        self._buffer.append(text)
        self._new += 1
        if self._process is None and self._trial is None and self._new >= self._options.every:
            self._start()

    def _start(self) -> None:
        """Train on the buffer, in a process of its own."""
        self._round += 1
        out = self._folder / f"round-{self._round}"
        out.mkdir(parents=True, exist_ok=True)
        texts = list(reversed(self._buffer))  # the latest first: they are measured on
        FeatureStore(out / "texts").append(texts)
        chosen = self._options
        held_out = max(1, round(chosen.held_out * len(texts)))
        names = {"target": self._target_name, "head": str(self._head_folder), "texts": str(out / "texts")}
        job = Job(
            **names, out=str(out), held_out=held_out, epochs=chosen.epochs, lr=chosen.lr, share=chosen.share,
            seed=self._round,
        )  # fmt: skip
        job.write(out / "job.json")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "outrider.train.online_worker", str(out / "job.json")]
        with (out / "log.txt").open("wb") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._new = 0
        self._tell("training", texts=len(texts))

    def _watch(self, draft: Draft, emitted: Sequence[int]) -> None:
        """A step: what was accepted, whether that has fallen for good, and whether a training is done."""
        if not len(draft):
            return
        accepted = len(emitted) - 1
        self._window.append(accepted)
        if self.drift.observe(accepted, min(accepted + 1, max(draft.depths()))):
            self._drifted()
        if self._trial is not None:
            self._judge(self._trial)
        self._calls += 1
        if self._process is not None and self._calls % _POLL == 0 and self._process.poll() is not None:
            self._finish()

    def _drifted(self) -> None:
        """Say what changed, by the text that the head was tried on when it was trained."""
        config = self._drafter.head.config
        facts: dict[str, Any] = {"accepted": round(self.accepted, 3)}
        if config.canary:
            found = agreement(self._engine.target, self._drafter.head, config.canary)
            facts |= {"cause": cause_of(config.canary_agreement, found), "canary": round(found, 3)}
        self._tell("drift", **facts)
        self.drift.reset()

    def _finish(self) -> None:
        """A training has ended: take the head if it is better on the latest requests."""
        assert self._process is not None
        status, self._process = self._process.returncode, None
        out = self._folder / f"round-{self._round}"
        if status != 0 or not (out / "result.json").exists():
            self._tell("failed", status=status, log=str(out / "log.txt"))
            return
        result = Result(**json.loads((out / "result.json").read_text(encoding="utf-8")))
        better = result.after > result.before * (1.0 + self._options.gain)
        self._tell("taken" if better else "refused", before=round(result.before, 3), after=round(result.after, 3))
        if better:
            self._trial = _Trial(self._drafter.head, self._head_folder, self.accepted)
            self._take(out / "head")

    def _take(self, folder: Path) -> None:
        head = heads.pack(self._engine.target, files.load(folder), self._method().draft_dtype)
        assert isinstance(head, HeadDecoder)
        self._swap(head, folder)

    def _swap(self, head: HeadDecoder, folder: Path) -> None:
        self._drafter.swap(head)
        self._head_folder = folder
        self._window.clear()
        self.drift.reset()

    def _judge(self, trial: _Trial) -> None:
        """Give the new head back when live traffic accepts less of its drafts than of the old one's."""
        if len(self._window) < self._options.trial:
            return
        after = self.accepted
        self._trial = None
        if after < 0.9 * trial.before:
            self._tell("rolled back", before=round(trial.before, 3), after=round(after, 3))
            self._swap(trial.old, trial.old_folder)
        else:
            self._tell("kept", before=round(trial.before, 3), after=round(after, 3))

    def _tell(self, what: str, **facts: Any) -> None:
        event = {"event": what, "round": self._round, "time": round(time.time(), 1), **facts}
        self.events.append(event)
        with (self._folder / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


def _eagle(engine: Any) -> EagleDrafter:
    for method in engine.drafting.methods.values():
        if isinstance(method.drafter, EagleDrafter):
            return method.drafter
    raise ConfigError("online distillation needs a recurrent head as a method of its own: eagle3, eagle, eagle2 or mtp")
