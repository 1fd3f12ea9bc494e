"""The synthetic drafter keeps its rates."""

from __future__ import annotations

import pytest

from drafters.conformance import CONTEXT, one
from drafters.fakes import FakeSequence
from outrider.config import SpeculativeConfig
from outrider.drafters import registry
from outrider.drafters.synthetic import SyntheticDrafter
from outrider.errors import ConfigError

TEXT = [(7 * i * i + 3 * i) % 45 for i in range(4000)]


def accepted(drafter: SyntheticDrafter, position: int, seq_id: int = 0) -> int:
    seq = FakeSequence(TEXT[:position], seq_id=seq_id)
    (draft,) = drafter.propose([seq], [8], noise=None)  # type: ignore[arg-type]
    right = [a == b for a, b in zip(draft.tokens, TEXT[position:], strict=False)]
    return right.index(False) if False in right else len(right)


def test_conditional_rates_are_kept() -> None:
    rates = [0.9, 0.5, 0.7]
    drafter = SyntheticDrafter(rates, 50, 10_000, continuation=lambda tokens: TEXT[len(tokens) : len(tokens) + 8])
    counts = [accepted(drafter, position) for position in range(10, 3900)]
    for index, rate in enumerate(rates):
        reached = sum(count >= index for count in counts)
        assert sum(count > index for count in counts) / reached == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize(("rate", "expected"), [(1.0, 4), (0.0, 0)])
def test_certain_rates(rate: float, expected: int) -> None:
    drafter = SyntheticDrafter([rate] * 4, 50, 10_000, continuation=lambda tokens: TEXT[len(tokens) :])
    assert {accepted(drafter, position) for position in range(10, 300)} == {expected}


def test_the_prediction_is_the_oracle_of_a_configured_drafter() -> None:
    config = SpeculativeConfig(method="synthetic", synthetic_acceptance_rates=[1.0, 1.0])
    seq = FakeSequence([1, 2, 30], num_prompt_tokens=2, prediction=[30, 31, 32, 33])
    draft = one(registry.build(config, CONTEXT), seq, 8)
    assert list(draft.tokens) == [31, 32]
    assert draft.scores == [1.0, 1.0]


def test_coins_depend_on_the_text_and_not_on_the_sequence_id() -> None:
    drafter = SyntheticDrafter([0.5], 50, 10_000, continuation=lambda tokens: TEXT[len(tokens) :])
    first = [accepted(drafter, position, seq_id=1) for position in range(10, 60)]
    assert first == [accepted(drafter, position, seq_id=2) for position in range(10, 60)]
    assert 0 < sum(first) < 50


@pytest.mark.parametrize("rates", [[], [1.5], [-0.1]])
def test_impossible_rates(rates: list[float]) -> None:
    with pytest.raises(ConfigError, match="synthetic_acceptance_rates"):
        SyntheticDrafter(rates, 50, 100)
