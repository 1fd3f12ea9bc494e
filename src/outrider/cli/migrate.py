"""``outrider migrate``: an old command line of another engine, made current."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import options
from outrider.cli.common import console, print_json
from outrider.tables import plain_table

if TYPE_CHECKING:
    from outrider.export.migrate.base import Migration


def migrate(
    line: Annotated[str, typer.Argument(metavar="LINE", help="The whole line in quotes; - reads it from stdin.")],
    as_json: options.Json = False,
) -> None:
    """Turn dead flags of vllm, sglang, trtllm-serve, llama-server, or a call of LLM or generate, into current ones."""
    from outrider.export.migrate.run import migrate as run

    found = run(sys.stdin.read() if line == "-" else line)
    print_json(found.as_dict()) if as_json else _show(found)


def _show(found: Migration) -> None:
    from rich.text import Text

    table = plain_table()
    for head in ("was", "is now", "why"):
        table.add_column(head, overflow="fold")
    for change in found.changes:
        new = change.new or ("gone" if change.kind == "gone" else "")
        table.add_row(*map(Text, (change.old or "(nothing)", new, change.why)))
    out = console()
    if found.changes:
        out.print(table)
    else:
        out.print(f"nothing in it is out of date for {found.engine}")
    if found.kept:
        out.print(f"passed through as they are: {' '.join(found.kept)}", soft_wrap=True)
    print(found.line)
    for name, text in found.files.items():
        print(f"\n# {name}\n{text}", end="")
