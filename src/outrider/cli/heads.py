"""``outrider heads``: look at draft heads, convert them between projects, check them against a target."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.common import print_json

if TYPE_CHECKING:
    from outrider.heads.layouts.base import Bound

app = typer.Typer(no_args_is_help=True)

Place = Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a draft head.")]
Target = Annotated[
    str | None, typer.Option("--target", metavar="MODEL", help="The model that the head is for; foreign heads need it.")
]


@app.callback()
def _heads() -> None:
    """Inspect, convert and check trained draft heads."""


@app.command("inspect")
def inspect(path: Place, target: Target = None, json_: options.Json = False) -> None:
    """Show what a head is: its layout, its shape, the layers that it reads, its vocabulary."""
    from outrider.heads.layouts.base import Checkpoint, from_eight_bit
    from outrider.heads.layouts.table import layout_of

    checkpoint = Checkpoint.read(path)
    layout = layout_of(checkpoint)
    weights = from_eight_bit(checkpoint.tensors).values()
    facts: dict[str, Any] = {
        "layout": layout.name,
        "weights": sum(tensor.numel() for tensor in weights if tensor.is_floating_point()),
        "bytes": sum(tensor.nbytes for tensor in checkpoint.tensors.values()),
    }
    if target is not None or layout.name.startswith("outrider"):
        head = layout.read(checkpoint, None if target is None else _bound(target))
        facts |= head.config.model_dump(mode="json", exclude={"canary"})
    if json_:
        print_json(facts)
        return
    _print(facts)
    if len(facts) == 3:
        print("more is known with --target", file=sys.stderr)


@app.command("convert")
def convert(
    path: Place,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="The folder to write.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="LAYOUT", help="outrider, outrider-int8, sglang, vllm, speculators, medusa or vllm-medusa."
        ),
    ],
    target: Target = None,
) -> None:
    """Write a head in the layout of another project, or a head of another project in ours."""
    from outrider.errors import ConfigError
    from outrider.heads import files
    from outrider.heads.layouts.medusa import GONE
    from outrider.heads.layouts.table import layout_named

    if out.resolve() == path.resolve() or (out.exists() and any(out.iterdir())):
        raise ConfigError(f"--out {out} is not empty: give a new folder")
    head = files.load(path, None if target is None else _bound(target))
    layout = layout_named(to, head.config.kind)
    layout.write(head, target or head.config.target).write(out)
    if layout.name == "vllm-medusa":
        print(GONE, file=sys.stderr)
    if target is None and layout.name == "speculators":
        print(f"the verifier is called {head.config.target!r} in it: name its hub id with --target", file=sys.stderr)
    print(out)


@app.command("check")
def check(
    path: Place,
    target: Annotated[str, typer.Option("--target", metavar="MODEL", help="The model that the head is for.")],
    json_: options.Json = False,
) -> None:
    """Load a head for a target, and measure how often its first draft is the target's own choice."""
    from outrider.engine.heads import examine

    found = examine(target, path)
    if json_:
        print_json(found)
        return
    _print(found)


def _print(facts: dict[str, Any]) -> None:
    for key, value in facts.items():
        value = "-" if value is None else value
        whole = isinstance(value, int) and not isinstance(value, bool)
        print(f"{key:24} {value:,}" if whole else f"{key:24} {value}")


def _bound(target: str) -> Bound:
    from outrider.engine.heads import bound_by_name

    return bound_by_name(target)
