"""SpecTr: K independent paths of one draft model, merged into a trie that counts them (arXiv 2310.15141).

Its own rule is k-SEQ, which this method verifies with unless told otherwise: the paths are fresh independent samples,
those that go through an accepted token survive. Under `sample` the K paths start with the K best of log q + noise.
"""

from __future__ import annotations

from outrider.config import SpeculativeConfig
from outrider.drafters import draft_model
from outrider.drafters.base import Drafter
from outrider.drafters.draft_model import DraftModel
from outrider.drafters.registry import DrafterContext


class SpecTr(DraftModel):
    """A draft model that draws ``num_paths`` paths."""

    method = "spectr"


def build(config: SpeculativeConfig, context: DrafterContext) -> Drafter:
    """The drafter of method ``spectr``."""
    return draft_model.build(config, context, SpecTr)
