"""One self-contained HTML page of a trace: no network, no other file, nothing from the prompt taken for markup."""

from __future__ import annotations

import json
from importlib import resources

from outrider.telemetry.record import Trace

_MARK = "<!-- {} -->"
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}  # within a script element only these can end it


def render(trace: Trace) -> str:
    """The page. The record stands in it as JSON; the script shows every text of it as text."""
    page = _part("page.html")
    for name, content in (
        ("style", f"<style>\n{_part('page.css')}</style>"),
        ("script", f"<script>\n{''.join(_part(name) for name in ('tree.js', 'page.js'))}</script>"),
        ("record", f'<script type="application/json" id="record">{embedded(trace)}</script>'),
    ):
        page = page.replace(_MARK.format(name), content, 1)
    return page


def embedded(trace: Trace) -> str:
    """The record as JSON (ASCII, and without the characters that HTML acts on) for a script element."""
    text = json.dumps(trace.to_dict(), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for char, escape in _ESCAPES.items():
        text = text.replace(char, escape)
    return text


def _part(name: str) -> str:
    return (resources.files("outrider.telemetry") / "page" / name).read_text(encoding="utf-8")
