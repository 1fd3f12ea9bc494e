"""What a run measured, as a summary of plain values and as tables.

| figure | definition |
|---|---|
| tokens/s | tokens after the first / seconds after the first token, pooled over the rows of a task (prefill apart) |
| speed-up | tokens/s over the baseline's tokens/s; its spread is the 95 % interval of a bootstrap over prompts |
| mean acceptance length | committed tokens after the first / steps after prefill, pooled |
| per-position acceptance | [i] = P(first i + 1 positions accepted) over steps with a draft |
| conditional acceptance | [i] = P(position i accepted, given all before it and a candidate there) |
| draft, verify, overhead | shares of the seconds after the first token |
| throughput | tokens of a call with several prompts / its wall time, prefill included (``--concurrency`` over 1) |
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.bench.runner import Plan, Results, Row
from outrider.core.accounting import SpeculationStats

if TYPE_CHECKING:
    from rich.table import Table

NUM_RESAMPLES = 1000
MAX_POSITIONS = 8  # columns of the acceptance table; the summary holds all
Cell = dict[str, Any]


def summarize(results: Results, plan: Plan) -> dict[str, Any]:
    """Per task and over all tasks, one cell a variant; the first variant of the plan is the baseline."""
    labels = [variant.label for variant in plan.variants]
    tasks: dict[str, list[Row]] = {}
    for row in results.rows:
        tasks.setdefault(row.task, []).append(row)
    summary: dict[str, Any] = {
        "baseline": labels[0],
        "variants": labels,
        "concurrency": plan.concurrency,
        "tasks": {task: _cells(rows, labels) for task, rows in tasks.items()},
        "all": _cells(results.rows, labels),
    }
    if plan.concurrency > 1:
        summary["throughput"] = _throughput(results, labels)
    return summary


def _cells(rows: Sequence[Row], labels: Sequence[str]) -> dict[str, Cell]:
    by_label = {label: [row for row in rows if row.variant == label] for label in labels}
    baseline = by_label[labels[0]]
    return {label: _cell(by_label[label], baseline) for label in labels}


def _cell(rows: Sequence[Row], baseline: Sequence[Row]) -> Cell:
    counts = SpeculationStats.pooled(row.stats for row in rows)
    decode = sum(row.stats.decode_seconds for row in rows)
    prefill = sum(row.stats.prefill_seconds for row in rows)
    low, high = _interval(rows, baseline)
    return {
        "num_answers": len(rows),
        "num_equal": sum(row.equal for row in rows),
        "num_tokens": sum(len(row.token_ids) for row in rows),
        "tokens_per_second": _rate(rows),
        "speedup": _ratio(_rate(rows), _rate(baseline)),
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
        **{f"{part}_share": _share(rows, part, decode) for part in ("draft", "verify", "overhead")},
    }


def _share(rows: Sequence[Row], part: str, decode: float) -> float | None:
    return _ratio(sum(getattr(row.stats, f"{part}_seconds") for row in rows), decode)


def _rate(rows: Sequence[Row]) -> float | None:
    tokens = sum(len(row.token_ids) - 1 for row in rows)
    return _ratio(tokens, sum(row.stats.decode_seconds for row in rows))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _interval(rows: Sequence[Row], baseline: Sequence[Row]) -> tuple[float | None, float | None]:
    """95 % interval of the speed-up under resampling of answers, in pairs; None for fewer than two pairs."""
    if len(rows) < 2 or rows is baseline or not _rate(rows) or not _rate(baseline):
        return None, None
    pairs = zip(rows, baseline, strict=True)
    table = np.array([[*_work(mine), *_work(theirs)] for mine, theirs in pairs])  # [answers, 4]
    picks = np.random.default_rng(0).integers(len(table), size=(NUM_RESAMPLES, len(table)))
    tokens, seconds, base_tokens, base_seconds = table[picks].sum(axis=1).T
    with np.errstate(divide="ignore", invalid="ignore"):
        speedups = (tokens / seconds) / (base_tokens / base_seconds)
    finite = speedups[np.isfinite(speedups)]
    if not len(finite):
        return None, None
    low, high = np.quantile(finite, [0.025, 0.975])
    return float(low), float(high)


def _work(row: Row) -> tuple[float, float]:
    return len(row.token_ids) - 1, row.stats.decode_seconds


def _throughput(results: Results, labels: Sequence[str]) -> dict[str, Cell]:
    cells: dict[str, Cell] = {}
    for label in labels:
        batches = [batch for batch in results.batches if batch.variant == label]
        rate = _ratio(sum(batch.num_tokens for batch in batches), sum(batch.seconds for batch in batches))
        cells[label] = {"tokens_per_second": rate}
    for cell in cells.values():
        cell["speedup"] = _ratio(cell["tokens_per_second"], cells[labels[0]]["tokens_per_second"])
    return cells


def tables(summary: Mapping[str, Any]) -> list[Table]:
    """The summary as tables: speed per task, acceptance per position, and throughput when requests ran together."""
    out = [_speed_table(summary), _acceptance_table(summary)]
    return [*out, _throughput_table(summary)] if "throughput" in summary else out


def _new_table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", min_width=min(len(name), 6))
    return table


def _speed_table(summary: Mapping[str, Any]) -> Table:
    table = _new_table(
        "speed (prefill apart; acceptance length = mean acceptance length)",
        ("task", "method"),
        ("tokens/s", "speed-up", "95 %", "acceptance length", "draft", "verify", "overhead", "TTFT ms", "text equal"),
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
                *(percent(cell[f"{part}_share"]) for part in ("draft", "verify", "overhead")),
                number_text(1000 * cell["time_to_first_token"], 0),
                "" if plain else equal,
                end_section=number == len(cells) - 1,
            )
    return table


def _acceptance_table(summary: Mapping[str, Any]) -> Table:
    cells = {label: cell for label, cell in summary["all"].items() if label != summary["baseline"]}
    width = max((len(cell["per_position_acceptance"]) for cell in cells.values()), default=0)
    width = min(width, MAX_POSITIONS)
    table = _new_table("acceptance by position", ("method", "kind"), [str(i + 1) for i in range(width)])
    for label, cell in cells.items():
        for kind in ("per-position", "conditional"):
            values = cell[f"{kind.replace('-', '_')}_acceptance"][:width]
            table.add_row(label, kind, *(number_text(value, 2) for value in values))
    return table


def _throughput_table(summary: Mapping[str, Any]) -> Table:
    title = f"throughput, {summary['concurrency']} requests at a time (prefill included)"
    table = _new_table(title, ("method",), ("tokens/s", "speed-up"))
    for label, cell in summary["throughput"].items():
        table.add_row(label, number_text(cell["tokens_per_second"], 1), f"{number_text(cell['speedup'], 2)}x")
    return table


def number_text(value: float | None, digits: int) -> str:
    """A number with ``digits`` decimals; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    """A share as whole per cent; a dash where there is none."""
    return "-" if value is None else f"{100 * value:.0f}%"
