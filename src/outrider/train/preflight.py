"""What a run will take and what it will learn from, before it takes hours; what cannot work is refused here."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from outrider.engine.memory import free_memory
from outrider.errors import ConfigError
from outrider.heads.base import DraftHead
from outrider.target.batch import Span
from outrider.target.costs import measure, spread_tokens
from outrider.target.model import Target
from outrider.train.adapter import check_installed, num_updates
from outrider.train.answers import Sample
from outrider.train.card import CHANGED
from outrider.train.fit import FitOptions
from outrider.train.joint import JointOptions

_SPARE = 1 << 30  # bytes of disk that are left alone
_LOW_COVERAGE = 0.8
_ROUNDS = 3  # of a measurement
_ANSWER = 0.6  # of max_tokens, where no answer is known yet


@dataclass(frozen=True, slots=True)
class Size:
    """Rows in all, and those of them that the target wrote; ``guessed`` where not all prompts are answered."""

    texts: int
    rows: int
    answer_rows: int
    guessed: bool


@dataclass(frozen=True, slots=True)
class JointNeeds:
    """Of training the target too: its weights and those of its updates, bytes of memory that a step takes and that are
    free, and bytes of disk for the new target."""

    target: int
    updates: int
    memory_needed: int
    memory_free: int
    disk_needed: int

    def lines(self) -> list[str]:
        """The report."""
        return [
            f"joint: the whole target is trained through, {self.target / 1e6:.1f} million weights by "
            f"{self.updates / 1e6:.1f} million of updates; memory {_gib(self.memory_needed)} of "
            f"{_gib(self.memory_free)} free, disk {_gib(self.disk_needed)} more",
            f"joint: {CHANGED}",
        ]


@dataclass(frozen=True, slots=True)
class Preflight:
    """``coverage``: share of the answers' tokens that the head can draft; None while nothing is answered. Seconds of
    the stages by a measurement on this machine, bytes that the features need and that the disk has, bytes of memory
    that a training step needs, about."""

    size: Size
    parameters: int
    layers: Sequence[int]
    coverage: float | None
    seconds: dict[str, float]
    disk_needed: int
    disk_free: int
    memory_needed: int
    joint: JointNeeds | None = None

    def lines(self) -> list[str]:
        """The report."""
        about = "about " if self.size.guessed else ""
        density = self.size.answer_rows / max(1, self.size.rows)
        times = ", ".join(f"{stage} {_duration(seconds)}" for stage, seconds in self.seconds.items())
        covers = (
            [] if self.coverage is None else [f"draft vocabulary covers: {self.coverage:.2%} of the answers' tokens"]
        )
        return [
            f"texts: {about}{self.size.texts}, {about}{self.size.rows} tokens, {density:.0%} of them trained on",
            f"head: {self.parameters / 1e6:.1f} million weights over layers {list(self.layers)}",
            *covers,
            f"disk: {_gib(self.disk_needed)} of {_gib(self.disk_free)}; memory of a step: {_gib(self.memory_needed)}",
            f"time on this machine, at most: {times}",
            *([] if self.joint is None else self.joint.lines()),
        ]


def size_of(samples: Sequence[Sample], answered: int, prompts: int, prompt_tokens: float, max_tokens: int) -> Size:
    """From what is answered to all prompts. ``prompt_tokens``: of a prompt, where nothing is answered yet."""
    rows = sum(len(sample.token_ids) for sample in samples)
    answer_rows = sum(sample.num_answer_tokens for sample in samples)
    if answered >= prompts:
        return Size(len(samples), rows, answer_rows, False)
    if not answered:
        each = _ANSWER * max_tokens
        return Size(prompts, round(prompts * (prompt_tokens + each)), round(prompts * each), True)
    more = prompts / answered
    return Size(round(len(samples) * more), round(rows * more), round(answer_rows * more), True)


def preflight(
    head: DraftHead,
    target: Target,
    size: Size,
    coverage: float | None,
    options: FitOptions,
    out: Path,
    row_bytes: int,
    done_rows: int,
) -> Preflight:
    """The report. ``row_bytes``: of a row of the features, of which ``done_rows`` are on the disk already.

    Raises ConfigError when nothing is trained on, the draft vocabulary misses too much, or the disk is too small.
    """
    density = size.answer_rows / max(1, size.rows)
    if size.texts < 2 or not size.answer_rows:
        raise ConfigError("nothing to train on: the target wrote no answers; give more --prompts")
    if coverage is not None and coverage < _LOW_COVERAGE:
        raise ConfigError(
            f"--draft-vocab {head.config.draft_vocab_size} covers {coverage:.0%} of what the target writes, so every "
            "fifth draft ends there: raise it"
        )
    needed, free = max(0, size.rows - done_rows) * row_bytes, shutil.disk_usage(out).free
    if needed > free - _SPARE:
        raise ConfigError(
            f"--out {out}: features need {_gib(needed)} and {_gib(free)} are free; give fewer --prompts "
            "(--limit-per-task) or another --out"
        )
    weights = sum(parameter.numel() for parameter in head.parameters())
    fit_rows, prefill = size.rows * options.epochs, _prefill_rate(target)
    return Preflight(
        size=size,
        parameters=weights,
        layers=head.config.hidden_layers,
        coverage=coverage,
        seconds={
            "regenerate": (size.rows - size.answer_rows) / prefill + size.answer_rows / _decode_rate(target),
            "features": max(0, size.rows - done_rows) / prefill,
            "fit": fit_rows * _row_flops(head, density, options.num_steps) / _flop_rate(),
        },
        disk_needed=needed,
        disk_free=free,
        memory_needed=16 * weights + options.rows * head.config.draft_vocab_size * 4 * 4,
    )


def with_joint(
    found: Preflight, head: DraftHead, target: Target, options: FitOptions, joint: JointOptions, out: Path
) -> Preflight:
    """``found`` and what training the target too takes. Raises ConfigError when memory or disk are too small, and
    where peft is not installed."""
    check_installed()
    config, rows = target.config, options.rows
    network: Any = target.loaded.model
    weights = sum(parameter.numel() for parameter in network.parameters())
    updates, vocab = num_updates(network), target.vocab_size
    width = 10 * int(config.hidden_size) + 5 * int(getattr(config, "intermediate_size", 0) or 4 * config.hidden_size)
    each = 4 * width * target.num_layers + 2 * vocab  # bytes that a row leaves for the way back
    laws = 512 * vocab * 4 * 3
    trained = updates + found.parameters
    memory = 4 * weights + 2 * vocab * int(config.hidden_size) + 16 * trained + rows * each + laws
    needs = JointNeeds(weights, updates, memory, free_memory(torch.device(options.device)), 4 * weights + 12 * trained)
    if needs.memory_needed > needs.memory_free:
        raise ConfigError(
            f"--joint trains the whole target: a step of --batch-rows {rows} takes {_gib(memory)} of memory and "
            f"{_gib(needs.memory_free)} are free; lower --batch-rows, or leave --joint out"
        )
    if found.disk_needed + needs.disk_needed > found.disk_free - _SPARE:
        raise ConfigError(
            f"--joint writes a whole target: {_gib(found.disk_needed + needs.disk_needed)} are needed in all and "
            f"{_gib(found.disk_free)} are free; take another --out than {out}, or leave --joint out"
        )
    density = found.size.answer_rows / max(1, found.size.rows)
    through = found.size.rows * 3.0 / _prefill_rate(target)  # forwards that a way there and back is worth
    laws_flops = density * 10.0 * vocab * int(config.hidden_size)  # a teacher in float32, and both ways of the law
    beside = found.size.rows * (_row_flops(head, density, options.num_steps) + laws_flops) / _flop_rate()
    return replace(found, joint=needs, seconds=found.seconds | {"joint": joint.epochs * (through + beside)})


def _row_flops(head: DraftHead, density: float, steps: int) -> float:
    """Of a row of the texts: three products of each matrix (forward and two backward) a step, and the teacher's, for a
    row that is trained on; for a prompt's row, once, those that make it a context."""
    sizes = {name: parameter.numel() for name, parameter in head.named_parameters()}
    context = sum(size for name, size in sizes.items() if name.split(".")[-2] in ("fc", "k_proj", "v_proj"))
    teacher = 2.0 * head.config.draft_vocab_size * head.config.hidden_size
    return density * (6.0 * steps * sum(sizes.values()) + teacher) + 6.0 * (1.0 - density) * context


def _decode_rate(target: Target) -> float:
    """Tokens a second of 32 answers side by side."""
    return 32 / _forward_seconds(target, 32)


def _prefill_rate(target: Target) -> float:
    rows = min(256, target.max_model_len)
    return rows / _forward_seconds(target, rows)


def _forward_seconds(target: Target, rows: int) -> float:
    storage, context = target.new_storage(256, 16), torch.arange(256, dtype=torch.int32)

    def forward(count: int) -> None:
        target.forward([Span(spread_tokens(count, target.vocab_size), context, 0)], storage)

    return measure(forward, (rows,), _ROUNDS).seconds[0]


def _flop_rate() -> float:
    """Floating-point operations a second of bfloat16 products."""
    square = torch.ones(1024, 1024, dtype=torch.bfloat16)

    def product(size: int) -> None:
        torch.mm(square, square)

    return 2.0 * 1024**3 / measure(product, (1024,), _ROUNDS).seconds[0]


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"
