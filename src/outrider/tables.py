"""Tables of results in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def plain_table(title: str | None = None, padding: int = 2) -> Table:
    """A table without lines, as all results are shown. ``padding``: spaces between columns."""
    from rich.table import Table

    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, padding, 0, 0),
    )
