"""The tiny models of the engine's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.tiny import Models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(Path(tmp_path_factory.mktemp("models")))
