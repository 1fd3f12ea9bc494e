"""Command lines of documents: each ``outrider`` line of a listing is parsed as the program would, and nothing runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from links import documents
from outrider.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
LISTING = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "bash")
TABLES = "comparison.md"  # its listings are tables whose rows begin with a program's name


def command_lines(text: str) -> list[str]:
    """The ``outrider`` commands of listings without a language or of a shell, continued lines joined; not those of
    which a part is left out (``...``)."""
    listings = [body.replace("\\\n", " ") for language, body in LISTING.findall(text) if language in SHELL]
    lines = [line for body in listings for line in body.splitlines()]
    return [line for line in lines if line.startswith("outrider ") and " ... " not in line]


def parse(line: str) -> None:
    """Raises what the program would show: an unknown command, option or value, an argument too many or missing."""
    command: Any = get_command(app)
    name, *rest = shlex.split(line, comments=True)
    while hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, rest)


def test_commands_in_documents_parse() -> None:
    lines = {path: command_lines(path.read_text(encoding="utf-8")) for path in documents(ROOT) if path.name != TABLES}
    assert len(lines[ROOT / "docs" / "tutorial.md"]) >= 7
    wrong = []
    for path, line in [(path, line) for path, found in lines.items() for line in found]:
        try:
            parse(line)
        except Exception as error:
            wrong.append(f"{path.relative_to(ROOT)}: {line}: {error!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "line",
    [
        "outrider nothing",
        "outrider heads check",
        "outrider heads check here --target m --sideways",
        "outrider export vllm --target m -k many",
        "outrider serve a b",
    ],
)
def test_a_wrong_line_is_seen(line: str) -> None:
    with pytest.raises(Exception, match=r"nothing|Missing|No such option|valid integer|unexpected"):
        parse(line)


def test_lines_of_a_listing() -> None:
    shown, shell = "outrider a\n", "outrider b \\\n    -c d  # that\nmake demo\noutrider e ... f\n"
    text = f"```text\n{shown}```\n\n```\n{shell}```\n\noutrider g\n"
    assert command_lines(text) == ["outrider b      -c d  # that"]
