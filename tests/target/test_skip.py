"""Skipped sublayers: as if their last matrix were zero, on both ways through the lean decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider.native import build
from outrider.target.batch import Span
from outrider.target.costs import curve_of
from outrider.target.skip import ATTENTION, MLP, skip_mask, skipped
from target.tiny import SMALL, VOCAB, cache, reference, scattered, target_of, tokens

LAYERS = SMALL["num_hidden_layers"]
masks = st.binary(min_size=LAYERS, max_size=LAYERS).map(lambda raw: bytes(bits & 3 for bits in raw))
dtypes = pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])


@pytest.fixture(params=["native", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One native call a forward, or the torch operations."""
    if request.param == "torch":
        monkeypatch.setenv("OUTRIDER_NATIVE", "0")
    build._load.cache_clear()
    yield request.param
    monkeypatch.undo()
    build._load.cache_clear()


def without(net: Any, mask: bytes) -> Any:
    """The model with the last matrix of every skipped sublayer set to zero."""
    for layer, bits in zip(net.model.layers, mask, strict=True):
        for bit, linear in ((ATTENTION, layer.self_attn.o_proj), (MLP, layer.mlp.down_proj)):
            if bits & bit:
                linear.weight.data.zero_()
                if linear.bias is not None:
                    linear.bias.data.zero_()
    return net


def rows(target: Any, mask: bytes | None, taps: Sequence[int] = ()) -> tuple[torch.Tensor, torch.Tensor | None, Any]:
    """Logits and taps of a prompt, and of a tree behind it, and the storage."""
    storage, pool = cache(target)
    context, _ = scattered(32, pool)
    first = target.forward([Span(tokens(9), context, 0)], storage, taps, skip=mask)
    tree = Span(tokens(4, 1), context, 9, parents=[-1, 0, 0, 2], logits=[0, 3])
    second = target.forward([tree], storage, taps, skip=mask)
    hidden = (
        torch.cat([first.hidden, second.hidden]) if first.hidden is not None and second.hidden is not None else None
    )
    return torch.cat([first.logits, second.logits]), hidden, storage


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen2_window"])
@dtypes
def test_an_empty_mask_changes_no_bit(way: str, family: str, dtype: str) -> None:
    target = target_of(reference(family), dtype, exact=False)
    plain, taps, storage = rows(target, None, (0, 2))
    masked, same_taps, same_storage = rows(target, bytes(LAYERS), (0, 2))
    assert torch.equal(plain, masked)
    assert taps is not None
    assert torch.equal(taps, same_taps)
    assert torch.equal(storage.keys, same_storage.keys)


@dtypes
@pytest.mark.parametrize(
    "mask", [b"\1\0\0", b"\0\2\0", b"\3\0\1", b"\0\3\3", b"\1\1\1", b"\2\2\2", b"\3\3\3", b"\2\1\3"]
)
def test_a_skipped_sublayer_adds_nothing_and_caches_nothing(way: str, dtype: str, mask: bytes) -> None:
    net = reference("llama", attention_bias=False)
    every = tuple(range(LAYERS))
    got, taps, storage = rows(target_of(net, dtype, exact=False), mask, every)
    want, zeroed, _ = rows(target_of(without(net, mask), dtype, exact=False), None, every)
    assert torch.equal(got, want)
    assert taps is not None
    assert torch.equal(taps, zeroed)
    for layer, bits in enumerate(mask):
        keys, values = storage.read(layer, slice(0, 40 * 16))
        assert bool(keys.any()) == bool(values.any()) == (not bits & ATTENTION)


def test_an_early_exit_is_the_model_with_fewer_layers(way: str) -> None:
    net = reference("llama")
    short = reference("llama")
    short.model.layers = short.model.layers[:2]
    short.config.num_hidden_layers = 2
    got, *_ = rows(target_of(net, exact=False), skip_mask(LAYERS, exit_layer=2))
    want, *_ = rows(target_of(short, exact=False), None)
    assert torch.equal(got, want)


@settings(max_examples=30, deadline=None)
@given(mask=masks, threads=st.sampled_from([1, 2, 3]))
def test_threads_do_not_change_a_bit(mask: bytes, threads: int) -> None:
    from outrider import native

    before = native.threads()
    try:
        native.set_threads(1)
        want, *_ = rows(TARGET, mask)
        native.set_threads(threads)
        got, *_ = rows(TARGET, mask)
    finally:
        native.set_threads(before)
    assert torch.equal(got, want)


TARGET = target_of(reference("llama"), exact=False)


def test_what_cannot_be_skipped_is_refused() -> None:
    with pytest.raises(ConfigError, match="'olmo2' models cannot be skipped"):
        rows(target_of(reference("olmo2"), exact=False), bytes(LAYERS))
    with pytest.raises(ConfigError, match="a skip mask of 2 layers does not fit a model of 3"):
        rows(TARGET, bytes(2))
    with pytest.raises(ConfigError, match="skip_mlp_layers: the model has no layer 3; its layers are 0 to 2"):
        skip_mask(3, mlp=[3])
    with pytest.raises(ConfigError, match="skip_attention_layers: the model has no layer -1"):
        skip_mask(3, attention=[-1])
    with pytest.raises(ConfigError, match="exit_layer=4: the model has 3 layers"):
        skip_mask(3, exit_layer=4)


@given(attention=st.sets(st.integers(0, 5)), mlp=st.sets(st.integers(0, 5)), exit_layer=st.none() | st.integers(1, 6))
def test_masks_say_what_they_skip(attention: set[int], mlp: set[int], exit_layer: int | None) -> None:
    mask = skip_mask(6, sorted(attention), sorted(mlp), exit_layer)
    behind = set() if exit_layer is None else set(range(exit_layer, 6))
    assert set(skipped(mask, ATTENTION)) == attention | behind
    assert set(skipped(mask, MLP)) == mlp | behind


def test_masks_have_cost_curves_of_their_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    for mask in (None, b"\3\0\0", b"\0\3\0", b"\1\0\0", bytes(LAYERS)):
        curve_of(TARGET, mask)
    assert len(list((tmp_path / "costs").iterdir())) == 4  # which layer is skipped does not matter
    assert TARGET.vocab_size == VOCAB
