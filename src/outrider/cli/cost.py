"""``outrider cost``: what a fleet costs with and without speculation, and whether stated figures add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.common import console, print_json
from outrider.errors import ConfigError, why_unread
from outrider.tables import plain_table

if TYPE_CHECKING:
    from outrider.theory.fleet import Benefit

_FLEET = "Fleet"


def cost(
    demand: Annotated[
        float | None,
        typer.Option("--demand", metavar="T/S", help="Output tokens a second to serve.", rich_help_panel=_FLEET),
    ] = None,
    tokens_per_month: Annotated[
        float | None,
        typer.Option("--tokens-per-month", metavar="M", help="The same, in millions.", rich_help_panel=_FLEET),
    ] = None,
    plain: Annotated[
        float | None,
        typer.Option("--plain", metavar="T/S", help="Of a replica without speculation.", rich_help_panel=_FLEET),
    ] = None,
    speculative: Annotated[
        float | None, typer.Option("--speculative", metavar="T/S", help="Of one with it.", rich_help_panel=_FLEET)
    ] = None,
    simulation: Annotated[
        Path | None,
        typer.Option(
            "--simulation",
            metavar="FILE",
            help="`outrider simulate --json`, instead of the two.",
            rich_help_panel=_FLEET,
        ),
    ] = None,
    gpus_per_replica: Annotated[
        int, typer.Option("--gpus-per-replica", help="Of one server.", min=1, rich_help_panel=_FLEET)
    ] = 1,
    speculative_gpus: Annotated[
        int | None,
        typer.Option(
            "--speculative-gpus",
            min=1,
            help="Of a replica with speculation, if its draft needs more.",
            rich_help_panel=_FLEET,
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", metavar="USD", help="Of a GPU an hour.", rich_help_panel=_FLEET)
    ] = None,
    utilisation: Annotated[
        float,
        typer.Option("--utilisation", help="Share of a replica's rate that is planned with.", rich_help_panel=_FLEET),
    ] = 0.7,
    hours: Annotated[
        float, typer.Option("--hours-per-month", help="That the fleet runs.", rich_help_panel=_FLEET)
    ] = 730.0,
    one_time: Annotated[
        float, typer.Option("--one-time", metavar="USD", help="What the draft costs once.", rich_help_panel=_FLEET)
    ] = 0.0,
    draft_gb: Annotated[
        float, typer.Option("--draft-gb", help="Memory of the draft's weights and cache.", rich_help_panel=_FLEET)
    ] = 0.0,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state", metavar="NAME=VALUE", help="A figure that somebody states, to be checked. May be repeated."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """GPUs, cost of a million tokens and savings with and without speculation; checks stated figures."""
    checked = _check(state or [])
    benefit = None
    if plain is not None or speculative is not None or simulation is not None:
        per_second = _demand(demand, tokens_per_month, hours)
        rates = _rates(plain, speculative, simulation, gpus_per_replica)
        benefit = _benefit(per_second, rates, gpus_per_replica, speculative_gpus, price, utilisation, hours, one_time)
    elif not checked:
        raise ConfigError(
            "nothing to reckon: give --demand, --plain, --speculative and --price, or figures with --state"
        )
    if as_json:
        print_json({**({} if benefit is None else benefit), **checked, "draft_gb_per_replica": draft_gb})
        return
    if benefit is not None:
        _show(benefit, draft_gb)
    for finding in checked.get("findings", ()):
        print(finding["text"])
    if checked and not checked["findings"]:
        print(f"the stated figures add up (rules checked: {checked['rules_checked']})")


def _check(state: list[str]) -> dict[str, Any]:
    from dataclasses import asdict

    from outrider.theory.fleet import findings

    if not state:
        return {}
    stated = {}
    for text in state:
        name, equals, value = text.partition("=")
        try:
            stated[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise ConfigError(f"--state {text!r}: write NAME=NUMBER, such as gpus=12")
    found, count = findings(stated)
    if not count:
        raise ConfigError(f"--state {', '.join(stated)}: no rule joins these figures; state more of one calculation")
    return {"rules_checked": count, "findings": [{**asdict(each), "text": each.text} for each in found]}


def _demand(demand: float | None, tokens_per_month: float | None, hours: float) -> float:
    if (demand is None) == (tokens_per_month is None):
        raise ConfigError("give either --demand or --tokens-per-month")
    return demand if demand is not None else (tokens_per_month or 0.0) * 1e6 / (hours * 3600.0)


def _rates(plain: float | None, speculative: float | None, path: Path | None, num_gpus: int) -> dict[str, Any]:
    """Tokens per second of a replica, without and with speculation, and which method it is: of a simulation, those of
    the load at which plain decoding makes most, and the best method there."""
    if path is None:
        if plain is None or speculative is None:
            raise ConfigError("give both --plain and --speculative, or --simulation")
        return {"plain": plain, "speculative": speculative, "source": "given"}
    if plain is not None or speculative is not None:
        raise ConfigError("give either --simulation or --plain and --speculative")
    try:
        runs = [run for run in json.loads(path.read_text(encoding="utf-8"))["runs"] if run["num_gpus"] == num_gpus]
        plain_runs = [run for run in runs if run["method"] == "plain"]
        base = max(plain_runs, key=lambda run: run["throughput"], default=None)
        same = [run for run in runs if base and (run["clients"], run["rate"]) == (base["clients"], base["rate"])]
        best = max((run for run in same if run is not base), key=lambda run: run["throughput"], default=None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"--simulation {path}: cannot be read ({why_unread(error)}); give what `outrider simulate --json` wrote"
        ) from None
    if base is None or best is None:
        raise ConfigError(f"--simulation {path}: needs runs of `plain` and of a method on {num_gpus} GPUs")
    for run in (base, best):
        if abs(run["throughput"] * run["seconds"] / run["output_tokens"] - 1.0) > 0.01:
            raise ConfigError(f"--simulation {path}: tokens per second x seconds is not the tokens of {run['method']}")
    return {"plain": base["throughput"], "speculative": best["throughput"], "source": best["method"]}


def _benefit(
    demand: float,
    rates: dict[str, Any],
    gpus: int,
    speculative_gpus: int | None,
    price: float | None,
    utilisation: float,
    hours: float,
    one_time: float,
) -> dict[str, Any]:
    from dataclasses import asdict

    from outrider.theory import fleet

    if price is None:
        raise ConfigError("--price is missing: what a GPU costs an hour")
    with_draft = speculative_gpus or gpus

    def serve(rate: float, count: int) -> fleet.Fleet:
        return fleet.fleet(
            *(demand, rate),
            gpus_per_replica=count,
            price_per_gpu_hour=price or 0.0,
            utilisation=utilisation,
            hours_per_month=hours,
        )

    found: Benefit = fleet.benefit(
        serve(rates["plain"], gpus),
        serve(rates["speculative"], with_draft),
        rates["plain"],
        with_draft / gpus,
        one_time,
    )
    return {"demand": demand, "rates": rates, "one_time": one_time, **asdict(found)}


def _show(benefit: dict[str, Any], draft_gb: float) -> None:
    table = plain_table(f"{benefit['demand']:,.0f} output tokens a second")
    source = benefit["rates"]["source"]
    labels = {"plain": "plain", "speculative": "speculative" if source == "given" else source}
    for column in ("", "tokens/s a replica", "replicas", "GPUs", "load", "USD a month", "USD a million tokens"):
        table.add_column(column, justify="right" if column else "left")
    for name in ("plain", "speculative"):
        own = benefit[name]
        cells = (f"{benefit['rates'][name]:,.0f}", str(own["replicas"]), str(own["gpus"]), f"{own['load']:.0%}")
        table.add_row(labels[name], *cells, f"{own['cost_per_month']:,.0f}", f"{own['cost_per_million']:.3f}")
    console(stderr=False).print(table)
    saved, before = benefit["saved_per_month"], benefit["plain"]["cost_per_month"]
    share = f" ({saved / before:.0%})" if before else ""
    speed_up = benefit["rates"]["speculative"] / benefit["rates"]["plain"]
    print(f"saved a month: {saved:,.0f} USD{share}; speed-up {speed_up:.2f}")
    print(f"speculation breaks even at {benefit['break_even_rate']:,.0f} tokens/s a replica")
    if benefit["one_time"]:
        months = benefit["months"]
        print(
            "the one-time cost is never earned"
            if months is None
            else f"the one-time cost is earned in {months:.1f} months"
        )
    if draft_gb:
        count = benefit["speculative"]["replicas"]
        print(f"the draft takes {draft_gb:g} GB of every replica, {draft_gb * count:,.0f} GB in all")
