"""The page: one self-contained HTML file of the JSON document. Nothing of prompts or names is taken for markup."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from outrider.advise import charts

_TOP = 6  # candidates in a chart


def render(value: Mapping[str, Any]) -> str:
    """The page of a ``document``."""
    style = (resources.files("outrider.advise") / "page.css").read_text(encoding="utf-8")
    model = escape(str(value["manifest"]["model"].get("model", "the target")))
    parts = [_section(title, make(value), caption) for title, make, caption in _SECTIONS]
    body = "".join((f"<h1>Speculation for {model}</h1>", _headline(value), *parts, _footer(value)))
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Speculation for {model}</title><style>\n{style}</style>"
    )
    page = f'<html lang="en"><head>{head}</head><body><main>{body}</main></body></html>'
    return f"<!doctype html>\n{page}\n"


def _section(title: str, content: str, caption: str = "") -> str:
    if not content:
        return ""
    under = f'<p class="caption">{escape(caption)}</p>' if caption else ""
    return f"<section><h2>{escape(title)}</h2>{under}{content}</section>"


def _headline(value: Mapping[str, Any]) -> str:
    found = value["recommendation"]
    if found["method"] is None:
        return '<p class="headline">Serve without speculation.</p>'
    first = next(each for each in value["ranking"] if each["label"] == found["label"])
    cells = "".join(
        f"<div><b>{cell['speedup']:.2f}x</b><span>at {escape(load)} at a time, K = {cell['num_speculative_tokens']}"
        "</span></div>"
        for load, cell in first["by_concurrency"].items()
    )
    tokens = found["num_speculative_tokens"]
    return (
        f'<p class="headline">Use <b>{escape(found["label"])}</b> with {tokens} draft tokens.</p>'
        f'<div class="figures">{cells}</div>'
    )


def _single(value: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Predictions for one at a time by candidate, best candidates first."""
    out: dict[str, list[Mapping[str, Any]]] = {}
    for each in value["predictions"]:
        if each["batch"] == 1:
            out.setdefault(each["label"], []).append(each)
    return dict(sorted(out.items(), key=lambda item: -max(each["speedup"] for each in item[1])))


def _bars(value: Mapping[str, Any]) -> str:
    measured = {each["label"]: each["measured"] for each in value["proofs"]}
    rows = []
    for label, cells in _single(value).items():
        best = max(cells, key=lambda each: each["speedup"])
        rows.append((label, best["speedup"], best["low"], best["high"], measured.get(label)))
    return charts.bars(rows, "expected speed-up by candidate")


def _by_k(value: Mapping[str, Any]) -> str:
    series = {
        label: [(each["num_speculative_tokens"], each["speedup"]) for each in cells]
        for label, cells in _single(value).items()
        if len(cells) > 1
    }
    series = dict(list(series.items())[:_TOP])
    marks: dict[str, list[tuple[float, float]]] = {}
    for each in value["proofs"]:
        marks.setdefault(each["label"], []).append((each["num_speculative_tokens"], each["measured"]))
    ticks = sorted({k for points in series.values() for k, _ in points})
    if not ticks:
        return "<p>No candidate has a choice of K.</p>"
    x = charts.Axis("draft tokens (K)", ticks)
    return charts.lines(series, x, charts.Axis("speed-up", ()), level=1.0, marks=marks, title="speed-up by K")


def _by_load(value: Mapping[str, Any]) -> str:
    series = {
        each["label"]: [(float(load), cell["speedup"]) for load, cell in each["by_concurrency"].items()]
        for each in value["ranking"][:_TOP]
    }
    loads = sorted({load for points in series.values() for load, _ in points})
    if len(loads) < 2:
        return "<p>One load was asked about.</p>"
    x = charts.Axis("requests at a time", loads, log=True)
    return charts.lines(series, x, charts.Axis("speed-up", ()), level=1.0, title="speed-up by load")


def _positions(value: Mapping[str, Any]) -> str:
    series = {}
    for each in value["ranking"][:_TOP]:
        conditional = value["acceptance"][each["label"]]["conditional"]
        series[each["label"]] = [(at + 1.0, rate) for at, rate in enumerate(conditional) if rate is not None]
    width = max((len(points) for points in series.values()), default=1)
    x = charts.Axis("position", [float(at) for at in range(1, max(2, width) + 1)])
    return charts.lines(series, x, charts.Axis("accepted", (0.0, 1.0)), title="acceptance by position")


def _laws(value: Mapping[str, Any]) -> str:
    rows = []
    for label, cell in value["acceptance"].items():
        means = cell["agreement"]
        if means is None:
            continue
        shares = (f"{means[name]:.0%}" for name in ("top1", "overlap", "shared_noise", "coverage"))
        top, overlap, shared, coverage = shares
        rows.append((label, top, f"{means['kl']:.2f}", overlap, shared, coverage, str(cell["num_positions"])))
    columns = (
        "candidate",
        "same likeliest token",
        "KL, nats",
        "sum of min(p, q)",
        "shared noise",
        "p known",
        "positions",
    )
    return _table(columns, rows) if rows else "<p>No candidate has a law of its own.</p>"


def _proofs(value: Mapping[str, Any]) -> str:
    if not value["proofs"]:
        return ""
    rows = [
        (
            each["label"],
            str(each["num_speculative_tokens"]),
            f"{each['predicted']:.2f}",
            f"{each['measured']:.2f}",
            f"{each['predicted_tokens']:.2f}",
            f"{each['measured_tokens']:.2f}",
            f"{each['equal']}/{each['num_answers']}",
        )
        for each in value["proofs"]
    ]
    columns = ("candidate", "K", "predicted", "measured", "tokens a step", "measured", "texts equal to plain")
    return _table(columns, rows)


def _why(value: Mapping[str, Any]) -> str:
    return _list(value["reasons"])


def _refused(value: Mapping[str, Any]) -> str:
    pairs = value["refused"]
    return _table(("candidate", "why"), list(pairs.items()), words=True) if pairs else ""


def _rules(value: Mapping[str, Any]) -> str:
    rows = [(each["says"], each["verdict"], each["figure"]) for each in value["rules"]]
    return _table(("rule", "here", "figure"), rows, words=True)


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    kind = ' class="words"' if words else ""
    return f'<div class="wide"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _footer(value: Mapping[str, Any]) -> str:
    manifest, prompts = value["manifest"], value["prompts"]
    machine, model = manifest["machine"], manifest["model"]
    text = (
        f"{prompts['answers']} answers to {prompts['screened']} prompts ({', '.join(prompts['tasks'])}), screened in "
        f"{prompts['screen_seconds']:.0f} s. {machine['cpu']}, {model.get('threads')} threads, {model.get('dtype')} "
        "weights; "
        f"outrider {manifest['outrider']}, {manifest['created']}."
    )
    return f"<footer>{escape(text)}</footer>"


_SECTIONS: Sequence[tuple[str, Callable[[Mapping[str, Any]], str], str]] = (
    ("Why", _why, ""),
    (
        "Candidates",
        _bars,
        "Speed-up over plain decoding, one at a time, best K of each. Bars: expected, whiskers: 95 % over prompts, "
        "rings: measured.",
    ),
    ("Draft tokens", _by_k, "Expected speed-up by number of draft tokens, one at a time; rings: measured."),
    ("Load", _by_load, "Expected speed-up with the best K at each load."),
    (
        "Acceptance by position",
        _positions,
        "P(position accepted, given that all before it were), with the longest drafts.",
    ),
    ("Laws", _laws, "How a draft's law agrees with the target's at the positions of the answers."),
    ("Proof", _proofs, ""),
    ("Rules of thumb", _rules, ""),
    ("Left out", _refused, ""),
)
