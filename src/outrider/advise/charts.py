"""Charts as SVG text within a page, coloured by the page's own variables so that they follow light and dark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log2

WIDTH, HEIGHT = 640, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 150, 14, 34
_SERIES = 6  # colours that the page has


@dataclass(frozen=True, slots=True)
class Axis:
    """``ticks``: values with their labels; ``log``: by doubling."""

    name: str
    ticks: Sequence[float]
    log: bool = False


Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]


def lines(
    series: Mapping[str, Points],
    x: Axis,
    y: Axis,
    *,
    level: float | None = None,
    marks: Mapping[str, Points] | None = None,
    title: str = "",
) -> str:
    """Lines by name; ``level``: a dashed line across; ``marks``: rings beside the lines of the same name."""
    low, high = _span(series, y, marks or {})
    at_x = _scale(x, min(x.ticks), max(x.ticks), _LEFT, WIDTH - _RIGHT)
    at_y = _scale(Axis("", ()), low, high, HEIGHT - _BOTTOM, _TOP)
    parts = [_frame(x, at_x, low, high, at_y, y.name)]
    if level is not None and low <= level <= high:
        parts.append(f'<line class="level" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at_y(level)}" y2="{at_y(level)}"/>')
    ends: list[tuple[float, int, str]] = []
    for number, (name, points) in enumerate(series.items()):
        color = f"c{number % _SERIES}"
        path = " ".join(f"{at_x(a)},{at_y(b)}" for a, b in points)
        parts.append(f'<polyline class="{color}" points="{path}"/>')
        parts += [
            f'<circle class="dot {color}" cx="{at_x(a)}" cy="{at_y(b)}" r="3"><title>{escape(name)}: {b:.2f}</title>'
            "</circle>"
            for a, b in points
        ]
        for a, b in (marks or {}).get(name, ()):
            parts.append(
                f'<circle class="ring {color}" cx="{at_x(a)}" cy="{at_y(b)}" r="7"><title>{escape(name)}, measured: '
                f"{b:.2f}</title></circle>"
            )
        if points:
            ends.append((at_y(points[-1][1]), number % _SERIES, name))
    parts += _names(ends)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def bars(rows: Sequence[tuple[str, float, float, float, float | None]], title: str, level: float = 1.0) -> str:
    """One bar a row: name, value, low and high of its interval, and what was measured, if anything."""
    step, left, right = 26, 150, 60
    height = step * len(rows) + 26
    high = max([level, *(row[3] for row in rows), *(row[4] or 0.0 for row in rows)]) * 1.05
    at = _scale(Axis("", ()), 0.0, high, left, WIDTH - right)
    parts = []
    for number, (name, value, low, top, measured) in enumerate(rows):
        y = number * step + 6
        middle = y + 8
        parts.append(f'<text class="name" x="{left - 8}" y="{y + 12}">{escape(name)}</text>')
        parts.append(f'<rect class="bar" x="{left}" y="{y}" width="{round(at(value) - left, 1)}" height="16" rx="2"/>')
        parts.append(f'<line class="whisker" x1="{at(low)}" x2="{at(top)}" y1="{middle}" y2="{middle}"/>')
        if measured is not None:
            parts.append(
                f'<circle class="ring c1" cx="{at(measured)}" cy="{middle}" r="6"><title>measured {measured:.2f}'
                "</title></circle>"
            )
        parts.append(f'<text x="{at(max(top, value, measured or 0.0)) + 10}" y="{y + 12}">{value:.2f}</text>')
    parts.append(f'<line class="level" x1="{at(level)}" x2="{at(level)}" y1="0" y2="{height - 22}"/>')
    parts.append(f'<text class="tick" x="{at(level)}" y="{height - 6}" text-anchor="middle">plain decoding</text>')
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _span(series: Mapping[str, Points], y: Axis, marks: Mapping[str, Points]) -> tuple[float, float]:
    if y.ticks:
        return min(y.ticks), max(y.ticks)
    values = [b for points in [*series.values(), *marks.values()] for _, b in points] or [0.0, 1.0]
    low, high = min([*values, 1.0]), max([*values, 1.0])
    pad = 0.06 * (high - low) or 0.1
    return low - pad, high + pad


def _scale(axis: Axis, low: float, high: float, first: float, last: float) -> Scale:
    """Where a value stands on an axis."""
    turn: Callable[[float], float] = log2 if axis.log else float
    start, width = turn(low), turn(high) - turn(low) or 1.0
    return lambda value: round(first + (turn(value) - start) / width * (last - first), 1)


def _frame(x: Axis, at_x: Scale, low: float, high: float, at_y: Scale, name: str) -> str:
    parts = []
    step = next(step for step in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 1e9) if (high - low) / step <= 6)
    value = (int(low / step) + (low > 0)) * step
    while value <= high:
        y = at_y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4}" text-anchor="end">{value:g}</text>')
        value = round(value + step, 6)
    for tick in x.ticks:
        parts.append(
            f'<text class="tick" x="{at_x(tick)}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{tick:g}</text>'
        )
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 3}" text-anchor="middle">{escape(x.name)}</text>')
    parts.append(f'<text class="tick" x="4" y="11">{escape(name)}</text>')
    return "".join(parts)


def _names(ends: Sequence[tuple[float, int, str]]) -> list[str]:
    """Names at the ends of the lines, moved apart."""
    out, last = [], -100.0
    for y, color, name in sorted(ends):
        last = max(y, last + 15)
        out.append(
            f'<text class="end c{color}" x="{WIDTH - _RIGHT + 8}" y="{round(last + 4, 1)}">{escape(name)}</text>'
        )
    return out
