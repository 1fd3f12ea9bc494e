"""The answer on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from outrider.advise.run import Advice
from outrider.bench.report import number_text, percent
from outrider.tables import plain_table


def tables(advice: Advice) -> Iterator[Any]:
    """Ranking, proof, rules; reasons are plain lines."""
    yield _ranking(advice)
    if advice.proofs:
        yield _proofs(advice)
    yield _rules(advice)


def _table(title: str, left: list[str], right: list[str]) -> Table:
    table = plain_table(title)
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _ranking(advice: Advice) -> Table:
    loads = list(advice.plan.limits.concurrency)
    columns = [f"at {load}" for load in loads]
    table = _table(
        "expected speed-up over plain decoding, with the best K at each load",
        ["candidate"],
        [*columns, "95 %", "tokens/step", "accepted", "step ms"],
    )
    for each in advice.ranked:
        first = each.best[min(loads)]
        cells = [f"{each.speedup(load):.2f} (K={each.best[load].num_speculative_tokens})" for load in loads]
        table.add_row(
            each.candidate.label + (f" ({each.out})" if each.out else ""),
            *cells,
            "-".join(f"{bound:.2f}" for bound in each.interval(min(loads))),
            f"{first.tokens_per_step:.2f}",
            percent(first.acceptance_rate),
            f"{first.step_ms:.1f}",
        )
    return table


def _proofs(advice: Advice) -> Table:
    count = advice.proofs[0].num_prompts
    table = _table(
        f"proof: {count} {'prompt' if count == 1 else 'prompts'}, one at a time, alternating with plain decoding",
        ["candidate"],
        ["K", "predicted", "measured", "95 %", "tokens/step", "measured", "equal texts"],
    )
    for each in advice.proofs:
        spread = "" if each.low is None or each.high is None else f"{each.low:.2f}-{each.high:.2f}"
        table.add_row(
            each.label,
            str(each.num_speculative_tokens),
            f"{each.predicted:.2f}",
            f"{each.measured:.2f}",
            spread,
            number_text(each.predicted_tokens, 2),
            number_text(each.measured_tokens, 2),
            f"{each.equal}/{each.num_answers}",
        )
    return table


def _rules(advice: Advice) -> Table:
    table = _table("rules of thumb, and what these prompts say", ["rule", "here", "figure"], [])
    for each in advice.rules:
        table.add_row(each.says, each.verdict, each.figure)
    return table
