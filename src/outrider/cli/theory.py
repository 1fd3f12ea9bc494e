"""``outrider theory``: what speculation can bring, in closed form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import machine as machines
from outrider.cli import options
from outrider.cli.common import console, print_json
from outrider.errors import ConfigError
from outrider.tables import plain_table

if TYPE_CHECKING:
    from outrider.theory.roofline import Machine, ModelShape


def theory(
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="P(a drafted token is accepted | those before it were).")
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", metavar="A,B,..", help="The same by position; the last one repeats.")
    ] = None,
    draft_cost: Annotated[
        float, typer.Option("--draft-cost", min=0.0, help="Time of one draft forward over a plain step's.")
    ] = 0.05,
    row_cost: Annotated[
        float,
        typer.Option(
            "--row-cost", min=0.0, help="What a verified row adds, over a plain step; with --gpu it is known."
        ),
    ] = 0.0,
    max_tokens: Annotated[int, typer.Option("-k", "--max-k", min=1, max=64, help="Largest K of the table.")] = 8,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences that decode together.")] = 1,
    context: Annotated[int, typer.Option("--context", min=0, help="Tokens behind each of them.")] = 1024,
    gpu: machines.Gpu = None,
    parameters: machines.Parameters = None,
    bytes_per_weight: machines.BytesPerWeight = 2.0,
    layers: machines.Layers = 32,
    heads: machines.Heads = 32,
    kv_heads: machines.KvHeads = 8,
    head_dim: machines.HeadDim = 128,
    experts: machines.Experts = None,
    efficiency: machines.Efficiency = "0.8,0.6",
    as_json: options.Json = False,
) -> None:
    """Expected tokens, speed-up, the best K and break-even acceptance, from formulas."""
    from outrider.theory import speedup
    from outrider.theory.expected import check_rates

    if (alpha is None) == (rates is None):
        raise ConfigError("give either --alpha or --rates")
    values = [alpha] if alpha is not None else machines.numbers(rates or "", "--rates")
    check_rates(values, "--alpha" if alpha is not None else "--rates")
    if (gpu is None) != (parameters is None):
        raise ConfigError("--gpu and --parameters go together: the time of a row follows from both")
    verify, facts = (lambda rows: 1.0 + row_cost * (rows - 1)), {}
    if gpu is not None and parameters is not None:
        shape = machines.shape(parameters, bytes_per_weight, layers, heads, kv_heads, head_dim, experts)
        verify, facts = _on(shape, machines.machine(gpu, efficiency), batch, context, max_tokens)
    points = [speedup.point(values, k, draft_cost, verify, batch) for k in range(max_tokens + 1)]
    best = speedup.best_k(values, draft_cost, verify, batch, max_tokens=max_tokens)
    table = [
        {
            **{"k": each.num_speculative_tokens, "tokens": each.tokens, "cost": each.cost, "speed_up": each.speed_up},
            "break_even": speedup.break_even(each.num_speculative_tokens, draft_cost, verify, batch),
        }
        for each in points
    ]
    if as_json:
        print_json(
            {"rates": values, "draft_cost": draft_cost, "best_k": best.num_speculative_tokens}
            | {"table": table, **facts}
        )
        return
    _show(table, best.num_speculative_tokens, facts)


def _on(shape: ModelShape, machine: Machine, batch: int, context: int, max_tokens: int) -> Any:
    """The cost curve on a machine, and what else it says."""
    from outrider.theory import roofline

    def verify(rows: int) -> float:
        return roofline.step_seconds(shape, machine, rows, batch, context)

    free = roofline.free_rows(shape, machine, context)
    facts: dict[str, Any] = {
        "step_ms": verify(batch) * 1000.0,
        "free_rows": None if free == float("inf") else free,
        "most_sequences": roofline.batch_limit(shape, machine, context),
    }
    if shape.experts is not None:
        counts = (batch, batch * (max_tokens + 1))
        facts["experts_touched"] = {str(rows): shape.experts.touched(rows) for rows in counts}
    return verify, facts


def _show(table: list[dict[str, Any]], best: int, facts: dict[str, Any]) -> None:
    out = plain_table(f"best K: {best}" if best else "speculation does not pay: best K is 0")
    for column in ("K", "tokens a step", "time, in plain steps", "speed-up", "break-even acceptance"):
        out.add_column(column, justify="right")
    for row in table:
        even = "none" if row["break_even"] is None else f"{row['break_even']:.3f}"
        style = "bold" if row["k"] == best else None
        cells = (str(row["k"]), f"{row['tokens']:.3f}", f"{row['cost']:.3f}", f"{row['speed_up']:.3f}")
        out.add_row(*cells, even if row["k"] else "", style=style)
    console(stderr=False).print(out)
    if facts:
        rows = facts["free_rows"]
        free = "rows are free at this context" if rows is None else f"rows are free up to about {rows:.0f}"
        print(f"a plain step takes {facts['step_ms']:.2f} ms; {free}; KV of {facts['most_sequences']} sequences fits")
    for rows, touched in facts.get("experts_touched", {}).items():
        print(f"{rows} rows read {touched:.1f} experts of each layer")
