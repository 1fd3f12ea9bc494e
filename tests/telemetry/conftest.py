"""The tiny models of the engine's tests."""

from __future__ import annotations

import pytest

from engine.tiny import Models


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Engines over the tiny models."""
    return Models(tmp_path_factory.mktemp("models"))
