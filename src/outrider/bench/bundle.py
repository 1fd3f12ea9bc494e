"""Result bundles: what ran (manifest), what came out (summary), and every answer (one JSON line each)."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from outrider import __version__
from outrider.bench.runner import Results
from outrider.errors import ConfigError

MANIFEST, SUMMARY, ANSWERS = "manifest.json", "summary.json", "prompts.jsonl"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def manifest(model: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Versions, machine, model facts and arguments: what is needed to run the same thing again."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "outrider": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cpu": cpu_model(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        },
        "model": dict(model),
        "arguments": dict(arguments),
    }


def check_place(out: str | None) -> None:
    """Raise ConfigError, before a long run, when ``out`` is a place where no bundle can be written."""
    if out is None or out == "-":
        return
    path = Path(out)
    folder = path.parent if path.suffix == ".json" else path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(f"--json {out}: cannot be written ({error.strerror}); name another place") from None


def write(out: str, manifest: Mapping[str, Any], summary: Mapping[str, Any], results: Results | None = None) -> Path:
    """Write a bundle: a folder with ``manifest.json``, ``summary.json`` and ``prompts.jsonl``, or one ``.json`` file
    with manifest and summary. Raises ConfigError when the place cannot be written."""
    path = Path(out)
    try:
        if path.suffix == ".json":
            path.parent.mkdir(parents=True, exist_ok=True)
            _dump(path, {"manifest": manifest, "summary": summary})
            return path
        path.mkdir(parents=True, exist_ok=True)
        _dump(path / MANIFEST, manifest)
        _dump(path / SUMMARY, summary)
        if results is not None:
            with (path / ANSWERS).open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row.to_dict(), ensure_ascii=False) + "\n" for row in results.rows)
    except OSError as error:
        raise ConfigError(f"--json {out}: cannot be written ({error.strerror}); name another place") from None
    return path


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model said to a prompt, as a bundle keeps it."""

    prompt_id: str
    token_ids: Sequence[int]
    text: str


def answer(row: Mapping[str, Any]) -> Answer | None:
    """The answer in a line of ``prompts.jsonl``; None for a line of another file."""
    prompt_id, ids, text = row.get("prompt_id"), row.get("token_ids"), row.get("text")
    if not isinstance(prompt_id, str) or not isinstance(text, str) or not isinstance(ids, list):
        return None
    return Answer(prompt_id, ids, text) if all(isinstance(id_, int) and id_ >= 0 for id_ in ids) else None


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout that this package runs from, with ``-dirty`` for changes; None when installed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        return f"{head}-dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else head
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    result = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return result.stdout.strip()
