"""The curves of a run, drawn from its log: loss, acceptance by position, and what the engine accepts."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError

_MISSING = "curves need matplotlib: pip install 'outrider[train]'"


def draw(log: Path, title: str) -> tuple[Path, Path]:
    """``curves.png`` and ``curves.html`` beside ``log``; the page needs no other file.

    Raises ConfigError where matplotlib is missing or the log holds no step.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(_MISSING) from None
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    if not rows:
        raise ConfigError(f"{log} holds no step yet")
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    loss, acceptance, engine = figure.subplots(1, 3)
    _loss(loss, rows)
    _acceptance(acceptance, rows)
    _engine(engine, rows)
    figure.suptitle(title)
    png, page = log.with_name("curves.png"), log.with_name("curves.html")
    figure.savefig(png, dpi=120)
    svg = io.BytesIO()
    figure.savefig(svg, format="svg")
    image = base64.b64encode(svg.getvalue()).decode()
    page.write_text(_page(title, image, rows), encoding="utf-8")
    return png, page


def _of(rows: Sequence[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["split"] == split]


def _loss(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    for split, style in (("train", "-"), ("held out", "o-")):
        part = _of(rows, split)
        axes.plot([row["step"] for row in part], [row["loss"] for row in part], style, label=split)
    axes.set(title="loss", xlabel="step")
    axes.legend()


def _acceptance(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    part = _of(rows, "held out") or _of(rows, "train")
    for position in range(len(part[0]["acceptance"])):
        values = [row["acceptance"][position] for row in part]
        axes.plot([row["step"] for row in part], values, "o-", label=f"token {position + 1}")
    axes.set(title="acceptance where all before are right", xlabel="step", ylim=(0, 1))
    axes.legend()


def _engine(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    part = [row for row in rows if row["engine"]]
    for name in part[0]["engine"] if part else ():
        axes.plot([row["step"] for row in part], [row["engine"][name] for row in part], "o-", label=name)
    axes.set(title="mean acceptance length in the engine", xlabel="step")
    if part:
        axes.legend()


def _page(title: str, image: str, rows: Sequence[dict[str, Any]]) -> str:
    last = rows[-1]
    facts = ", ".join(f"{name} {value:.2f}" for name, value in last["engine"].items())
    name = html.escape(title)
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{name}</title>"
        "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"
        "img{width:100%}</style>"
        f"<h1>{name}</h1><p>Step {last['step']}, loss {last['loss']:.3f}{'; ' + facts if facts else ''}.</p>"
        f"<img alt='Loss, acceptance and acceptance length by step' src='data:image/svg+xml;base64,{image}'></html>\n"
    )
