"""The command line with a fake engine behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fake_llm import FakeLLM
from outrider.cli import bench, chat, check, demo, generate, models, tune
from outrider.cli.main import run


@dataclass
class Outcome:
    """What one call of the command did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as one JSON document."""
        return json.loads(self.out)


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call the command with arguments; ``llm`` chooses another engine than ``FakeLLM``."""

    def call(*arguments: str, llm: type[FakeLLM] = FakeLLM) -> Outcome:
        def open_fake(model: str, *, threads: int | None, configs: Any, **settings: Any) -> FakeLLM:
            return llm(model, threads=threads, speculative_config=list(configs) or None, **settings)

        for module in (bench, chat, check, demo, generate, models, tune):
            monkeypatch.setattr(module, "open_llm", open_fake)
        monkeypatch.setenv("COLUMNS", "200")
        status = run(arguments)
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return call
