"""Rotary factors: fixed by the longest text that a model may serve, equal to transformers' for such a text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.target.batch import Span
from outrider.target.rotary import RotaryTable, fix_rotary
from target.tiny import LONGROPE, cache, reference, scattered, target_of, tokens

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "longrope": ("phi3", {}),
    "longrope_llama": ("llama", {"rope_parameters": LONGROPE | {"factor": 8.0}}),
    "dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 32}),
}
CPU = torch.device("cpu")
kinds = pytest.mark.parametrize("kind", KINDS)


def make(kind: str) -> Any:
    family, changes = KINDS[kind]
    return reference(family, **changes)


def factors(model: Any, positions: Tensor) -> Tensor:
    """cos and sin [positions, 2 * rotary dim]."""
    return torch.cat(model.model.rotary_emb(torch.zeros(1), positions[None]), dim=-1)[0]


@kinds
@pytest.mark.parametrize("length", [32, 100])
def test_a_long_neighbour_does_not_change_short_positions(kind: str, length: int) -> None:
    short, long = torch.arange(10), torch.arange(80, 90)
    free = make(kind)
    assert not torch.equal(factors(free, short), factors(free, torch.cat([short, long]))[:10])
    fixed = make(kind)
    fix_rotary(fixed, max(length, 90), CPU)
    assert torch.equal(factors(fixed, short), factors(fixed, torch.cat([short, long]))[:10])


@kinds
@pytest.mark.parametrize("length", [32, 90])
def test_the_factors_are_those_of_the_longest_text(kind: str, length: int) -> None:
    want = factors(make(kind), torch.arange(length))
    model = make(kind)
    fix_rotary(model, length, CPU)
    assert isinstance(model.model.rotary_emb, RotaryTable)
    assert torch.equal(factors(model, torch.arange(length)), want)


@kinds
def test_the_length_decides_for_short_texts_as_well(kind: str) -> None:
    short, long = make(kind), make(kind)
    fix_rotary(short, 32, CPU)
    fix_rotary(long, 90, CPU)
    assert not torch.equal(factors(short, torch.arange(10)), factors(long, torch.arange(10)))


@pytest.mark.parametrize("kind", ["longrope", "longrope_llama"])
def test_rows_of_a_short_text_keep_their_bits_beside_a_long_one(kind: str) -> None:
    target = target_of(make(kind), max_model_len=200)
    storage, pool = cache(target)
    context, pool = scattered(32, pool)
    other, _ = scattered(200, pool)
    ids = tokens(20)
    alone = target.forward([Span(ids, context, 0)], storage).logits
    target.forward([Span(tokens(150, 1), other, 0, logits=[])], storage)
    both = target.forward([Span(tokens(9, 2), other, 150, logits=[]), Span(ids, context, 0)], storage).logits
    assert torch.equal(both, alone)


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("length", [32, 200])
def test_a_target_uses_the_factors_of_its_max_model_len(lean: bool, length: int) -> None:
    model = make("longrope_llama")
    ids = tokens(20)
    longer = ids + [3] * (length - len(ids))
    want = model(torch.tensor([longer]), use_cache=False).logits[0, :20]
    target = target_of(model, max_model_len=length, lean=lean)
    storage, pool = cache(target)
    got = target.forward([Span(ids, scattered(32, pool)[0], 0)], storage).logits
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4 * float(want.abs().max()))


def test_scaled_factors_are_kept() -> None:
    model = reference("llama", rope_parameters=YARN)
    want = factors(model, torch.arange(40))
    assert float(want.abs().max()) > 1  # yarn scales cos and sin
    fix_rotary(model, 64, CPU)
    assert torch.equal(factors(model, torch.arange(40)), want)


def test_kinds_of_layers_have_their_own_tables() -> None:
    model = reference("gemma3")
    (table,) = fix_rotary(model, 40, CPU)
    assert set(table.tables) == {"full_attention", "sliding_attention"}
    assert not torch.equal(table.tables["full_attention"][0], table.tables["sliding_attention"][0])
    half = table(torch.zeros(1, dtype=torch.bfloat16), torch.tensor([[3, 39]]), "full_attention")
    assert [part.shape for part in half] == [(1, 2, 16)] * 2
    assert half[0].dtype == torch.bfloat16
