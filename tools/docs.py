"""Rewrite the generated regions of README.md and docs/*.md from the code and from result bundles.

A region is ``<!-- generated:NAME -->`` ... ``<!-- /generated -->``. NAME is one of

    methods            the table of drafters, from the registry
    verifiers          the table of rules, from the module docstring of the verifiers
    commands           every command with its arguments and options
    diagnoses          what `outrider doctor` looks for, from its table
    exports            every method and engine: what `outrider export` calls it there, or what is nearest
    speed:BUNDLE       speed per task, from docs/results/BUNDLE.json
    acceptance:BUNDLE  acceptance by position, from docs/results/BUNDLE.json
    by-task:BUNDLE     speed-up of every method by task, and its time split
    lengths:BUNDLE     mean acceptance length of every method by task
    machine:BUNDLE     machine, versions and settings of docs/results/BUNDLE.json in one sentence

The pages in docs/methods are written whole (see ``method_pages``), and those of methods that are gone are removed.
``--check`` writes nothing and exits with 1 when a region or a page is out of date. Either way a link that leads nowhere
(see ``links``) is an error.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo

from links import broken, documents
from method_pages import pages

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
METHODS = ROOT / "docs" / "methods"
REGION = re.compile(r"(<!-- generated:(?P<name>[^ ]+) -->\n).*?(<!-- /generated -->)", re.DOTALL)
NOT_MEASURED = "Not measured yet: `docs/results/{}.json` is missing.\n"


def main(arguments: Sequence[str]) -> int:
    """Rewrite or, with ``--check``, compare; the exit status."""
    stale = [path for path, text in wanted().items() if not up_to_date(path, text, "--check" not in arguments)]
    lost = list(broken(documents(ROOT)))
    sys.stderr.writelines(f"{line}\n" for line in lost)
    return 1 if stale or lost else 0


def wanted() -> dict[Path, str | None]:
    """The text that every generated file should have; None for one that should not be there."""
    out: dict[Path, str | None] = dict.fromkeys(METHODS.glob("*.md"))
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = path.read_text(encoding="utf-8")
        out[path] = REGION.sub(lambda match: match[1] + region(match["name"]) + match[3], old)
    return out | {METHODS / name: text for name, text in pages(table).items()}


def up_to_date(path: Path, new: str | None, write: bool) -> bool:
    """Whether ``path`` holds ``new``; if not, it is written (or removed), or the difference shown."""
    old = path.read_text(encoding="utf-8") if path.exists() else None
    if old == new:
        return True
    if not write:
        print(f"{path.relative_to(ROOT)} is out of date: run `make docs`", file=sys.stderr)
        before, after = (old or "").splitlines(True), (new or "").splitlines(True)
        sys.stderr.writelines(difflib.unified_diff(before, after, "written", "generated"))
        return False
    if new is None:
        path.unlink()
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(new, encoding="utf-8")
    return True


def region(name: str) -> str:
    """The text of a region, ending with a newline. Raises SystemExit for an unknown name."""
    kind, _, bundle = name.partition(":")
    makers: dict[str, Callable[[], str]] = {
        "methods": methods,
        "verifiers": verifiers,
        "commands": commands,
        "diagnoses": diagnoses,
        "exports": exports,
    }
    if kind in makers:
        return makers[kind]()
    from_bundle = {
        "speed": speed,
        "acceptance": acceptance,
        "machine": machine,
        "by-task": by_task,
        "lengths": lengths,
    }
    if kind not in from_bundle:
        raise SystemExit(f"unknown region {name!r}; known: {', '.join([*makers, *from_bundle])}")
    path = RESULTS / f"{bundle}.json"
    if not path.exists():
        return NOT_MEASURED.format(bundle)
    return from_bundle[kind](json.loads(path.read_text(encoding="utf-8")))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def methods() -> str:
    """One row a drafter."""
    from outrider.drafters.registry import REGISTRY

    rows = [
        (
            f"[`{row.method}`](docs/methods/{row.method}.md)",
            row.summary,
            ", ".join(row.shapes),
            ", ".join(f"`{option}`" for option in row.options) or "none",
            f"[source]({row.paper})" if row.paper else "",
        )
        for row in REGISTRY.values()
    ]
    return table(("method", "what it proposes", "shapes", "settings", "source"), rows)


def diagnoses() -> str:
    """One row a fault that ``outrider doctor`` knows."""
    from outrider.doctor.diagnoses.table import DIAGNOSES

    rows = [(f"`{row.name}`", row.summary, row.looks_at, row.remedy) for row in DIAGNOSES.values()]
    return table(("diagnosis", "fault", "looked at", "what to do"), rows)


def exports() -> str:
    """One row a method, one column an engine and version: its name there, or the nearest method in brackets."""
    from outrider.drafters.registry import REGISTRY
    from outrider.export.registry import ENGINES

    columns = [(engine, version) for engine in ENGINES.values() for version in engine.versions]
    rows = [
        [f"`{method}`", *(_exported(engine, version, method) for engine, version in columns)] for method in REGISTRY
    ]
    heads = [f"{engine.name} {version.removeprefix('llama-cpp-python-')}" for engine, version in columns]
    return table(("method", *heads), rows)


def _exported(engine: Any, version: str, method: str) -> str:
    from outrider.export import nearest

    able = engine.able(version)
    if method in able:
        return f"`{engine.names[method]}`"
    other = next((name for name in nearest.METHODS[method] if name in able), "")
    return f"({other})" if other else "no"


def verifiers() -> str:
    """The table that stands in the verifiers' module docstring."""
    from outrider.core.verifiers import base

    return "".join(f"{line}\n" for line in (base.__doc__ or "").splitlines() if line.startswith("|"))


def commands() -> str:
    """Every command: what it does, its arguments and options."""
    from outrider.cli.main import app

    return "\n".join(_describe(app, "outrider"))


def _describe(app: Any, prefix: str) -> Iterator[str]:
    """The commands of a typer application, read from the annotations of their functions."""
    for command in app.registered_commands:
        function = command.callback
        yield f"### `{prefix} {command.name}`\n\n{inspect.getdoc(function)}\n"
        hints = get_type_hints(function, include_extras=True)
        rows = [_parameter(item, hints[item.name]) for item in inspect.signature(function).parameters.values()]
        yield table(("argument or option", "default", "meaning"), rows)
    for group in app.registered_groups:
        yield from _describe(group.typer_instance, f"{prefix} {group.name}")


def _parameter(item: inspect.Parameter, hint: Any) -> tuple[str, str, str]:
    kind, info = get_args(hint)
    required = item.default is inspect.Parameter.empty
    if isinstance(info, ArgumentInfo):
        return f"`{info.metavar}`", "required" if required else _default(item.default), info.help or ""
    # typer keeps the first name of an annotated option in ``default``
    name = ", ".join((info.default, *(info.param_decls or ())))
    if kind is not bool:
        name += f" {info.metavar or _metavar(kind)}"
    return f"`{name}`", "required" if required else _default(item.default), info.help


def _metavar(kind: Any) -> str:
    kinds = get_args(kind) or (kind,)
    return "N" if int in kinds else "X" if float in kinds else "TEXT"


def _default(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"`{value}`"


def speed(bundle: dict[str, Any]) -> str:
    """Tokens per second and speed-up of every task and variant of a bench bundle."""
    summary = bundle["summary"]
    head = ("task", "method", "tokens/s", "speed-up (95 %)", "mean acceptance length", "text equal to plain")
    rows = []
    for task, cells in {**summary["tasks"], "all": summary["all"]}.items():
        for label, cell in cells.items():
            plain = label == summary["baseline"]
            spread = (
                "" if cell["speedup_low"] is None else f" ({cell['speedup_low']:.2f} to {cell['speedup_high']:.2f})"
            )
            rows.append(
                (
                    task,
                    label,
                    _number(cell["tokens_per_second"], 1),
                    "1" if plain else _number(cell["speedup"], 2) + spread,
                    _number(cell["mean_acceptance_length"], 2),
                    "" if plain else f"{cell['num_equal']} of {cell['num_answers']}",
                )
            )
    return table(head, rows)


def by_task(bundle: dict[str, Any]) -> str:
    """A line a method: speed-up of every task, the time split over all, and texts equal to plain decoding."""
    summary = bundle["summary"]
    tasks = {**summary["tasks"], "all": summary["all"]}
    head = ("method", *tasks, "95 % of all", "draft / verify / overhead", "equal")
    rows = []
    for label in (name for name in summary["variants"] if name != summary["baseline"]):
        cell = summary["all"][label]
        shares = (f"{100 * cell[f'{part}_share']:.0f}" for part in ("draft", "verify", "overhead"))
        rows.append(
            (
                label,
                *(_number(cells[label]["speedup"], 2) for cells in tasks.values()),
                f"{_number(cell['speedup_low'], 2)} to {_number(cell['speedup_high'], 2)}",
                " / ".join(shares) + " %",
                f"{cell['num_equal']} of {cell['num_answers']}",
            )
        )
    return table(head, rows)


def lengths(bundle: dict[str, Any]) -> str:
    """A line a method: mean acceptance length of every task."""
    summary = bundle["summary"]
    tasks = {**summary["tasks"], "all": summary["all"]}
    names = [name for name in summary["variants"] if name != summary["baseline"]]
    rows = [(name, *(_number(cells[name]["mean_acceptance_length"], 2) for cells in tasks.values())) for name in names]
    return table(("method", *tasks), rows)


def acceptance(bundle: dict[str, Any]) -> str:
    """Per-position and conditional acceptance of every variant of a bench bundle."""
    summary = bundle["summary"]
    cells = {label: cell for label, cell in summary["all"].items() if label != summary["baseline"]}
    width = min(8, max((len(cell["per_position_acceptance"]) for cell in cells.values()), default=0))
    rows = []
    for label, cell in cells.items():
        for kind in ("per-position", "conditional"):
            values = cell[f"{kind.replace('-', '_')}_acceptance"][:width]
            rows.append((label, kind, *(_number(value, 2) for value in values), *[""] * (width - len(values))))
    return table(("method", "acceptance", *(str(i + 1) for i in range(width))), rows)


def machine(bundle: dict[str, Any]) -> str:
    """One sentence: where and with what a bundle was measured."""
    manifest, arguments = bundle["manifest"], bundle["manifest"]["arguments"]
    model, packages = manifest["model"], manifest["packages"]
    return (
        f"{arguments['model']}, {model.get('dtype')} weights, {model.get('threads')} thread(s), "
        f"{'exact' if model.get('exact') else 'not exact'}; {arguments['max_tokens']} tokens at most, "
        f"T = {arguments['temperature']:g}, {arguments['concurrency']} at a time; {manifest['machine']['cpu']}, "
        f"torch {packages['torch']}, transformers {packages['transformers']}, outrider {manifest['outrider']}.\n"
    )


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
