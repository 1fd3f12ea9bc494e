"""Answers of a race, and what they come to: rates per task, ratios to the fastest peer, texts that differ.

| figure | definition |
|---|---|
| tokens/s | tokens after the first emission / seconds after it, pooled over prompts |
| prefill | prompt tokens / seconds to the first emission, pooled |
| call | all new tokens / all seconds, pooled |
| mean acceptance length | tokens after the first emission / forwards of the target after it, pooled |
| own plain | answers with the tokens of the same engine's plain decoding, of all answers |

Of several rounds, a prompt's answer with the median rate counts; for ``own plain`` all of them count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from entrants import OURS, Entrant
from harness import print_table
from protocol import Answer

from outrider.bench.report import number_text

ALL = "all"


@dataclass(frozen=True, slots=True)
class Row:
    """One answer of one entrant. ``equal``: it has the tokens of the engine's plain answer; None: not compared."""

    prompt_id: str
    task: str
    round: int
    entrant: Entrant
    num_prompt: int
    answer: Answer
    text: str
    equal: bool | None

    @property
    def num_decoded(self) -> int:
        """Tokens after the first emission."""
        return len(self.answer.token_ids) - self.answer.num_first

    @property
    def decode_seconds(self) -> float:
        """Seconds after the first emission."""
        return self.answer.seconds - self.answer.prefill_seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        own = {"prompt_id": self.prompt_id, "task": self.task, "round": self.round, "system": self.entrant.label}
        rest = {"num_prompt": self.num_prompt, "text": self.text, "equal": self.equal}
        return {**own, **rest, **asdict(self.answer)}


@dataclass(frozen=True, slots=True)
class Cell:
    """One entrant in one task, or in all; None where nothing was decoded or compared."""

    tokens_per_second: float | None
    prefill_tokens_per_second: float | None
    call_tokens_per_second: float | None
    mean_acceptance_length: float | None
    num_equal: int | None
    num_compared: int
    num_answers: int


def cell(rows: Sequence[Row]) -> Cell:
    """The figures of one entrant's answers."""
    chosen = _medians(rows)
    counted = [row for row in chosen if row.answer.num_steps is not None]
    compared = [row.equal for row in rows if row.equal is not None]
    return Cell(
        _ratio(sum(row.num_decoded for row in chosen), sum(row.decode_seconds for row in chosen)),
        _ratio(sum(row.num_prompt for row in chosen), sum(row.answer.prefill_seconds for row in chosen)),
        _ratio(sum(len(row.answer.token_ids) for row in chosen), sum(row.answer.seconds for row in chosen)),
        _ratio(sum(row.num_decoded for row in counted), sum(row.answer.num_steps or 0 for row in counted)),
        sum(compared) if compared else None,
        len(compared),
        len(rows),
    )


def _medians(rows: Iterable[Row]) -> list[Row]:
    """One row a prompt: that of the median rate, the lower of two."""
    prompts: dict[str, list[Row]] = {}
    for row in rows:
        prompts.setdefault(row.prompt_id, []).append(row)
    return [sorted(group, key=_rate)[(len(group) - 1) // 2] for group in prompts.values()]


def _rate(row: Row) -> float:
    return _ratio(row.num_decoded, row.decode_seconds) or 0.0


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part and whole else None


Cells = dict[str, dict[str, Cell]]  # label, then task


def cells(rows: Sequence[Row], entrants: Sequence[Entrant]) -> Cells:
    """Figures of every entrant, per task and over all tasks."""
    tasks = [*dict.fromkeys(row.task for row in rows), ALL]
    return {
        entrant.label: {
            task: cell([row for row in rows if row.entrant == entrant and task in (ALL, row.task)]) for task in tasks
        }
        for entrant in entrants
    }


def fastest_peers(found: Cells, entrants: Sequence[Entrant]) -> dict[str, dict[str, str]]:
    """``any`` and ``plain``: the fastest peer of each task, with any mode or with plain decoding."""
    tasks = list(next(iter(found.values()), {}))
    out: dict[str, dict[str, str]] = {}
    for name in ("any", "plain"):
        labels = [one.label for one in entrants if one.engine not in OURS and name in ("any", one.mode)]
        if labels:
            out[name] = {task: max(labels, key=lambda label: _speed(found, label, task) or 0.0) for task in tasks}
    return out


def _speed(found: Cells, label: str, task: str) -> float | None:
    return found[label][task].tokens_per_second


def summary(rows: Sequence[Row], entrants: Sequence[Entrant]) -> dict[str, Any]:
    """All figures as plain values: ``systems``, ``fastest_peers``, ``ratios`` (to the fastest peers)."""
    found = cells(rows, entrants)
    peers = fastest_peers(found, entrants)
    ratios = {
        entrant.label: {
            name: {task: _ratio(_speed(found, entrant.label, task), _speed(found, peer, task)) for task, peer in chosen}
            for name, chosen in ((name, tuple(tasks.items())) for name, tasks in peers.items())
        }
        for entrant in entrants
    }
    systems = {label: {task: asdict(value) for task, value in tasks.items()} for label, tasks in found.items()}
    return {"systems": systems, "fastest_peers": peers, "ratios": ratios}


def show(rows: Sequence[Row], entrants: Sequence[Entrant]) -> None:
    """Print the speed table, the fastest peer of each task (with any mode, and plain), and Outrider's ratios to it."""
    facts = summary(rows, entrants)
    tasks = [*dict.fromkeys(row.task for row in rows), ALL]
    columns = ("system", *tasks, "call", "prefill", "accepted", "own plain")
    lines = [_line(label, facts["systems"][label], tasks) for label in (one.label for one in entrants)]
    print_table("tokens/s; mean acceptance length; texts equal to own plain", columns, lines)
    peers: Mapping[str, Mapping[str, str]] = facts["fastest_peers"]
    if not peers:
        return
    print_table("fastest peer", ("modes", *tasks), [(name, *chosen.values()) for name, chosen in peers.items()])
    lines = [
        (one.label, name, *(number_text(facts["ratios"][one.label][name][task], 2) for task in tasks))
        for one in entrants
        if one.engine in OURS
        for name in peers
    ]
    if lines:
        print_table("ratios to the fastest peer", ("system", "over", *tasks), lines, left=2)


def _line(label: str, values: Mapping[str, Mapping[str, Any]], tasks: Sequence[str]) -> tuple[str, ...]:
    whole = values[ALL]
    speeds = (number_text(values[task]["tokens_per_second"], 1) for task in tasks)
    equal = "-" if whole["num_equal"] is None else f"{whole['num_equal']}/{whole['num_compared']}"
    call, prefill = (number_text(whole[f"{name}_tokens_per_second"], at) for name, at in (("call", 1), ("prefill", 0)))
    return label, *speeds, call, prefill, number_text(whole["mean_acceptance_length"], 2), equal
