"""A row's bits depend on its own tokens and positions alone, and what breaks that is found at load."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache as remembered
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outrider import native
from outrider.cache.storage import KVStorage
from outrider.target import attention, packed
from outrider.target.attention import GatherBackend, HeadShape, SdpaBackend
from outrider.target.batch import FlatBatch, Span
from outrider.target.model import Target, load_target
from target.tiny import cache, reference, scattered, target_of, tokens

MODELS = [
    ("llama", True),
    ("llama_odd", True),
    ("qwen2_window", True),
    ("qwen3", True),
    ("mistral", True),
    ("llama", False),
    ("gemma2", False),
    ("gemma3", False),
    ("phi3", False),
    ("qwen3_moe", False),
    ("mixtral", False),
]
NAMES = [f"{family}-{'lean' if lean else 'general'}" for family, lean in MODELS]
models = pytest.mark.parametrize(("family", "lean"), MODELS, ids=NAMES)
kernels = pytest.mark.parametrize(
    ("dtype", "backend"),
    [
        ("float32", "native"),
        ("float16", "native"),
        ("bfloat16", "native"),
        ("int8", "native"),
        ("int4", "native"),
        ("float32", "gather"),
        ("float16", "gather"),
    ],
)
PREFIX, MOST = 9, 32


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    yield
    native.set_threads(1)


@remembered
def exact_target(family: str, lean: bool, dtype: str, backend: Any) -> Target:
    if backend == "native" and native.library() is None:
        pytest.skip(native.status().reason)
    native.set_threads(2)  # the tiles are sought for two threads
    target = target_of(reference(family), dtype, lean=lean, backend=backend)
    native.set_threads(1)
    assert target.exact, target.exact_reason
    return target


def alone(target: Target, ids: list[int]) -> Tensor:
    """Logits [len(ids), vocab] of one chunk in slots that follow each other, with one thread."""
    native.set_threads(1)
    context = torch.arange(96, dtype=torch.int32)
    return target.forward([Span(ids, context, 0)], target.new_storage(96, 16)).logits


@kernels
@models
def test_bits_are_equal_for_every_number_of_rows(family: str, lean: bool, dtype: str, backend: str) -> None:
    target = exact_target(family, lean, dtype, backend)
    ids = tokens(PREFIX + MOST)
    want = alone(target, ids)[PREFIX:]
    storage, pool = cache(target)
    context, _ = scattered(len(ids), pool)
    target.forward([Span(ids[:PREFIX], context, 0, logits=[])], storage)
    for count in range(1, MOST + 1) if lean else (1, 2, 3, 5, 8, 13, 16, 21, 31, 32):
        native.set_threads(1 + count % 2)
        got = target.forward([Span(ids[PREFIX : PREFIX + count], context, PREFIX)], storage).logits
        assert torch.equal(got, want[:count]), count


@st.composite
def scenarios(draw: Any) -> dict[str, Any]:
    length = draw(st.integers(2, 60))
    size = draw(st.integers(1, 7))
    return {
        "ids": tokens(length, draw(st.integers(0, 99))),
        "cuts": sorted(draw(st.sets(st.integers(1, length - 1), max_size=4))),
        "parents": [draw(st.integers(-1, row - 1)) for row in range(size)],
        "draft": tokens(size, draw(st.integers(100, 199))),
        "neighbours": draw(st.lists(st.integers(1, 9), max_size=2)),
        "first": draw(st.booleans()),
        "threads": draw(st.sampled_from([1, 2])),
        "slots": draw(st.integers(0, 9)),
    }


@kernels
@models
@settings(max_examples=4, deadline=None)
@given(case=scenarios())
def test_bits_do_not_depend_on_the_company(family: str, lean: bool, dtype: str, backend: str, case: Any) -> None:
    target = exact_target(family, lean, dtype, backend)
    ids, parents, draft = case["ids"], case["parents"], case["draft"]
    want = alone(target, ids)
    storage, pool = cache(target, seed=case["slots"])
    context, pool = scattered(len(ids) + len(draft), pool)
    neighbours: list[Span] = []
    for seed, count in enumerate(case["neighbours"]):
        other, pool = scattered(count, pool)
        neighbours.append(Span(tokens(count, seed), other, 0, logits=[]))

    def run(span: Span) -> Tensor:
        native.set_threads(case["threads"])
        return target.forward([span, *neighbours] if case["first"] else [*neighbours, span], storage).logits

    bounds = [0, *case["cuts"], len(ids)]
    rows = [run(Span(ids[at:end], context, at)) for at, end in pairwise(bounds)]
    assert torch.equal(torch.cat(rows), want)
    tree = run(Span(draft, context, len(ids), parents=parents))
    branches: list[list[int]] = []
    for row, parent in enumerate(parents):
        branches.append([*(branches[parent] if parent >= 0 else ids), draft[row]])
        assert torch.equal(tree[row], alone(target, branches[row])[-1])


class SlotOrderBackend(SdpaBackend):
    """A mutant: a row's sums run in the order of its slots."""

    exact = True

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, storage: KVStorage, batch: FlatBatch, shape: HeadShape
    ) -> Tensor:
        storage.write(layer, batch.slots, k, v)
        out, row = torch.empty_like(q), 0
        for span in batch.spans:
            for slots in attention._row_slots(span):
                keys, values = (part.transpose(0, 1) for part in storage.read(layer, sorted(slots)))
                query = q[row].view(shape.kv_heads, -1, shape.dim)
                out[row] = attention._attend_one(query, keys, values, torch.zeros(len(slots)), shape).view_as(out[row])
                row += 1
        return out


class SiblingBackend(SdpaBackend):
    """A mutant: siblings take part in the sums, with weight 0."""

    exact = True


class TreeOnlyBackend(SdpaBackend):
    """A mutant: chains are exact, but siblings take part in the sums of a tree."""

    exact = True

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, storage: KVStorage, batch: FlatBatch, shape: HeadShape
    ) -> Tensor:
        tree = any(span.parents is not None for span in batch.spans)
        backend = super().__call__ if tree else GatherBackend()
        return backend(q, k, v, layer, storage, batch, shape)


def mutant_choice(backend: Any) -> Any:
    return lambda *_: backend


@pytest.mark.parametrize("backend", [SlotOrderBackend(), SiblingBackend(), TreeOnlyBackend()])
@pytest.mark.parametrize("lean", [True, False])
def test_attention_that_sums_in_another_order_is_found(backend: Any, lean: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(attention, "choose", mutant_choice(backend))
    target = target_of(reference("llama"), lean=lean)
    assert not target.exact
    assert "rows differ in bits" in target.exact_reason


class SplitKernel(packed.PlainKernel):
    """A mutant: with more than one row, the sum is split in two."""

    def __call__(self, x: Tensor) -> Tensor:
        half = self.weight.shape[1] // 2
        if x.shape[0] == 1:
            return super().__call__(x)
        out = x[:, :half] @ self.weight[:, :half].T + x[:, half:] @ self.weight[:, half:].T
        return out if self.bias is None else out + self.bias


class OddKernel(packed.PlainKernel):
    """A mutant: the sixth row of every eight is summed backwards."""

    def __call__(self, x: Tensor) -> Tensor:
        rows = [super(OddKernel, self).__call__(row[None]) for row in x]
        rows[5::8] = [row.flip(0)[None] @ self.weight.flip(1).T for row in x[5::8]]
        return torch.cat(rows)


class EightsKernel(packed.PlainKernel):
    """Exact in whole eights of rows only: others are summed in two parts."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) if x.shape[0] % 8 == 0 else SplitKernel.__call__(self, torch.cat([x, x]))[: len(x)]


def test_a_kernel_that_is_exact_in_eights_is_given_eights(monkeypatch: Any) -> None:
    monkeypatch.setattr(packed, "_found", {})
    monkeypatch.setattr(packed, "make_kernel", lambda weight, bias, *_: EightsKernel(weight, bias))
    generator = torch.Generator().manual_seed(0)
    linear = packed.PackedLinear(torch.randn(40, 64, generator=generator), None, "float32", True)
    assert linear.exact
    assert linear.pad == 8
    x = torch.randn(300, 64, generator=generator)
    singles = torch.cat([linear(row[None]) for row in x])
    for rows in (2, 7, 8, 9, 40, 255, 256, 257, 300):
        assert torch.equal(linear(x[:rows]), singles[:rows]), rows


class SharedScaleKernel(packed.PlainKernel):
    """A mutant: rows are rounded by a scale that they share, as torch's dynamic int8 does."""

    def __call__(self, x: Tensor) -> Tensor:
        scale = x.abs().amax() / 127 + 1e-9
        return super().__call__((x / scale).round() * scale)


@pytest.mark.parametrize("kernel", [SharedScaleKernel, OddKernel])
def test_a_linear_layer_without_a_tile_is_found(kernel: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(packed, "_found", {})
    monkeypatch.setattr(packed, "make_kernel", lambda weight, bias, *_: kernel(weight, bias))
    target = target_of(reference("llama"))
    assert not target.exact
    assert target.exact_reason.startswith(f"no row-exact tile for {kernel.__name__}")


@pytest.mark.parametrize("lean", [True, False])
def test_a_linear_layer_that_runs_without_its_tile_is_found(lean: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(packed, "make_kernel", lambda weight, bias, *_: SplitKernel(weight, bias))
    monkeypatch.setattr(packed, "row_tile", lambda *_: (256, 1))
    target = target_of(reference("llama"), lean=lean)
    assert not target.exact
    assert "rows differ in bits" in target.exact_reason


def test_sdpa_says_that_it_is_not_exact() -> None:
    target = target_of(reference("llama"), backend="sdpa")
    assert not target.exact
    assert "sdpa" in target.exact_reason


def test_a_context_too_short_to_check_says_so() -> None:
    target = target_of(reference("llama"), max_model_len=12)
    assert not target.exact
    assert "max_model_len=12 is too short" in target.exact_reason


@pytest.mark.real_model
@pytest.mark.parametrize(("dtype", "length"), [("float16", 1200), ("int8", 2000), ("int4", 2000), ("gguf", 2000)])
def test_the_embedded_model_keeps_its_bits_in_long_contexts(dtype: str, length: int) -> None:
    native.set_threads(2)
    target = load_target("smollm2-135m", dtype=dtype)
    assert target.exact, target.exact_reason
    ids = torch.randint(0, target.vocab_size, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    starts = (40, 500, length - 20)
    looked = [at + offset for at in starts for offset in range(20)]
    slots = -(-length // 16) * 16
    context = torch.arange(slots, dtype=torch.int32)
    want = target.forward([Span(ids, context, 0, logits=looked)], target.new_storage(slots, 16)).logits
    storage, pool = cache(target, 150)
    context, _ = scattered(length + 10, pool)
    native.set_threads(1)
    for at, end in ((0, 37), (37, 500), (500, 600), (600, length - 20)):
        target.forward([Span(ids[at:end], context, at, logits=[])], storage)
    for place, at in enumerate(starts):
        rows = want[20 * place : 20 * place + 20]
        chain = target.forward([Span(ids[at : at + 20], context, at)], storage).logits
        assert torch.equal(chain, rows)
        single = target.forward([Span(ids[at : at + 1], context, at)], storage).logits
        assert torch.equal(single, rows[:1])
        span = Span([ids[at], 7, ids[at + 1], 8, ids[at + 2]], context, at, parents=[-1, 0, 0, 1, 2])
        tree = target.forward([span], storage).logits
        assert torch.equal(tree[[0, 2, 4]], rows[:3])
        target.forward([Span(ids[at : at + 20], context, at, logits=[])], storage)
