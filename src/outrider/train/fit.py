"""Stage three: fit the head to the features. Every step follows from the seed, so a resumed run ends bit-equal."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from outrider.heads.eagle3 import Eagle3
from outrider.train import batches, checkpoint
from outrider.train.features import FeatureStore, Reader
from outrider.train.objective import Losses, eagle3_losses
from outrider.train.start import TargetWeights

Report = Callable[["Line", int], None]  # a logged line, and the number of steps in all
_LOG = 10  # steps between two lines of the log
_SAVE = 100  # steps between two checkpoints


@dataclass(frozen=True, slots=True)
class FitOptions:
    """``rows``: padded rows of a batch; ``longest``: tokens of a text that are used; ``held_out``: texts that are kept
    for measuring; ``num_steps``: tokens that the head is unrolled for."""

    epochs: int = 5
    rows: int = 4096
    longest: int = 512
    num_steps: int = 4
    lr: float = 1e-3
    warmup: float = 0.03
    clip: float = 0.5
    held_out: int = 200
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log. ``acceptance``: of each unrolled token where all before it were right."""

    step: int
    epoch: int
    loss: float
    lr: float
    acceptance: Sequence[float]
    seconds: float
    split: str = "train"

    @property
    def length(self) -> float:
        """Mean acceptance length of a chain that is this good."""
        total, reach = 1.0, 1.0
        for value in self.acceptance:
            reach *= value
            total += reach
        return total


class Fit:
    """A run: the head, its optimiser, its place in the data."""

    def __init__(
        self, head: Eagle3, target: TargetWeights, store: FeatureStore, options: FitOptions, folder: Path
    ) -> None:
        self.head, self.options, self.folder = head, options, folder
        self._reader: Reader = store.reader()
        self._lengths = [min(length, options.longest) for length in self._reader.lengths]
        self._embedding = target.embedding.bfloat16()
        self._rows = target.head[head.target_ids]
        self._optimiser = torch.optim.AdamW(head.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.0)
        self._kept = max(1, min(options.held_out, len(self._lengths) // 10))
        self.total = options.epochs * len(self._plan(0))

    def _plan(self, epoch: int) -> list[list[int]]:
        lengths = self._lengths[self._kept :]
        plan = batches.plan(lengths, self.options.rows, self.options.seed, epoch)
        return [[index + self._kept for index in batch] for batch in plan]

    def run(self, report: Report) -> None:
        """Train to the end, from the last checkpoint where there is one."""
        path = self.folder / "checkpoint.safetensors"
        at = checkpoint.restore(path, self.head, self._optimiser)
        self._cut_log(at.step)
        began, sums = time.perf_counter(), _Sums()
        step = at.step
        for epoch in range(at.epoch, self.options.epochs):
            plan = self._plan(epoch)
            for number in range(at.batch if epoch == at.epoch else 0, len(plan)):
                sums.add(self._step(plan[number], step))
                step += 1
                if step % _LOG == 0:
                    line = sums.line(step, epoch, self._lr(step), time.perf_counter() - began)
                    self._log(line)
                    report(line, self.total)
                    sums = _Sums()
                if step % _SAVE == 0:
                    checkpoint.save(path, self.head, self._optimiser, checkpoint.Progress(step, epoch, number + 1))
            line = self.evaluate(step, epoch)
            self._log(line)
            report(line, self.total)
        checkpoint.save(path, self.head, self._optimiser, checkpoint.Progress(step, self.options.epochs, 0))

    def _lr(self, step: int) -> float:
        warm = max(1, round(self.options.warmup * self.total))
        if step < warm:
            return self.options.lr * (step + 1) / warm
        return self.options.lr * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, self.total - warm)))

    def _losses(self, indices: Sequence[int]) -> Losses:
        batch = batches.collate(self._reader, indices, self.options.longest)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return eagle3_losses(self.head, batch, self._embedding, self._rows, self.options.num_steps)

    def _step(self, indices: Sequence[int], step: int) -> Losses:
        for group in self._optimiser.param_groups:
            group["lr"] = self._lr(step)
        losses = self._losses(indices)
        losses.loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.head.parameters(), self.options.clip)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return losses

    @torch.no_grad()
    def evaluate(self, step: int, epoch: int) -> Line:
        """Loss and acceptance on the texts that are kept out."""
        began, sums = time.perf_counter(), _Sums()
        for indices in batches.plan(self._lengths[: self._kept], self.options.rows, 0, 0):
            sums.add(self._losses(indices))
        return sums.line(step, epoch, self._lr(step), time.perf_counter() - began, "held out")

    def _cut_log(self, step: int) -> None:
        """Forget lines of steps that will be taken again."""
        path = self.folder / "log.jsonl"
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step]
            path.write_text("".join(kept), encoding="utf-8")

    def _log(self, line: Line) -> None:
        row = {
            "step": line.step,
            "epoch": line.epoch,
            "split": line.split,
            "loss": round(line.loss, 5),
            "lr": line.lr,
            "acceptance": [round(value, 4) for value in line.acceptance],
            "length": round(line.length, 4),
            "seconds": round(line.seconds, 1),
        }
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


class _Sums:
    """Losses and counts of several batches."""

    def __init__(self) -> None:
        self._loss, self._count = 0.0, 0
        self._hits: Tensor | None = None
        self._trials: Tensor | None = None

    def add(self, losses: Losses) -> None:
        self._loss += float(losses.loss.detach())
        self._count += 1
        self._hits = losses.hits if self._hits is None else self._hits + losses.hits
        self._trials = losses.trials if self._trials is None else self._trials + losses.trials

    def line(self, step: int, epoch: int, lr: float, seconds: float, split: str = "train") -> Line:
        assert self._hits is not None
        assert self._trials is not None
        acceptance = (self._hits / self._trials.clamp_min(1)).tolist()
        return Line(step, epoch, self._loss / self._count, lr, acceptance, seconds, split)
