"""Auto: ``route`` between every drafter that needs no setting, and a draft model where one is given.

The prediction of a request that has one, then what copies from context and earlier outputs, then the draft model while
it pays. ``members`` loads no tensor library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider.config import SpeculativeConfig
from outrider.drafters.table import ROWS

if TYPE_CHECKING:
    from outrider.drafters.registry import DrafterContext
    from outrider.drafters.route import RouteDrafter

_FREE = ("prediction", "suffix", "ngram", "token_recycling")  # those of them that there are


def members(config: SpeculativeConfig) -> Sequence[SpeculativeConfig]:
    """The drafters that ``auto`` routes between."""
    known = {row.method for row in ROWS}
    found = [SpeculativeConfig(method=method) for method in _FREE if method in known]
    if config.model is not None:
        own = {key: getattr(config, key) for key in ("model", "draft_dtype", "max_model_len")}
        found.append(SpeculativeConfig(method="draft_model", **own))
    return found


def build(config: SpeculativeConfig, context: DrafterContext) -> RouteDrafter:
    """The drafter of method ``auto``."""
    from outrider.drafters.route import build

    return build(config, context)
