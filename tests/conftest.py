"""What every test gets: one thread, and a skip with a reason where the real model is missing."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import pytest
import torch

from outrider.target import known

torch.set_num_threads(1)  # and so are native.threads() until a test says otherwise


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``real_model`` when the embedded model was never fetched."""
    if known.cached("smollm2-135m") is not None:
        return
    skip = pytest.mark.skip(reason="needs `outrider models get smollm2-135m`")
    for item in items:
        if "real_model" in item.keywords:
            item.add_marker(skip)
