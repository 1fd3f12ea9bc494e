"""Auto: ``merge`` of every drafter that needs no setting, and of a draft model where one is given.

The prediction of a request that has one, what context and earlier outputs hold, and the draft model while it pays.
Without a draft model, the trained head that comes with outrider where the target has one, else token recycling.
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


HEAD = "eagle3"
_INSTEAD = "token_recycling"  # beside a head its nodes bring less than looking after them takes


def members(config: SpeculativeConfig) -> Sequence[SpeculativeConfig]:
    """The drafters that ``auto`` joins; a draft of one token before is worth a row beside those of ``suffix``."""
    found = [
        SpeculativeConfig(method="prediction"),
        SpeculativeConfig(method="grammar"),
        SpeculativeConfig(method="suffix"),
        SpeculativeConfig(method="ngram", prompt_lookup_min=1),
    ]
    if any(row.method == _INSTEAD for row in ROWS):
        found.append(SpeculativeConfig(method=_INSTEAD))
    if config.model is not None:
        own = {key: getattr(config, key) for key in ("model", "draft_dtype", "max_model_len")}
        found.append(SpeculativeConfig(method="draft_model", vocabulary=config.vocabulary, **own))
        found.append(SpeculativeConfig(method="ouroboros", **own))
    else:
        found.append(SpeculativeConfig(method=HEAD))
    return found


def build(config: SpeculativeConfig, context: DrafterContext) -> MergeDrafter:
    """The drafter of method ``auto``. A draft model drafts by phrases (``ouroboros``) where it has the target's
    vocabulary, else as ``draft_model``."""
    from outrider.drafters.members import build_members
    from outrider.drafters.merge import MergeDrafter

    found = members(config)
    if any(member.method == HEAD for member in found):
        has_head = context.has_head is not None and context.has_head(HEAD)
        left_out = _INSTEAD if has_head else HEAD
        found = [member for member in found if member.method != left_out]
    if context.load_draft is not None and config.model is not None:
        model = next(member for member in found if member.method == "draft_model")
        left_out = "ouroboros" if context.load_draft(model).token_map is not None else "draft_model"
        found = [member for member in found if member.method != left_out]
    return MergeDrafter(config.method, build_members(config, context, found), context)
