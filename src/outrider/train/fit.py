"""Stage three: fit the head to the features. Every step follows from the seed, so a resumed run ends bit-equal."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from outrider.heads.base import DraftHead, TargetWeights
from outrider.heads.kinds import make
from outrider.paths import write_whole
from outrider.train import batches, checkpoint, sharded
from outrider.train.features import FeatureStore, Reader
from outrider.train.objective import ALONE, Losses, LossName, Objective
from outrider.train.workers import Workers

Report = Callable[["Line", int], None]  # a logged line, and the number of steps in all
Judge = Callable[[DraftHead], dict[str, float]]  # named figures of a head, the first of which decides which one is best
_LOG = 10  # steps between two lines of the log
SAVE = 100  # steps between two checkpoints


@dataclass(frozen=True, slots=True)
class FitOptions:
    """``rows``: padded rows of a batch; ``longest``: tokens of a text that are used; ``held_out``: texts that are kept
    for measuring; ``num_steps``: tokens that the head is unrolled for; ``half``: products in bfloat16;
    ``share``: of a core's time that may be used, the rest is slept; ``shard``: several processes share the weights;
    ``prompts``: their tokens are learnt too, not the answers' alone."""

    epochs: int = 5
    rows: int = 4096
    longest: int = 512
    num_steps: int = 4
    lr: float = 1e-3
    warmup: float = 0.03
    clip: float = 0.5
    held_out: int = 200
    half: bool = True
    loss: LossName = "ce"
    device: str = "cpu"
    share: float = 1.0
    shard: bool = False
    prompts: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log. ``acceptance``: of each unrolled token where all before it were right; ``engine``: what the
    real engine measured; ``kl``: nats a token between the target as it was and as it is, where it is trained too."""

    step: int
    epoch: int
    loss: float
    lr: float
    acceptance: Sequence[float]
    seconds: float
    split: str = "train"
    engine: dict[str, float] = field(default_factory=dict)
    kl: float | None = None

    @property
    def length(self) -> float:
        """Mean acceptance length of a chain that is this good."""
        total, reach = 1.0, 1.0
        for value in self.acceptance:
            reach *= value
            total += reach
        return total


def num_held_out(num_texts: int, options: FitOptions) -> int:
    """How many of the first texts are kept for measuring."""
    return max(1, min(options.held_out, num_texts // 10))


def optimiser(groups: Sequence[dict[str, Any]], lr: float) -> torch.optim.AdamW:
    """Of every fit. ``groups``: as torch has them; ``share`` of one: its part of the learning rate."""
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)


class Fit:
    """A run: the head, its optimiser, its place in the data. ``trained``: all that is learnt, here the head alone."""

    def __init__(
        self,
        head: DraftHead,
        target: TargetWeights,
        store: FeatureStore,
        options: FitOptions,
        folder: Path,
        workers: Workers = ALONE,
    ) -> None:
        self.head, self.options, self._workers = head, options, workers
        self._log_path, self._checkpoint = folder / "log.jsonl", folder / "checkpoint.safetensors"
        self._best = folder / "best.safetensors"
        self._reader: Reader = store.reader()
        self._lengths = [min(length, options.longest) for length in self._reader.lengths]
        self._prompts = [0] * len(self._lengths) if options.prompts else self._reader.prompts
        self._device = head.to(workers.device(options.device)).d2t.device
        self._embedding = target.embedding.bfloat16().to(self._device)
        self._rows = target.head.to(self._device)[head.target_ids]
        self._objective = Objective(head)
        if options.shard:
            workers.shard(self._objective)
        self.trained: nn.Module = head
        self._optimiser = optimiser([{"params": [p for p in head.parameters() if p.requires_grad]}], options.lr)
        self.num_held_out = num_held_out(len(self._lengths), options)
        self.total = sum(len(self._plan(epoch)) for epoch in range(options.epochs))

    def _plan(self, epoch: int) -> list[list[int]]:
        first = self.num_held_out
        lengths, prompts = self._lengths[first:], self._prompts[first:]
        plan = batches.plan(lengths, prompts, self.options.rows, self.options.seed, epoch)
        return [[index + first for index in batch] for batch in plan]

    def run(self, report: Report, judge: Judge | None = None) -> None:
        """Train to the end, from the last checkpoint where there is one.

        After each epoch ``judge`` says how good the head is; ``head`` ends as the best one of all.
        """
        at = checkpoint.restore(self._checkpoint, self.trained, self._optimiser)
        if at.epoch < self.options.epochs:
            self._workers.once(lambda: self._cut_log(at.step))
        began, sums = time.perf_counter(), _Sums()
        step = at.step
        for epoch in range(at.epoch, self.options.epochs):
            plan = self._plan(epoch)
            for number in range(at.batch if epoch == at.epoch else 0, len(plan)):
                sums.add(self._paced(plan[number], step))
                step += 1
                if step % _LOG == 0:
                    line = sums.line(step, epoch, self._lr(step), time.perf_counter() - began)
                    self._log(line)
                    report(line, self.total)
                    sums = _Sums()
                if step % SAVE == 0:
                    self._save(checkpoint.Progress(step, epoch, number + 1))
            line = self._judged(self.evaluate(step, epoch), judge)
            self._log(line)
            report(line, self.total)
        self._save(checkpoint.Progress(step, self.options.epochs, 0))
        state = load_file(self._best) if self._best.exists() else sharded.state_of(self.head)
        self.head = self._whole_head(state).to(self._device)
        self._objective = Objective(self.head)

    def _save(self, progress: checkpoint.Progress) -> None:
        state = checkpoint.state_of(self.trained, self._optimiser)
        self._workers.once(lambda: checkpoint.save(self._checkpoint, state, progress))

    def _whole_head(self, state: Mapping[str, Tensor]) -> DraftHead:
        """A head of its own, in one piece."""
        head = make(self.head.config)
        head.load_state_dict(state)
        return head

    def _judged(self, line: Line, judge: Judge | None) -> Line:
        """``line`` with the figures of the head as it is now, which is kept where it is the best yet."""
        if judge is None:
            return line
        state = sharded.state_of(self.head)
        if not self._workers.first:
            return line
        engine = judge(self._whole_head(state))
        score = next(iter(engine.values()))
        if all(score > earlier for earlier in self._scores()):
            checkpoint.write_tensors(self._best, state)
        return replace(line, engine=engine)

    def _scores(self) -> list[float]:
        """Of the epochs so far."""
        rows = [json.loads(line) for line in self._log_path.read_text(encoding="utf-8").splitlines()]
        return [next(iter(row["engine"].values())) for row in rows if row["engine"]]

    def _lr(self, step: int) -> float:
        warm = max(1, round(self.options.warmup * self.total))
        if step < warm:
            return self.options.lr * (step + 1) / warm
        return self.options.lr * 0.5 * (1.0 + math.cos(math.pi * (step - warm) / max(1, self.total - warm)))

    def _collated(self, indices: Sequence[int], whole: bool) -> tuple[batches.Batch, Sequence[int]]:
        """This process's part of a batch, and which texts it is; where it has none, one that teaches nothing."""
        mine = self._workers.share(indices)
        longest, normed = self.options.longest, self.head.config.normed
        batch = batches.collate(self._reader, mine or indices[:1], longest, normed, whole)
        if not mine:
            batch.mask.zero_()
        return batch.to(self._device), mine or indices[:1]

    def _losses(self, indices: Sequence[int], whole: bool = False) -> Losses:
        batch, _ = self._collated(indices, whole)
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self.options.half):
            steps, loss = self.options.num_steps, self.options.loss
            return Losses(*self._objective(batch, self._embedding, self._rows, steps, self._workers, loss))

    def _paced(self, indices: Sequence[int], step: int) -> Losses:
        begin = time.perf_counter()
        losses = self._step(indices, step)
        if self.options.share < 1.0:
            time.sleep((time.perf_counter() - begin) * (1.0 / self.options.share - 1.0))
        return losses

    def _step(self, indices: Sequence[int], step: int) -> Losses:
        for group in self._optimiser.param_groups:
            group["lr"] = self._lr(step) * group.get("share", 1.0)
        losses = self._losses(indices, self.options.prompts)
        losses.loss.backward()  # type: ignore[no-untyped-call]
        if not self.options.shard:
            self._workers.sum([p.grad for p in self.trained.parameters() if p.grad is not None])
        nn.utils.clip_grad_norm_(self.trained.parameters(), self.options.clip)
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        return self._whole(losses)

    def _whole(self, losses: Losses) -> Losses:
        """Those of all processes."""
        whole = replace(losses, loss=losses.loss.detach())
        self._workers.sum([whole.loss, whole.hits, whole.trials, *([] if whole.kl is None else [whole.kl])])
        return whole

    @torch.no_grad()
    def evaluate(self, step: int, epoch: int) -> Line:
        """Loss and acceptance on the texts that are kept out."""
        began, sums = time.perf_counter(), _Sums()
        lengths, prompts = self._lengths[: self.num_held_out], self._reader.prompts[: self.num_held_out]
        for indices in batches.plan(lengths, prompts, self.options.rows, 0, 0):
            sums.add(self._whole(self._losses(indices)))
        return sums.line(step, epoch, self._lr(step), time.perf_counter() - began, "held out")

    def _cut_log(self, step: int) -> None:
        """Forget lines that will be written again: those of later steps, and of an epoch's end at ``step``."""
        path = self._log_path
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        rows = [(json.loads(line), line) for line in lines if line.endswith("\n")]
        kept = [line for row, line in rows if row["step"] < step or (row["step"] == step and row["split"] == "train")]
        write_whole(path, "".join(kept))

    def _log(self, line: Line) -> None:
        if not self._workers.first:
            return
        row = {
            "step": line.step,
            "epoch": line.epoch,
            "split": line.split,
            "loss": round(line.loss, 5),
            "lr": line.lr,
            "acceptance": [round(value, 4) for value in line.acceptance],
            "length": round(line.length, 4),
            "seconds": round(line.seconds, 1),
            "engine": {name: round(value, 4) for name, value in line.engine.items()},
            **({} if line.kl is None else {"kl": round(line.kl, 6)}),
        }
        with self._log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


class _Sums:
    """Losses and counts of several batches."""

    def __init__(self) -> None:
        self._loss, self._count = 0.0, 0
        self._kl: float | None = None
        self._hits: Tensor | None = None
        self._trials: Tensor | None = None

    def add(self, losses: Losses) -> None:
        self._loss += float(losses.loss)
        self._count += 1
        if losses.kl is not None:
            self._kl = (self._kl or 0.0) + float(losses.kl)
        self._hits = losses.hits if self._hits is None else self._hits + losses.hits
        self._trials = losses.trials if self._trials is None else self._trials + losses.trials

    def line(self, step: int, epoch: int, lr: float, seconds: float, split: str = "train") -> Line:
        assert self._hits is not None
        assert self._trials is not None
        acceptance = (self._hits / self._trials.clamp_min(1)).tolist()
        kl = None if self._kl is None else self._kl / self._count
        return Line(step, epoch, self._loss / self._count, lr, acceptance, seconds, split, kl=kl)
