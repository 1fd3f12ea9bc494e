"""What a head is trained on, in colour: prompts are dim, what is learnt is green, what it cannot draft is yellow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text
from torch import Tensor

from outrider.train.answers import Sample

LEGEND = Text.assemble(
    ("prompt", "dim"), "  ", ("learnt", "green"), "  ", ("learnt, and not in the draft vocabulary", "yellow"), "  ",
    ("behind --longest", "red"),
)  # fmt: skip


def view(sample: Sample, tokenizer: Any, ids: Tensor, longest: int) -> Text:
    """One text, token by token. ``ids``: the draft vocabulary."""
    known = set(ids.tolist())
    out = Text()
    for place, token in enumerate(sample.token_ids):
        if place < sample.num_prompt_tokens:
            style = "dim"
        elif place >= longest:
            style = "red"
        else:
            style = "green" if token in known else "yellow"
        out.append(tokenizer.decode([token], skip_special_tokens=False), style)
    return out


def chosen(samples: Sequence[Sample], count: int) -> Sequence[Sample]:
    """``count`` of the texts, spread evenly."""
    return [samples[index * len(samples) // count] for index in range(min(count, len(samples)))]
