"""The ``outrider`` command: registers the commands and turns errors into one line and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import typer

from outrider import __version__
from outrider.cli import (
    advise,
    bench,
    chat,
    check,
    cost,
    demo,
    doctor,
    export,
    generate,
    heads,
    index,
    methods,
    migrate,
    models,
    serve,
    simulate,
    theory,
    trace,
    train,
    tune,
)
from outrider.errors import OutriderError

app = typer.Typer(
    name="outrider",
    help="Lossless speculative decoding: a drafter guesses, the target checks, the text stays the target's own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("bench")(bench.bench)
app.command("advise")(advise.advise)
app.command("check")(check.check)
app.command("serve")(serve.serve)
app.command("trace")(trace.trace)
app.command("train")(train.train)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
app.command("theory")(theory.theory)
app.command("simulate")(simulate.simulate)
app.command("cost")(cost.cost)
app.command("methods")(methods.methods)
app.command("migrate")(migrate.migrate)
app.add_typer(models.app, name="models")
app.add_typer(heads.app, name="heads")
app.add_typer(index.app, name="index")
app.add_typer(export.app, name="export")
app.add_typer(tune.app, name="tune")


def _version(value: bool) -> None:
    if value:
        print(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    pass


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 (check found a bug, doctor a fault), 2 (an error), 130
    (interrupted)."""
    try:
        status = app(args=list(sys.argv[1:] if argv is None else argv), prog_name="outrider", standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except OutriderError as error:
        print(f"error: {error}", file=sys.stderr)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return 130
    except (BrokenPipeError, SystemExit) as error:
        if not isinstance(error, OSError) and not isinstance(error.__context__, OSError):
            raise
        # the reader of a pipe is gone, and typer would exit with 1, which is for a bug that check found
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit fails once more
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # the bare command: its help is on stdout already
            return 0
        print(f"error: {_usage(error)}", file=sys.stderr)
    return 2


def _usage(error: Any) -> str:
    """What is wrong with the words of a command line, and for an unknown command the known ones."""
    message: str = error.format_message()
    context = getattr(error, "ctx", None)
    if message.startswith("No such command") and "Did you mean" not in message and context is not None:
        names = context.command.list_commands(context)
        message = f"{message.rstrip('.')}; choose one of: {', '.join(names)}"
    if message.startswith(("Missing", "No such option")) and context is not None:
        message = f"{message.rstrip('.')}; see `{context.command_path} --help`"
    return message


def main() -> None:
    """The console script."""
    sys.exit(run())
