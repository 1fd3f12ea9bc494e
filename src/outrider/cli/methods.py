"""``outrider methods``: the table of drafters, and one of them in detail, read from the registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.common import console, print_json
from outrider.tables import plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from outrider.drafters.table import DrafterInfo

_WIDTH = 100  # columns at most
_KEYS = ("method", "summary", "shapes", "laws", "options", "required", "default_tokens", "needs_model", "paper")


def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A method, to see all about it.")] = None,
    as_json: options.Json = False,
) -> None:
    """List the drafting methods: what each proposes and needs; or, with NAME, all about one, such as its settings."""
    from outrider.drafters import registry

    if name is not None:
        row = registry.info(name)
        print_json(_details(row)) if as_json else _show(row)
    elif as_json:
        print_json([_facts(row) for row in registry.REGISTRY.values()])
    else:
        out = console(stderr=False)
        out.print(_list(registry.REGISTRY.values()), width=min(out.width, _WIDTH))


def _facts(row: DrafterInfo) -> dict[str, Any]:
    from outrider.drafters import describe

    facts = {key: _plain(getattr(row, key)) for key in _KEYS}
    return {
        **facts,
        "needs": describe.needs(row),
        "lossless_rules": describe.lossless(row),
        "lossy_rules": describe.lossy(row),
    }


def _details(row: DrafterInfo) -> dict[str, Any]:
    from outrider.drafters import describe

    return {
        **_facts(row),
        "options": [asdict(option) for option in describe.options(row)],
        "rules": [asdict(use) for use in describe.rules(row)],
        "about": describe.about(row),
    }


def _list(rows: Any) -> Table:
    from rich.text import Text

    from outrider.drafters import describe

    table = plain_table()
    table.add_column("method", no_wrap=True)
    table.add_column("what it proposes", overflow="fold", ratio=3)
    table.add_column("needs", overflow="fold", ratio=2)
    for row in rows:
        table.add_row(Text(row.method, "bold cyan"), row.summary, Text(", ".join(describe.needs(row)) or "-"))
    table.caption, table.caption_justify = "settings, rules and source of one: outrider methods NAME", "left"
    return table


def _show(row: DrafterInfo) -> None:
    from rich.table import Table
    from rich.text import Text

    from outrider.drafters import describe

    out = console(stderr=False)
    width = min(out.width, _WIDTH)

    def grid(title: str, rows: Sequence[tuple[str, ...]]) -> None:
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        for _ in rows[0][1:]:
            table.add_column(overflow="fold")
        for first, *rest in rows:
            table.add_row(Text(first, "cyan"), *map(Text, rest))
        out.print(Text(f"\n{title}", "bold"))
        out.print(table, width=width)

    out.print(Text(row.method, "bold cyan").append(f": {row.summary}", "default"), width=width)
    facts = [("shapes", ", ".join(row.shapes)), ("needs", ", ".join(describe.needs(row)) or "nothing else")]
    facts += [
        ("lossless", f"under {', '.join(describe.lossless(row))}"),
        ("lossy", f"under {', '.join(describe.lossy(row)) or 'no rule'}"),
        ("draft tokens", f"{row.default_tokens} until the planner knows more"),
    ]
    grid("facts", [*facts, *([("source", row.paper)] if row.paper else [])])
    if row.options:
        settings = [
            (o.name, "must be given" if o.required else o.default, o.values, o.meaning) for o in describe.options(row)
        ]
        grid("settings of --speculative-config (default, values, meaning)", settings)
    uses = describe.rules(row)
    grid("rules that take it (laws, shapes)", [(use.rule, *rule_words(use)) for use in uses])
    out.print(Text("\nhow it works", "bold"))
    about = "\n\n".join(describe.paragraphs(describe.about(row)))
    out.print(Text(about.replace("``", "")), width=width)


def rule_words(use: Any) -> tuple[str, str, str]:
    """Laws, shapes and promise of a rule, as words."""
    laws = ", ".join(law.replace("_", " ") for law in use.laws)
    return laws, ", ".join(use.shapes), "lossless" if use.lossless else "lossy"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
