"""Recorded requests as prompts: chat messages, completions, and lines of the server's request log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.bench.data import Prompt, load_prompts
from outrider.errors import ConfigError

_LOG = ("route", "status")  # keys of a line of `outrider serve --request-log`


def load(paths: Sequence[Path], limit_per_task: int | None = None) -> list[Prompt]:
    """The prompts of files and folders as ``outrider bench`` reads them, and of JSON lines of requests: rows with
    ``messages``, or of a request log with texts. Raises ConfigError for what holds no prompt."""
    out: list[Prompt] = []
    for path in paths:
        rows = _requests(path)
        out += load_prompts([path], limit_per_task) if rows is None else _limited(_prompts(path, rows), limit_per_task)
    return out


def _requests(path: Path) -> list[Mapping[str, Any]] | None:
    """The rows of a file of requests; None for anything else."""
    if path.suffix != ".jsonl" or not path.is_file():
        return None
    rows = []
    try:
        for line in path.read_text(encoding="utf-8").split("\n"):
            if line.strip():
                rows.append(json.loads(line))
    except (OSError, ValueError):
        return None  # the other reader says what is wrong
    first = rows[0] if rows and isinstance(rows[0], dict) else {}
    known = "messages" in first or all(key in first for key in _LOG)
    return rows if known and all(isinstance(row, dict) for row in rows) else None


def _prompts(path: Path, rows: Sequence[Mapping[str, Any]]) -> Iterable[Prompt]:
    found = []
    for number, row in enumerate(rows, start=1):
        task = str(row.get("task") or path.stem)
        if "messages" in row:
            found.append(_chat(path, number, row["messages"], task))
        found += [
            Prompt(f"{task}/{number}.{at}", task, (text,), rendered=True)
            for at, text in enumerate(row.get("prompts") or ())
            if isinstance(text, str) and text.strip()
        ]
    if not found:
        raise ConfigError(
            f"--prompts {path}: a request log without texts; record one with `outrider serve --request-log FILE "
            "--request-log-text`"
        )
    return found


def _chat(path: Path, number: int, messages: Any, task: str) -> Prompt:
    """A conversation up to its last user message, which is asked again."""
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise ConfigError(f"--prompts {path}, row {number}: messages is no list of objects")
    asked = [at for at, each in enumerate(messages) if each.get("role") == "user"]
    if not asked or not all(isinstance(each.get("content"), str) for each in messages[: asked[-1] + 1]):
        raise ConfigError(f"--prompts {path}, row {number}: messages holds no user message, or content that is no text")
    before = tuple({"role": str(each["role"]), "content": each["content"]} for each in messages[: asked[-1]])
    return Prompt(f"{task}/{number}", task, (messages[asked[-1]]["content"],), before=before)


def _limited(prompts: Iterable[Prompt], limit: int | None) -> list[Prompt]:
    tasks: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    out: list[Prompt] = []
    for rows in tasks.values():
        count = len(rows) if limit is None else min(limit, len(rows))
        out += [rows[at * len(rows) // count] for at in range(count)]
    return out
