"""The target with narrower weights as drafter (QSpec, arXiv 2410.11305): int8 beside wider ones, int4 beside int8.

The narrow copy reads the target's own cache of the committed tokens, and the verify step overwrites what it writes, so
that its rounding never reaches a committed key or value. Its law is that of its own logits.
"""

from __future__ import annotations

from outrider.config import SpeculativeConfig
from outrider.drafters.registry import DrafterContext
from outrider.drafters.self_draft import SelfDrafter, target_of
from outrider.target.facts import ModelFacts
from outrider.target.narrow import narrow_format


class SelfQuantized(SelfDrafter):
    """Drafts with a copy of the target's weights in a narrower format."""

    method = "self_quantized"


def format_for(config: SpeculativeConfig, facts: ModelFacts) -> str:
    """The format of the copy. Raises ConfigError when it is not narrower than the target's."""
    return narrow_format(config.draft_dtype, facts)


def build(config: SpeculativeConfig, context: DrafterContext) -> SelfQuantized:
    """The drafter of a config; the engine has loaded the copy."""
    handle = target_of(config.method, context)
    return SelfQuantized(handle, handle.narrow(config.draft_dtype), context.eos_ids)
