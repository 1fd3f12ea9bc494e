"""Weight formats: what rounding keeps, and that a layout holds the codes it was given."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider.target.formats import Blocks, pack_blocks, quantise, rounded


def drawn(out: int, inner: int, seed: int = 0) -> Tensor:
    return torch.randn(out, inner, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("name", "levels"), [("int8", 254), ("int4", 15)])
@pytest.mark.parametrize("inner", [1, 32, 70])
def test_an_error_is_at_most_half_a_step(name: str, levels: int, inner: int) -> None:
    weight = drawn(7, inner)
    blocks = torch.nn.functional.pad(weight, (0, -inner % 32)).view(7, -1, 32)
    spans = blocks.amax(-1) - blocks.amin(-1) if name == "int4" else 2 * blocks.abs().amax(-1)
    error = torch.nn.functional.pad((rounded(weight, name) - weight).abs(), (0, -inner % 32)).view_as(blocks)
    assert bool((error.amax(-1) <= 0.51 * spans / levels + 2e-3 * blocks.abs().amax(-1)).all())
    assert rounded(weight, name).shape == weight.shape


def test_float_formats_are_not_touched() -> None:
    weight = drawn(3, 5)
    assert rounded(weight, "float16") is weight


def test_int8_keeps_what_is_in_blocks_of_8_bits_already() -> None:
    codes = torch.randint(-127, 128, (5, 64), generator=torch.Generator().manual_seed(1))
    codes[:, ::32] = 127
    scales = drawn(5, 2).abs().half()
    once = Blocks(codes.to(torch.int8), scales, None)
    again = quantise(once.values(), "int8")
    assert torch.equal(again.codes, once.codes)
    assert torch.equal(again.scales, once.scales)


@settings(max_examples=20, deadline=None)
@given(out=st.integers(1, 70), tiles=st.integers(1, 3), minima=st.booleans(), seed=st.integers(0, 9))
def test_every_code_lies_where_the_kernel_looks_for_it(out: int, tiles: int, minima: bool, seed: int) -> None:
    blocks = quantise(drawn(out, 32 * tiles, seed), "int4" if minima else "int8")
    packed = pack_blocks(blocks)
    assert packed.codes.data_ptr() % 64 == 0
    raw = packed.codes.flatten()
    for row, column in [(0, 0), (out - 1, 32 * tiles - 1), (out // 2, 17), (out // 3, 32 * tiles - 14)]:
        group, lane, tile, inner = row // 16, row % 16, column // 32, column % 32
        if minima:
            byte = int(raw[((group * tiles + tile) * 4 + inner % 16 // 4) * 64 + lane * 4 + inner % 4])
            code = byte >> 4 if inner >= 16 else byte & 15
        else:
            code = int(raw[((group * tiles + tile) * 8 + inner // 4) * 64 + lane * 4 + inner % 4]) - 128
        assert code == int(blocks.codes[row, column])
