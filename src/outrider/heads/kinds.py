"""The table of heads: which class a kind's config makes."""

from __future__ import annotations

from collections.abc import Callable

from outrider.heads.base import DraftHead
from outrider.heads.config import HeadConfig, PrefixConfig, RecurrentConfig, StackConfig
from outrider.heads.eagle import Eagle
from outrider.heads.eagle3 import Eagle3
from outrider.heads.hydra import Hydra
from outrider.heads.hydra_plus import HydraPlus
from outrider.heads.medusa import Medusa, StackHead
from outrider.heads.mtp import Mtp
from outrider.heads.recurrent import RecurrentHead

_RECURRENT: dict[str, Callable[[RecurrentConfig], RecurrentHead]] = {"eagle3": Eagle3, "eagle": Eagle, "mtp": Mtp}
_STACKS: dict[str, Callable[[StackConfig], StackHead]] = {"medusa": Medusa, "hydra": Hydra}


def make(config: HeadConfig) -> DraftHead:
    """An untrained head of ``config``."""
    if isinstance(config, RecurrentConfig):
        return _RECURRENT[config.kind](config)
    if isinstance(config, PrefixConfig):
        return HydraPlus(config)
    assert isinstance(config, StackConfig)
    return _STACKS[config.kind](config)
