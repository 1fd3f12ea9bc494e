"""Help texts as a terminal shows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text
from typer.main import get_command

from outrider.cli.main import app


def texts(command: Any) -> Iterator[str]:
    yield command.help or ""
    yield from (getattr(parameter, "help", None) or "" for parameter in command.params)
    for each in getattr(command, "commands", {}).values():
        yield from texts(each)


def test_no_word_in_brackets_is_taken_for_markup() -> None:
    found = list(texts(get_command(app)))
    assert len(found) > 300
    assert [text for text in found if Text.from_markup(text).plain != text] == []
