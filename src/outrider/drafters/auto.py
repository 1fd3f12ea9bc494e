"""Auto: ``merge`` of every drafter that needs no setting, and of a draft model where one is given.

The prediction of a request that has one, what context and earlier outputs hold, and the draft model while it pays.
``members`` loads no tensor library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider.config import SpeculativeConfig
from outrider.drafters.table import ROWS

if TYPE_CHECKING:
    from outrider.drafters.merge import MergeDrafter
    from outrider.drafters.registry import DrafterContext


def members(config: SpeculativeConfig) -> Sequence[SpeculativeConfig]:
    """The drafters that ``auto`` joins; a draft of one token before is worth a row beside those of ``suffix``."""
    found = [
        SpeculativeConfig(method="prediction"),
        SpeculativeConfig(method="suffix"),
        SpeculativeConfig(method="ngram", prompt_lookup_min=1),
    ]
    if any(row.method == "token_recycling" for row in ROWS):
        found.append(SpeculativeConfig(method="token_recycling"))
    if config.model is not None:
        own = {key: getattr(config, key) for key in ("model", "draft_dtype", "max_model_len", "vocabulary")}
        found.append(SpeculativeConfig(method="draft_model", **own))
    return found


def build(config: SpeculativeConfig, context: DrafterContext) -> MergeDrafter:
    """The drafter of method ``auto``."""
    from outrider.drafters.merge import build

    return build(config, context)
