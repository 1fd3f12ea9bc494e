"""A head's folder, in whatever layout it is."""

from __future__ import annotations

from pathlib import Path

from outrider.heads.base import DraftHead
from outrider.heads.layouts.base import Bound, Checkpoint
from outrider.heads.layouts.table import LAYOUTS, layout_of


def save(head: DraftHead, folder: Path) -> None:
    """Write ``head`` into ``folder``; half precision, except for the ids."""
    LAYOUTS["outrider"].write(head, head.config.target).write(folder)


def load(folder: Path, target: Bound | None = None) -> DraftHead:
    """The head in float32. Raises ModelError where ``folder`` holds none, for tensors that are missing, surplus or
    misshapen, for what is not supported, and for heads of others without a ``target``."""
    checkpoint = Checkpoint.read(folder)
    return layout_of(checkpoint).read(checkpoint, target)
