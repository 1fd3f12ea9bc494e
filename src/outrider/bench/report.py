"""What a run measured, as a summary of plain values and as tables.

| figure | definition |
|---|---|
| tokens/s | tokens after the first / seconds after the first token, pooled over the rows of a task (prefill apart) |
| speed-up | tokens/s over the baseline's tokens/s; its spread is the 95 % interval of a bootstrap over prompts |
| mean acceptance length | committed tokens after the first / steps after prefill, pooled |
| per-position acceptance | [i] = P(first i + 1 positions accepted) over steps with a draft |
| conditional acceptance | [i] = P(position i accepted, given all before it and a candidate there) |
| draft, verify, overhead | shares of the seconds after the first token |

With ``--concurrency`` over 1 the steps of a request also work for others, so tokens/s is throughput: all tokens of a
group of prompts / the wall time of the call, prefill included; the bootstrap then resamples groups.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.bench.runner import Plan, Results, Row
from outrider.core.accounting import SpeculationStats
from outrider.tables import plain_table

if TYPE_CHECKING:
    from rich.table import Table

NUM_RESAMPLES = 1000
PARTS = ("draft", "verify", "overhead")
MAX_POSITIONS = 8  # columns of the acceptance table; the summary holds all
Cell = dict[str, Any]
Work = list[tuple[int, float]]  # (tokens, seconds), one an answer or one a group


def summarize(results: Results, plan: Plan) -> dict[str, Any]:
    """Per task and over all tasks, one cell a variant; the first variant of the plan is the baseline."""
    labels = [variant.label for variant in plan.variants]
    tasks = dict.fromkeys(row.task for row in results.rows)
    return {
        "baseline": labels[0],
        "variants": labels,
        "concurrency": plan.concurrency,
        "tasks": {task: _cells(results, plan, labels, task) for task in tasks},
        "all": _cells(results, plan, labels, None),
    }


def _cells(results: Results, plan: Plan, labels: Sequence[str], task: str | None) -> dict[str, Cell]:
    """One cell a variant, over the rows of ``task`` (None: of all tasks)."""
    rows = [row for row in results.rows if task in (None, row.task)]
    batches = [batch for batch in results.batches if task in (None, batch.task)]
    work: dict[str, Work] = {label: [] for label in labels}
    if plan.concurrency > 1:
        for batch in batches:
            work[batch.variant].append((batch.num_tokens, batch.seconds))
    else:
        for row in rows:
            work[row.variant].append((len(row.token_ids) - 1, row.stats.decode_seconds))
    baseline = work[labels[0]]
    return {label: _cell([row for row in rows if row.variant == label], work[label], baseline) for label in labels}


def _cell(rows: Sequence[Row], work: Work, baseline: Work) -> Cell:
    counts = SpeculationStats.pooled(row.stats for row in rows)
    decode = sum(row.stats.decode_seconds for row in rows)
    prefill = sum(row.stats.prefill_seconds for row in rows)
    low, high = _interval(work, baseline)
    return {
        "num_answers": len(rows),
        "num_equal": sum(row.equal for row in rows),
        "num_tokens": sum(len(row.token_ids) for row in rows),
        "tokens_per_second": _rate(work),
        "speedup": _ratio(_rate(work), _rate(baseline)),
        "speedup_low": low,
        "speedup_high": high,
        "prefill_tokens_per_second": _ratio(sum(row.num_prompt_tokens for row in rows), prefill),
        "time_to_first_token": statistics.median(row.stats.time_to_first_token for row in rows),
        "mean_acceptance_length": counts.mean_acceptance_length,
        "vllm_mean_acceptance_length": counts.vllm_mean_acceptance_length,
        "draft_acceptance_rate": counts.draft_acceptance_rate,
        "per_position_acceptance": counts.per_position_acceptance,
        "conditional_acceptance": counts.conditional_acceptance,
        "num_steps": counts.num_steps,
        "num_spec_steps": counts.num_spec_steps,
        "num_draft_tokens": counts.num_draft_tokens,
        "num_accepted_draft_tokens": counts.num_accepted_draft_tokens,
        **{f"{part}_seconds": _seconds(rows, part) for part in PARTS},
        **{f"{part}_share": _ratio(_seconds(rows, part), decode) for part in PARTS},
    }


def _seconds(rows: Sequence[Row], part: str) -> float:
    return float(sum(getattr(row.stats, f"{part}_seconds") for row in rows))


def _rate(work: Work) -> float | None:
    return _ratio(sum(tokens for tokens, _ in work), sum(seconds for _, seconds in work))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _interval(work: Work, baseline: Work) -> tuple[float | None, float | None]:
    """95 % interval of the speed-up under resampling, in pairs; None for the baseline and for fewer than two pairs."""
    if work is baseline or len(work) < 2 or not _rate(work) or not _rate(baseline):
        return None, None
    table = np.hstack([np.array(work, float), np.array(baseline, float)])  # [pairs, 4]
    picks = np.random.default_rng(0).integers(len(table), size=(NUM_RESAMPLES, len(table)))
    tokens, seconds, base_tokens, base_seconds = table[picks].sum(axis=1).T
    with np.errstate(divide="ignore", invalid="ignore"):
        speedups = (tokens / seconds) / (base_tokens / base_seconds)
    finite = speedups[np.isfinite(speedups)]
    if not len(finite):
        return None, None
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(low), float(high)


def tables(summary: Mapping[str, Any]) -> list[Table]:
    """The summary as tables: speed per task, and acceptance by position."""
    acceptance = _acceptance_table(summary)
    return [_speed_table(summary), *([acceptance] if acceptance is not None else [])]


def _new_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    table = plain_table(title)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", min_width=min(len(name), 6))
    return table


def _speed_table(summary: Mapping[str, Any]) -> Table:
    together = summary["concurrency"]
    table = _new_table(
        f"speed, {together} at a time (prefill included)" if together > 1 else "speed (prefill apart)",
        ("task", "method"),
        ("tokens/s", "speed-up", "95 %", "acc. length", "draft/verify/overhead", "TTFT ms", "equal"),
    )
    tasks = summary["tasks"]
    for task, cells in {**tasks, **({"all": summary["all"]} if len(tasks) > 1 else {})}.items():
        for number, (label, cell) in enumerate(cells.items()):
            plain = label == summary["baseline"]
            equal = f"{cell['num_equal']}/{cell['num_answers']}"
            table.add_row(
                task if number == 0 else "",
                label,
                number_text(cell["tokens_per_second"], 1),
                "1.00x" if plain else f"{number_text(cell['speedup'], 2)}x",
                "" if cell["speedup_low"] is None else f"{cell['speedup_low']:.2f}-{cell['speedup_high']:.2f}",
                number_text(cell["mean_acceptance_length"], 2),
                "/".join(percent(cell[f"{part}_share"]).rstrip("%") for part in PARTS) + " %",
                number_text(1000 * cell["time_to_first_token"], 0),
                "" if plain else equal,
                end_section=number == len(cells) - 1,
            )
    return table


def _acceptance_table(summary: Mapping[str, Any]) -> Table | None:
    """None when nothing was drafted."""
    cells = {label: cell for label, cell in summary["all"].items() if label != summary["baseline"]}
    width = max((len(cell["per_position_acceptance"]) for cell in cells.values()), default=0)
    if width == 0:
        return None
    width = min(width, MAX_POSITIONS)
    table = _new_table("acceptance by position", ("method", "kind"), [str(i + 1) for i in range(width)])
    for label, cell in cells.items():
        for kind in ("per-position", "conditional"):
            values = cell[f"{kind.replace('-', '_')}_acceptance"][:width]
            table.add_row(label, kind, *(number_text(value, 2) for value in values))
    return table


def number_text(value: float | None, digits: int) -> str:
    """A number with ``digits`` decimals; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share as whole per cent; a dash where there is none."""
    return "-" if value is None else f"{100 * value:.0f}%"
