"""Corpora: files and folders as documents, each a text or the ids that a model gave.

A file of JSON lines gives a document a row: the answers of a result bundle with the ids that were drawn, other rows
with the text under ``field``. Every other file is text. Either may be gzipped. A folder with a ``manifest.json`` and a
``prompts.jsonl`` is a result bundle; of any other folder, hidden entries and what is no text are passed over.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from outrider.bench import bundle
from outrider.errors import ConfigError

DOCUMENT_BYTES = 1 << 24  # a longer text becomes several documents, cut at line ends
_SHOWN = 5  # keys that a message lists


@dataclass(frozen=True, slots=True)
class Document:
    """A text from ``source``; ``token_ids``: as a model gave it, where that is known."""

    text: str
    source: str
    token_ids: Sequence[int] = ()


@dataclass(slots=True)
class Corpora:
    """The files of some corpora. ``done_bytes`` of ``total_bytes`` were read; ``passed_over``: no text."""

    files: list[tuple[Path, str, bool]]  # file, corpus as the user named it, whether that names the file itself
    key: str  # of the text in a JSON line
    total_bytes: int
    done_bytes: int = 0
    num_files: int = 0
    passed_over: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, paths: Sequence[Path], glob: str = "*", key: str = "text") -> Corpora:
        """The files of ``paths``; of a folder those whose name matches ``glob``. Raises ConfigError for a missing path
        and a folder without such files."""
        files = []
        for path in paths:
            if path.is_dir():
                found = [(file, str(path), False) for file in _inside(path, glob)]
                if not found:
                    raise ConfigError(f"CORPUS {path}: the folder holds no file {glob!r}; see --glob")
                files += found
            elif path.is_file():
                files.append((path, str(path), True))
            else:
                raise ConfigError(f"CORPUS {path}: no such file or folder")
        return cls(files, key, sum(file.stat().st_size for file, _, _ in files))

    def documents(self) -> Iterator[Document]:
        """All documents. Raises ConfigError for a named file that cannot be read."""
        before = 0
        for file, source, named in self.files:
            read = _rows if _is_jsonl(file) else _texts
            try:
                with file.open("rb") as raw, _text(file, raw) as lines:
                    for document in read(lines, source, self.key):
                        self.done_bytes = before + raw.tell()
                        yield document
                self.num_files += 1
            except (OSError, UnicodeDecodeError, EOFError, ValueError, KeyError) as error:
                if named:
                    raise ConfigError(f"CORPUS {file}: {_reason(error)}") from None
                self.passed_over.append(str(file))
            before += file.stat().st_size
            self.done_bytes = before


def _inside(folder: Path, glob: str) -> list[Path]:
    if (folder / bundle.MANIFEST).is_file() and (folder / bundle.ANSWERS).is_file():
        return [folder / bundle.ANSWERS]
    return sorted(
        file
        for file in folder.rglob(glob)
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )


def _is_jsonl(file: Path) -> bool:
    return file.name.removesuffix(".gz").endswith(".jsonl")


@contextmanager
def _text(file: Path, raw: BinaryIO) -> Iterator[TextIO]:
    with ExitStack() as stack:
        binary = stack.enter_context(gzip.GzipFile(fileobj=raw)) if file.name.endswith(".gz") else raw
        yield stack.enter_context(io.TextIOWrapper(binary, encoding="utf-8"))


def _texts(lines: TextIO, source: str, _: str) -> Iterator[Document]:
    while part := lines.readlines(DOCUMENT_BYTES):
        text = "".join(part)
        if "\0" in text:
            raise ValueError("it is no text")
        yield Document(text, source)


def _rows(lines: TextIO, source: str, key: str) -> Iterator[Document]:
    """Answers are given once, though every method of a run has the same."""
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"row {number} is not JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise ValueError(f"row {number} is not a JSON object")
        if (answer := bundle.answer(row)) is not None:
            name = (answer.prompt_id, tuple(answer.token_ids))
            if name not in seen:
                seen.add(name)
                yield Document(answer.text, source, answer.token_ids)
            continue
        yield Document(_field(row, key, number), source)


def _field(row: dict[str, Any], key: str, number: int) -> str:
    value = row.get(key)
    if isinstance(value, str):
        return value
    keys = ", ".join(list(row)[:_SHOWN])
    what = "is no text" if key in row else "is missing"
    raise KeyError(f"row {number}: {key!r} {what}; name another one with --field (it has: {keys})")


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8 text"
    return str(error.args[0]) if isinstance(error, KeyError) else str(error)
