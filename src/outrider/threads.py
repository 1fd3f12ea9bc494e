"""Threads: what must be set before torch is imported, and how many to use."""

from __future__ import annotations

import os

# How long an idle OpenMP thread spins before it sleeps. libgomp's default (spin for ever when cores are free) makes a
# 70 us layer take 8,000 us as soon as anything else uses a core; not spinning at all costs a wake-up per layer.
_SPIN = "20000"


def prepare(threads: int | None = None) -> None:
    """Set OpenMP up for few-row forwards; call it before torch is imported. ``threads``: as asked for, or None."""
    if "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = _SPIN
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
