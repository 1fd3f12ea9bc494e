"""Why a file could not be read, in words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.errors import why_unread


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda folder: (folder / "none").read_text(), "there is no such file"),
        (lambda folder: folder.read_text(), "Is a directory"),
        (lambda folder: (folder / "bytes").read_text(encoding="utf-8"), "it is no UTF-8 text"),
        (lambda folder: json.loads('{\n"a" 1}'), "it is no JSON: Expecting ':' delimiter in line 2"),
        (lambda folder: {}["format"], "'format' is missing"),
    ],
)
def test_causes_are_words_without_numbers_and_classes(tmp_path: Path, read: Callable[[Path], str], words: str) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises((OSError, ValueError, KeyError)) as caught:
        read(tmp_path)
    assert why_unread(caught.value) == words
