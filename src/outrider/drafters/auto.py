"""Auto: ``merge`` of every drafter that needs no setting, and of a draft model where one is given.

The prediction of a request that has one, what context and earlier outputs hold, and the draft model while it pays; the
trained head that comes with outrider where the target has one and no draft model is given.
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
    if context.has_head is None or not context.has_head(HEAD):
        found = [member for member in found if member.method != HEAD]
    if context.load_draft is not None and config.model is not None:
        model = next(member for member in found if member.method == "draft_model")
        left_out = "ouroboros" if context.load_draft(model).token_map is not None else "draft_model"
        found = [member for member in found if member.method != left_out]
    return MergeDrafter(config.method, build_members(config, context, found), context)
