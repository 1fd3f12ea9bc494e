"""Prompt sets: Spec-Bench and EAGLE question files, HumanEval, GSM8K, plain JSON lines, and text (a prompt a line)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, why_unread

MT_BENCH_CATEGORIES = frozenset(
    ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
)
SUFFIXES = (".jsonl", ".jsonl.gz", ".txt")
_WANTED = "JSON lines (.jsonl, .jsonl.gz; an object a line) or text with a prompt a line (.txt)"
_TEXT_KEYS = ("turns", "prompt", "question", "text")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation of a prompt set: the user's turns in order, and the expected output if the row has one.

    ``before``: messages in front of the first turn. ``rendered``: the turn went through a chat template already.
    """

    prompt_id: str
    task: str
    turns: tuple[str, ...]
    prediction: str | None = None
    before: tuple[dict[str, str], ...] = ()
    rendered: bool = False


def load_prompts(paths: Iterable[Path], limit_per_task: int | None = None) -> list[Prompt]:
    """The prompts of files and of folders (searched through), task by task in order of first appearance.

    In a folder, JSON lines that hold no prompt (reference answers) are passed over; in a named file they are an error.

    ``limit_per_task`` keeps that many prompts of each task, spread evenly over the task, so that a file sorted by
    category keeps all its categories. Raises ConfigError for a missing path, an unreadable row or an empty set.
    """
    tasks: dict[str, list[Prompt]] = {}
    paths = list(paths)
    for path, listed in _files(paths):
        for prompt in _read(path, listed):
            tasks.setdefault(prompt.task, []).append(prompt)
    prompts = [prompt for rows in tasks.values() for prompt in _spread(rows, limit_per_task)]
    if not prompts:
        names = ", ".join(map(str, paths))
        raise ConfigError(f"--prompts {names}: holds no prompt; give {_WANTED}, or a folder of such files")
    return prompts


def _spread(rows: Sequence[Prompt], limit: int | None) -> Sequence[Prompt]:
    if limit is None or limit >= len(rows):
        return rows
    return [rows[index * len(rows) // limit] for index in range(limit)]


def _files(paths: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Files, and whether the caller named them (or a folder that holds them)."""
    for path in paths:
        if path.is_dir():
            yield from ((file, False) for file in sorted(path.rglob("*")) if file.name.endswith(SUFFIXES))
        elif path.exists():
            if path.suffix and not path.name.endswith(SUFFIXES):
                raise ConfigError(f"--prompts {path}: {path.suffix} files are not read; give {_WANTED}")
            yield path, True
        else:
            raise ConfigError(f"--prompts {path}: no such file or folder")


def _read(path: Path, listed: bool) -> list[Prompt]:
    lines = _lines(path)
    if ".jsonl" not in path.suffixes:
        return [Prompt(f"{path.stem}/{number}", path.stem, (line,)) for number, line in enumerate(lines)]
    rows = [_row(path, number, line) for number, line in enumerate(lines, start=1)]
    if rows and not listed and not any(key in rows[0] for key in _TEXT_KEYS):
        return []  # a folder of prompts may hold other rows too, such as reference answers
    categories = {str(row.get("category", "")) for row in rows}
    # EAGLE's files hold one category each, and call GSM8K "math", which is also one of MT-bench's eight
    single = _folder_task(path) if len(categories) == 1 else None
    return [_prompt(path, number, row, single) for number, row in enumerate(rows, start=1)]


def _lines(path: Path) -> list[str]:
    try:
        if path.name.endswith(".gz"):
            with gzip.open(path, "rt", encoding="utf-8") as file:
                text = file.read()
        else:
            text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise ConfigError(f"--prompts {path}: cannot be read ({why_unread(error)})") from None
    return [line for line in text.split("\n") if line.strip()]


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"--prompts {path}, row {number}: not JSON ({error.msg})") from None
    if not isinstance(row, dict):
        raise ConfigError(f"--prompts {path}, row {number}: not a JSON object")
    return row


def _folder_task(path: Path) -> str:
    stem = path.name.split(".")[0]
    return (path.resolve().parent.name if stem in ("question", "train", "test") else stem).lower()


def _prompt(path: Path, number: int, row: dict[str, Any], single: str | None) -> Prompt:
    key = next((key for key in _TEXT_KEYS if key in row), None)
    if key is None:
        also = "; only `outrider advise` reads recorded requests" if "messages" in row else ""
        wanted = f"has none of the keys {', '.join(_TEXT_KEYS)}{also}"
        raise ConfigError(f'--prompts {path}, row {number}: {wanted}; write rows such as {{"prompt": "Why?"}}')
    turns = row[key] if isinstance(row[key], list) else [row[key]]
    if not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ConfigError(f"--prompts {path}, row {number}: {key!r} is not text, or is empty")
    category = str(row.get("task") or row.get("category") or "")
    task = single or ("mt_bench" if category in MT_BENCH_CATEGORIES else category) or _folder_task(path)
    name = row.get("question_id", row.get("task_id", row.get("id", number)))
    prediction = None if row.get("prediction") is None else str(row["prediction"])
    return Prompt(f"{task}/{name}", str(row.get("task") or task), tuple(turns), prediction)
