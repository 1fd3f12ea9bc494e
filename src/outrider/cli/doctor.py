"""``outrider doctor``: why does speculation not pay here?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.common import console, print_json
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.doctor.figures import Figures
    from outrider.doctor.finding import Report
    from outrider.doctor.models import Models

_FILES = "Local models"
_LIMITS = "What is assumed"


def doctor(
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SOURCE]...",
            help="A server's address, or a file of its metrics; two of one server for what happened between them.",
        ),
    ] = None,
    window: Annotated[
        float | None,
        typer.Option("--window", metavar="SECONDS", min=0.1, help="Read an address twice, so many seconds apart."),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records", metavar="FILE", help="JSON lines of requests, as `outrider serve --request-log` has."
        ),
    ] = None,
    engine_config: Annotated[
        str | None,
        typer.Option(
            "--engine-config",
            metavar="TEXT",
            help="vLLM's speculative config (JSON), an engine's arguments, its command line, or @FILE.",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="MODEL", help="The target.", rich_help_panel=_FILES)
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="MODEL", help="Its draft model.", rich_help_panel=_FILES)
    ] = None,
    head: Annotated[
        Path | None,
        typer.Option("--head", metavar="FOLDER", help="Its draft head, of any layout.", rich_help_panel=_FILES),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure/--no-measure", help="Run the head, with other layers too.", rich_help_panel=_FILES),
    ] = True,
    max_model_len: options.Context = None,
    temperature: Annotated[
        float | None, typer.Option("-t", "--temperature", min=0.0, help="What requests are sampled at.")
    ] = None,
    reported: Annotated[
        float | None,
        typer.Option("--reported-acceptance", min=0.0, max=1.0, help="An acceptance rate that is shown elsewhere."),
    ] = None,
    position_cost: Annotated[
        float,
        typer.Option(
            "--position-cost",
            min=0.0,
            help="Of drafting and verifying one more token, as a share of a step, where it is not timed.",
            rich_help_panel=_LIMITS,
        ),
    ] = 0.05,
    saturation_rows: Annotated[
        int,
        typer.Option(
            "--saturation-rows",
            min=1,
            help="Rows of a batch from which on a forward's time grows with each.",
            rich_help_panel=_LIMITS,
        ),
    ] = 256,
    json_: options.Json = False,
) -> None:
    """Name the likely fault, with its evidence and what to do; exit status 1 when there is one."""
    from outrider.doctor import records as recorded
    from outrider.doctor import settings
    from outrider.doctor.case import Case, Limits
    from outrider.doctor.examine import examine

    sources = source or []
    if not (sources or records or engine_config or target or draft or head):
        raise ConfigError("nothing to look at: give a server's address or file, --records, --engine-config or --target")
    limits = Limits(position_cost, saturation_rows, 100, temperature, reported, max_model_len)
    config = None if engine_config is None else settings.read(engine_config)
    rows = None if records is None else recorded.read(records)
    notes: list[str] = []
    figures = _figures(sources, window, notes)
    report = examine(Case(figures, rows, _models(target, draft, head, measure), config, limits), notes)
    if json_:
        print_json(_as_json(report))
    else:
        _print(report)
    if not report.healthy:
        raise typer.Exit(1)


def _figures(sources: list[str], window: float | None, notes: list[str]) -> list[Figures]:
    from outrider.doctor import scrape
    from outrider.doctor.window import between

    if len(sources) > 2:
        raise ConfigError(f"{len(sources)} sources: give one, or two of one server, the earlier one first")
    if window is not None and (len(sources) != 1 or not scrape.is_address(sources[0])):
        raise ConfigError("--window reads one address twice: give one address, or two files without --window")
    if not sources:
        return []
    first = scrape.parse(scrape.fetch(sources[0]), sources[0])
    if len(sources) == 2:
        return between(first, scrape.parse(scrape.fetch(sources[1]), sources[1]), None)
    if window is not None:
        _wait(window)
        return between(first, scrape.parse(scrape.fetch(sources[0]), sources[0]), window)
    if first.engine.name == "outrider" and (stats := scrape.stats(sources[0])):
        notes.append(f"the server has run for {float(stats.get('uptime', 0.0)):.0f} s; sums are since its start")
    return scrape.figures(first)


def _wait(seconds: float) -> None:
    import time

    from rich.progress import track

    steps = max(1, round(4 * seconds))
    for _ in track(range(steps), f"watching for {seconds:g} s", console=console(), transient=True):
        time.sleep(seconds / steps)


def _models(target: str | None, draft: str | None, head: Path | None, measure: bool) -> Models | None:
    if target is None:
        if draft is not None or head is not None:
            raise ConfigError("--draft and --head are compared with a target: add --target MODEL")
        return None
    from dataclasses import replace

    from outrider.doctor import models

    found = models.read(target, draft, head)
    if head is None or not measure or found.head is None or found.head.head is None:
        return found
    if found.head.head.config.target != found.head.bound.fingerprint:
        return found  # a diagnosis of its own, and no run would say more
    from outrider.doctor.measure import measure as run

    with console().status("running the head") as status:
        return replace(found, measured=run(target, head, lambda done, of, what: status.update(f"{done}/{of}: {what}")))


def _as_json(report: Report) -> dict[str, Any]:
    from dataclasses import asdict

    findings = [{**asdict(found), "certainty": found.certainty.name.lower()} for found in report.findings]
    return {
        "healthy": report.healthy,
        "findings": findings,
        "seen": [asdict(line) for line in report.seen],
        "checked": list(report.checked),
        "unchecked": [asdict(each) for each in report.unchecked],
        "notes": list(report.notes),
    }


def _print(report: Report) -> None:
    for number, found in enumerate(report.findings, 1):
        sure = f"{found.certainty.name.lower()}" + (
            f", follows from {found.follows_from}" if found.follows_from else ""
        )
        print(f"{number}. {found.diagnosis} ({sure}): {found.fault}")
        for line in found.evidence:
            print(f"     {line.line()}")
        print(f"   do: {found.remedy}\n")
    if report.healthy:
        print("no fault found\n")
    print("seen")
    for line in report.seen:
        print(f"   {line.line()}")
    for note in report.notes:
        print(f"   {note}")
    print(f"\nlooked for: {', '.join(report.checked) or 'nothing'}")
    if report.unchecked:
        print("not looked for, and what that needs")
        for each in report.unchecked:
            print(f"   {each.diagnosis}: {each.lacks}")
