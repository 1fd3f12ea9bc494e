"""Whether a head fits the target that it is loaded for: how often its likeliest token is the target's, over one text.

Wrong layers, a wrong vocabulary map or another target leave the text right and the drafts worthless; nothing but a
measurement shows that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.drafters.features import Features
from outrider.errors import ConfigError
from outrider.heads.decoder import HeadDecoder
from outrider.heads.stack import StackDecoder
from outrider.target.batch import Span
from outrider.target.model import Target

_BLOCK = 16
_FLOOR = 0.7  # of the recorded agreement: other weights formats move it a little


def agreement(target: Target, head: HeadDecoder | StackDecoder, tokens: Sequence[int]) -> float:
    """Share of the text's positions at which the head's first draft is the target's likeliest token."""
    slots = -(-len(tokens) // _BLOCK) * _BLOCK
    context = torch.arange(slots, dtype=torch.int32)
    layers = head.config.hidden_layers
    output = target.forward([Span(tokens, context, 0)], target.new_storage(slots, _BLOCK), layers)
    features = Features(target, head.config, output.hidden).rows()[:-1]
    drafted = head.target_ids[_first_drafts(head, target.embed(tokens[1:]), features, context).argmax(-1)]
    return float((drafted == output.logits[1:].argmax(-1)).float().mean())


def _first_drafts(head: HeadDecoder | StackDecoder, embedded: Tensor, features: Tensor, context: Tensor) -> Tensor:
    """Logits [rows, draft vocab] of the first token that is drafted at every row."""
    if isinstance(head, StackDecoder):
        seen = features if head.widths[0] == features.shape[1] else torch.cat((embedded, features), dim=1)
        return head.forward(0, seen)
    rows = Span([0] * len(embedded), context, 0)
    return head.forward([rows], head.new_storage(len(context), _BLOCK), embedded, head.enter(features))[0]


def check(target: Target, head: HeadDecoder | StackDecoder, name: str) -> None:
    """Raise ConfigError when a head with a recorded canary does much worse than when it was trained."""
    config = head.config
    if not config.canary:
        return
    found = agreement(target, head, config.canary)
    if found < _FLOOR * config.canary_agreement:
        raise ConfigError(
            f"model={name!r} drafts {found:.0%} of its test text right and did {config.canary_agreement:.0%} when it "
            "was trained: its layers, its vocabulary map or the target are not those that it was trained with"
        )
