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
    table.add_column("method\n(shapes)", no_wrap=True)
    table.add_column("what it proposes")
    table.add_column("settings of\n--speculative-config", no_wrap=True)
    for row in REGISTRY.values():
        needed = [f"{name} (required)" if name in row.required else name for name in row.options]
        name = f"[bold cyan]{row.method}[/]\n({', '.join(row.shapes)})"
        table.add_row(name, row.summary, "\n".join(needed) or "none")
    console(stderr=False).print(table)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
