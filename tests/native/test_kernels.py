"""The kernels against torch, for every shape that has code of its own, and the bits of their rows."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider import native
from outrider.cache.storage import KVStorage
from outrider.core import noise
from outrider.drafters.sampling import likeliest
from outrider.engine.laws import row_argmax, row_topk
from outrider.target.attention import Backend, GatherBackend, HeadShape, NativeBackend
from outrider.target.batch import FlatBatch, Span, flatten
from outrider.target.formats import STORED_AS, rounded
from outrider.target.packed import NativeKernel

LIBRARY = native.library()
if LIBRARY is None:
    pytest.skip(native.status().reason, allow_module_level=True)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    yield
    native.set_threads(1)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FORMATS = ["float32", "float16", "bfloat16", "int8", "int4"]


def as_seen(x: Tensor, weight_format: str) -> Tensor:
    """Activations as the kernel of a format takes them: for int8 and int4 rounded in blocks of 32."""
    if weight_format not in ("int8", "int4"):
        return x.double()
    blocks = torch.nn.functional.pad(x, (0, -x.shape[1] % 32)).view(len(x), -1, 32).double()
    scales = blocks.abs().amax(-1, keepdim=True) / 127
    codes = (blocks / scales.masked_fill(scales == 0, 1.0)).round()
    return (codes * scales).flatten(1)[:, : x.shape[1]]


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("out", "inner"), [(1, 1), (15, 7), (16, 16), (17, 33), (64, 48), (100, 576), (257, 128)])
def test_linear_is_a_matrix_product_whose_rows_keep_their_bits(
    out: int, inner: int, bias: bool, weight_format: str
) -> None:
    given, offset = drawn(out, inner), drawn(out, seed=1) if bias else None
    blocked = weight_format in ("int8", "int4")
    weight = rounded(given, weight_format) if blocked else given.to(STORED_AS[weight_format]).float()
    kernel = NativeKernel(LIBRARY, given, offset, weight_format)
    x = drawn(40, inner, seed=2)
    seen = as_seen(x, weight_format)
    want = torch.nn.functional.linear(seen, weight.double(), None if offset is None else offset.double())
    singles = torch.cat([kernel(row[None]) for row in x])
    torch.testing.assert_close(singles.double(), want, rtol=0, atol=1e-6 * inner**0.5 * 8)
    for threads in (1, 2, 3):
        native.set_threads(threads)
        for rows in range(1, 41):
            assert torch.equal(kernel(x[:rows]), singles[:rows]), (threads, rows)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_linear_takes_no_rows_and_strided_rows(weight_format: str) -> None:
    kernel = NativeKernel(LIBRARY, drawn(20, 24), None, weight_format)
    assert kernel(drawn(0, 24)).shape == (0, 20)
    x = drawn(6, 48)
    assert torch.equal(kernel(x[:, :24]), kernel(x[:, :24].contiguous()))


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_value_that_is_not_finite_shows_in_its_row_alone(weight_format: str, bad: float) -> None:
    kernel = NativeKernel(LIBRARY, drawn(20, 70), None, weight_format)
    x = drawn(3, 70)
    clean = kernel(x)
    x[1, 40] = bad
    out = kernel(x)
    assert not out[1].isfinite().any()
    assert torch.equal(out[[0, 2]], clean[[0, 2]])


def test_blocks_of_zeros_and_of_tiny_numbers_are_products_too() -> None:
    weight = drawn(16, 96)
    weight[:, 32:64] = 0.0
    for weight_format in ("int8", "int4"):
        kernel = NativeKernel(LIBRARY, weight, None, weight_format)
        x = torch.cat([drawn(1, 32), torch.zeros(1, 32), 1e-30 * drawn(1, 32)], dim=1)
        want = as_seen(x, weight_format) @ rounded(weight, weight_format).double().T
        torch.testing.assert_close(kernel(x).double(), want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("weight_format", ["float16", "bfloat16"])
def test_every_short_weight_is_widened_exactly(weight_format: str) -> None:
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(STORED_AS[weight_format])
    halves = halves[halves.isfinite()]
    weight = torch.nn.functional.pad(halves, (0, -len(halves) % 64)).view(-1, 1)
    kernel = NativeKernel(LIBRARY, weight, None, weight_format)
    assert torch.equal(kernel(torch.ones(1, 1))[0], weight[:, 0].float())


@pytest.mark.parametrize("weight_format", FORMATS)
def test_linear_writes_nothing_beyond_its_rows(weight_format: str) -> None:
    kernel = NativeKernel(LIBRARY, drawn(17, 8), None, weight_format)
    x, out = drawn(3, 8), torch.full((4, 17), 7.0)
    LIBRARY.linear(ctypes.byref(kernel.layer), x.data_ptr(), out.data_ptr(), 3, 1)
    assert torch.equal(out[:3], kernel(x))
    assert (out[3] == 7.0).all()


DIMS = [4, 8, 12, 16, 32, 48, 64, 80, 96, 112, 128, 192, 256]


def batch_of(lengths: list[int], seed: int) -> tuple[FlatBatch, int]:
    """Chunks and trees over contexts in scattered slots."""
    slots = torch.randperm(16 * 40, generator=torch.Generator().manual_seed(seed)).to(torch.int32)
    spans: list[Span] = []
    for place, length in enumerate(lengths):
        context = slots[160 * place : 160 * (place + 1)].contiguous()
        parents = [-1, 0, 0, 1] if place % 2 else None
        spans.append(Span([1] * 4, context, length, parents=parents))
    return flatten(spans), 16 * 40


def attend(
    backend: Backend, shape: HeadShape, batch: FlatBatch, slots: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    storage = KVStorage(1, slots, shape.kv_heads, shape.dim, dtype, block_size=16)
    cached = drawn(2, slots, shape.kv_heads, shape.dim, seed=5)
    storage.write(0, range(slots), *cached)
    q, k, v = (drawn(batch.num_rows, heads, shape.dim, seed=heads + 7) for heads in (shape.q_heads, shape.kv_heads, 9))
    return backend(q, k, v[:, : shape.kv_heads].contiguous(), 0, storage, batch, shape), torch.stack(
        storage.read(0, range(slots))
    )


@pytest.mark.parametrize("dim", DIMS)
@settings(max_examples=6, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 150), min_size=1, max_size=4),
    window=st.sampled_from([0, 1, 5, 16, 40]),
    softcap=st.sampled_from([0.0, 3.0]),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1)]),
    seed=st.integers(0, 9),
)
def test_attention_is_what_torch_computes(
    dim: int, lengths: list[int], window: int, softcap: float, heads: tuple[int, int], seed: int
) -> None:
    shape = HeadShape(*heads, dim, dim**-0.5, window, softcap)
    batch, slots = batch_of(lengths, seed)
    got, cached = attend(NativeBackend(LIBRARY), shape, batch, slots)
    want, expected = attend(GatherBackend(), shape, batch, slots)
    assert torch.equal(cached, expected)
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dim", [12, 64])
def test_attention_over_float16_keys_is_what_torch_computes(dim: int) -> None:
    batch, slots = batch_of([100, 20, 0, 150], 3)
    shape = HeadShape(4, 2, dim, dim**-0.5)
    got, cached = attend(NativeBackend(LIBRARY), shape, batch, slots, torch.float16)
    want, expected = attend(GatherBackend(), shape, batch, slots, torch.float16)
    assert torch.equal(cached, expected)
    torch.testing.assert_close(got, want, rtol=0, atol=2e-5)


def test_attention_survives_scores_of_any_size() -> None:
    batch, slots = batch_of([100, 20], 0)
    for scale in (1e-6, 1e3):
        shape = HeadShape(2, 2, 32, scale)
        got, _ = attend(NativeBackend(LIBRARY), shape, batch, slots)
        want, _ = attend(GatherBackend(), shape, batch, slots)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-2)


@pytest.mark.parametrize("size", [1, 15, 16, 33, 1000, 120_000])
def test_argmax_is_the_first_of_the_largest(size: int) -> None:
    best = row_argmax(LIBRARY)
    for x in (drawn(3, size), drawn(3, size).round(), -torch.ones(3, size), torch.full((2, size), -torch.inf)):
        want = [row.index(max(row)) for row in x.tolist()]
        for threads in (1, 2):
            native.set_threads(threads)
            assert best(x) == want
        assert best(x[:, ::2])[0] == x[:, ::2].tolist()[0].index(max(x[:, ::2].tolist()[0]))


@pytest.mark.parametrize("size", [1, 15, 64, 65, 1000, 60_000])
@pytest.mark.parametrize("count", [1, 8, 100])
def test_topk_is_sorted_and_takes_the_first_of_equals(size: int, count: int) -> None:
    count = min(size, count)
    best = row_topk(LIBRARY)
    for x in (drawn(3, size), drawn(3, size).round(), -torch.ones(3, size), torch.full((2, size), -torch.inf)):
        want = [sorted(range(size), key=lambda i, row=row: (-row[i], i))[:count] for row in x.tolist()]
        for threads in (1, 2):
            native.set_threads(threads)
            assert best(x, count).tolist() == want
    wide = drawn(3, 2 * size)[:, ::2]
    assert best(wide, count).tolist() == wide.topk(count).indices.tolist()
    assert row_topk(None)(wide, count).tolist() == wide.topk(count).indices.tolist()


@pytest.mark.parametrize(("size", "count"), [(5, 5), (64, 3), (1000, 1), (60_000, 8)])
def test_the_likeliest_tokens_come_with_their_shares_of_the_law(size: int, count: int) -> None:
    x = 3 * drawn(3, 2 * size)[:, ::2]
    x[1, 2] = -torch.inf
    want = x.softmax(-1).topk(count)
    for threads in (1, 2):
        native.set_threads(threads)
        places, shares = likeliest(x, count)
        assert torch.equal(places, want.indices)
        torch.testing.assert_close(shares, want.values, atol=1e-7, rtol=1e-5)
        again = likeliest(x[:1].expand(3, -1), count)
        assert torch.equal(again[0], places[:1].expand(3, -1))
        assert torch.equal(again[1], shares[:1].expand(3, -1))


def test_norm_is_the_twin_of_torch() -> None:
    x, weight, out = drawn(3, 40), drawn(40, seed=1), torch.empty(3, 40)
    LIBRARY.norm(x.data_ptr(), weight.data_ptr(), 3, 40, 1e-5, out.data_ptr())
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (40,), weight, 1e-5))


@pytest.mark.parametrize("count", [1, 3, 50])
def test_topk_of_noisy_scores_is_the_twin_of_core(count: int) -> None:
    scores = 3 * drawn(1500)
    ids = (ctypes.c_int64 * count)()
    words = noise.noise_words(11, 4)
    found = LIBRARY.gumbel_topk(scores.data_ptr(), 1500, *words, count, ids)
    assert found == count
    assert list(ids) == noise.gumbel_topk(scores, 11, 4, count)
    assert LIBRARY.gumbel_argmax(scores.data_ptr(), 1500, *words) == ids[0]
    scores[7] = torch.nan
    assert LIBRARY.gumbel_topk(scores.data_ptr(), 1500, *words, count, ids) == -2
    scores.fill_(-torch.inf)
    assert LIBRARY.gumbel_topk(scores.data_ptr(), 1500, *words, count, ids) == 0
