"""What is said about a step, for every reason that a step can have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.core.draft import EMPTY, Draft
from outrider.engine.step import Work
from outrider.telemetry.words import planned

CHAIN = Draft([5, 6, 7])
SPED = "2 of 3 proposed tokens verified in the last step: expected to be 1.50x as fast"
NONE = "nothing drafted in the last step: none of 3 proposed tokens was likely enough to save time"
OFF = "speculation off: a draft of draft_model costs more time than it saves"


def step(**values: Any) -> Work:
    seq = {"off_reason": "", "method": "ngram", "finish_reason": None, "planned": "", "fixed_tokens": None}
    seq |= {key: values.pop(key) for key in list(values) if key in seq}
    rows = values.pop("rows", 1)
    defaults = {"decoding": True, "proposed": EMPTY, "draft": EMPTY, "num_asked": 0}
    return cast(
        Work,
        SimpleNamespace(seq=SimpleNamespace(**seq), part=SimpleNamespace(num_rows=rows), **{**defaults, **values}),
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"decoding": False}, "prefill"),
        ({"off_reason": "speculation off: drafter ngram failed"}, "speculation off: drafter ngram failed"),
        ({"method": ""}, "plain decoding: no method"),
        ({"rows": 4}, "nothing drafted: the sequence was recomputed after a preemption"),
        ({"num_asked": 1}, "asked for up to 1 token: the drafter had nothing to propose"),
        ({"finish_reason": "length"}, "nothing drafted: one token was left"),
        ({"planned": OFF}, OFF),
        ({"planned": SPED}, "nothing drafted: the drafter rests while none of its drafts pays"),
        (
            {"num_asked": 8, "proposed": CHAIN, "draft": CHAIN.keep([0, 1]), "planned": SPED},
            "asked for up to 8 tokens, 3 proposed, 2 verified, 1 pruned as too unlikely to pay for their rows: "
            "expected to be 1.50x as fast as a plain step",
        ),
        (
            {"num_asked": 8, "proposed": CHAIN, "planned": NONE},
            "asked for up to 8 tokens, 3 proposed, none verified: none of 3 proposed tokens was likely enough to "
            "save time",
        ),
        (
            {"num_asked": 3, "proposed": CHAIN, "draft": CHAIN, "fixed_tokens": 3},
            "asked for up to 3 tokens, 3 proposed, all verified: K is fixed at 3",
        ),
        (
            {"num_asked": 3, "proposed": CHAIN, "fixed_tokens": 3},
            "asked for up to 3 tokens, 3 proposed, none verified: its rows or laws were not valid",
        ),
        (
            {"num_asked": 3, "proposed": CHAIN, "planned": SPED},
            "asked for up to 3 tokens, 3 proposed, none verified: its",
        ),
    ],
)
def test_every_reason_has_its_sentence(values: dict[str, Any], words: str) -> None:
    assert planned(step(**values)).startswith(words)
