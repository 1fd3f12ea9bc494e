"""``outrider index``: datastores for method ``rest``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.common import console, print_json

app = typer.Typer(no_args_is_help=True)

_SHOWN = 4  # corpora of a segment

Place = Annotated[Path, typer.Argument(metavar="PATH", help="The folder of a datastore.")]


@app.callback()
def _index() -> None:
    """Build and inspect the datastores that method `rest` copies from."""


@app.command("build")
def build(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.")],
    corpora: Annotated[
        list[Path],
        typer.Argument(
            metavar="CORPUS...", help="Text or code files, folders of them, JSON lines, result bundles; also gzipped."
        ),
    ],
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="The target, whose tokenizer is used.")
    ] = options.DEFAULT_MODEL,
    append: Annotated[bool, typer.Option("--append", help="Add the corpora to the datastore OUT.")] = False,
    glob: Annotated[str, typer.Option("--glob", metavar="PATTERN", help="Which files of a folder.")] = "*",
    field: Annotated[str, typer.Option("--field", metavar="KEY", help="The text of a JSON line.")] = "text",
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.Json = False,
) -> None:
    """Tokenise corpora with the target's tokenizer and write a datastore, or add them to one."""
    import time

    from outrider.index import build as building
    from outrider.index.corpus import Corpora
    from outrider.target.load import load_tokenizer
    from outrider.target.progress import late_bar

    began = time.perf_counter()
    files = Corpora.of(corpora, glob, field)
    tokenizer = load_tokenizer(model, revision=revision, trust_remote_code=trust_remote_code)
    with late_bar("index") as bar:
        header = building.build(out, files, tokenizer, model, append=append, progress=bar.update)
    facts = building.describe(out, header) | {
        "num_files": files.num_files,
        "passed_over": files.passed_over,
        "seconds": round(time.perf_counter() - began, 2),
    }
    _show(facts, as_json)


@app.command("info")
def info(
    path: Place,
    check: Annotated[bool, typer.Option("--verify", help="Read all files and compare their checksums.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show what a datastore holds; a damaged one is an error."""
    from outrider.drafters.datastore import read_header, verify
    from outrider.index.build import describe
    from outrider.target.progress import late_bar

    header = read_header(path)
    if check:
        with late_bar("verify") as bar:
            verify(path, header, bar.update)
    _show(describe(path, header) | ({"verified": True} if check else {}), as_json)


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    out = console(stderr=False)
    megabytes = facts["num_bytes"] / 1e6
    out.print(
        f"{facts['path']}: {facts['num_tokens']:,} tokens in {facts['num_documents']:,} documents, {megabytes:,.1f} MB",
        markup=False,
    )
    out.print(
        f"tokenizer of {facts['model']}: {facts['vocab_size']:,} ids of {facts['bytes_per_token_id']} bytes, "
        f"fingerprint {facts['fingerprint']}",
        markup=False,
    )
    for segment in facts["segments"]:
        sources, more = segment["sources"], len(segment["sources"]) - _SHOWN
        sources = ", ".join(sources[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        out.print(f"- {segment['name']}: {segment['num_tokens']:,} tokens from {sources}", markup=False)
    if facts.get("passed_over"):
        out.print(f"{len(facts['passed_over'])} files are no text and were passed over", markup=False)
    if facts.get("verified"):
        out.print("all checksums agree")
    if "seconds" in facts:
        out.print(f"{facts['num_files']:,} files in {facts['seconds']:.1f} s")
