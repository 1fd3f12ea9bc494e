"""The command over files that a test writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine.tiny import Models
from outrider.cli.main import run


@dataclass
class Answer:
    """What one call said."""

    status: int
    out: str
    err: str

    @property
    def report(self) -> Any:
        """Of ``--json``."""
        return json.loads(self.out)

    @property
    def first(self) -> str:
        """The fault that is named first; empty for none."""
        findings = self.report["findings"]
        return findings[0]["diagnosis"] if findings else ""


Doctor = Callable[..., Answer]


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """``outrider doctor --json`` with ``pages`` of metrics as its sources, and other arguments."""

    def call(*arguments: str, pages: tuple[str, ...] = (), as_json: bool = True) -> Answer:
        paths = [tmp_path / f"{number}.txt" for number in range(len(pages))]
        for path, text in zip(paths, pages, strict=True):
            path.write_text(text)
        status = run(["doctor", *map(str, paths), *arguments, *(["--json"] if as_json else [])])
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """The tiny models of the engine's tests."""
    return Models(tmp_path_factory.mktemp("models"))
