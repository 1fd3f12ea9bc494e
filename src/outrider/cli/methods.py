"""``outrider methods``: the table of drafters, read from the registry."""

from __future__ import annotations

from outrider.cli import options
from outrider.cli.common import console, print_json


def methods(as_json: options.Json = False) -> None:
    """List the drafting methods: what each does, its shapes, its settings, its source."""
    from outrider.drafters.registry import REGISTRY

    if as_json:
        keys = ("method", "summary", "shapes", "laws", "options", "required", "default_tokens", "needs_model", "paper")
        print_json([{key: _plain(getattr(row, key)) for key in keys} for row in REGISTRY.values()])
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 1, 0))
    for title in ("method", "what it proposes", "shapes", "settings of --speculative-config"):
        table.add_column(title, overflow="fold")
    for row in REGISTRY.values():
        needed = [f"{name} (required)" if name in row.required else name for name in row.options]
        table.add_row(f"[bold cyan]{row.method}[/]", row.summary, ", ".join(row.shapes), "\n".join(needed) or "none")
    console(stderr=False).print(table)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
