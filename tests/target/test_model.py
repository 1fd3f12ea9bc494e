"""The target: settings that are refused, what it says of itself, and the same rows without the native kernels."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from outrider import native
from outrider.errors import CacheError, ConfigError, ModelError, NumericsError, OutriderError
from outrider.native import build
from outrider.target import attention, model
from outrider.target.batch import Span
from outrider.target.formats import STORED_AS
from outrider.target.ops import TorchOps
from target.tiny import cache, loaded, reference, scattered, target_of, tokens

lean_or_not = pytest.mark.parametrize("lean", [True, False])


def one_line(error: pytest.ExceptionInfo[OutriderError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.fixture
def no_native(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OUTRIDER_NATIVE", "0")
    build._load.cache_clear()
    yield
    monkeypatch.undo()
    build._load.cache_clear()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"dtype": "int3"},
            "dtype='int3' is unknown; choose one of auto, float32, float16, bfloat16, int8, int4, gguf",
        ),
        ({"max_model_len": 257}, "max_model_len=257 is over the model's context of 256; lower it"),
        ({"max_model_len": 1}, "max_model_len=1 leaves no room .* set 2 or more"),
        ({"max_model_len": 0}, "max_model_len=0 leaves no room .* set 2 or more"),
        ({"max_model_len": -5}, "max_model_len=-5 leaves no room .* set 2 or more"),
        ({"backend": "flash"}, "attention backend 'flash' is unknown; choose one of native, gather, sdpa"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        target_of(reference("llama"), **({"dtype": "float16"} | options))
    one_line(error)


def test_an_unknown_dtype_is_refused_before_the_model_is_looked_for() -> None:
    with pytest.raises(ConfigError, match="dtype='double' is unknown"):
        model.load_target("nowhere", dtype="double")


@pytest.mark.parametrize("length", [2, 3, 256])
@lean_or_not
def test_every_length_from_2_to_the_context_is_served(length: int, lean: bool) -> None:
    target = target_of(reference("llama"), lean=lean, max_model_len=length)
    storage, pool = cache(target)
    ids = tokens(length)
    out = target.forward([Span(ids, scattered(length, pool)[0], 0, logits=[length - 1])], storage)
    assert out.logits.shape == (1, target.vocab_size)
    assert target.describe()["max_model_len"] == length


@pytest.mark.parametrize("value", [7e4, -1e6])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight"])
@lean_or_not
def test_float16_refuses_weights_that_it_cannot_hold(name: str, value: float, lean: bool) -> None:
    big = reference("llama")
    big.get_parameter(name).data[3, 3] = value
    with pytest.raises(ModelError, match=r"dtype=float16 cannot hold .* set dtype=bfloat16 or dtype=float32") as error:
        target_of(big, "float16", lean=lean)
    assert name in one_line(error)
    target_of(big, "bfloat16", lean=lean)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("exact", [True, False])
@lean_or_not
def test_weights_with_nan_are_found(dtype: str, exact: bool, lean: bool) -> None:
    broken = reference("llama")
    broken.model.layers[1].self_attn.v_proj.weight.data[2, 2] = torch.nan
    with pytest.raises((NumericsError, ModelError)) as error:
        row(target_of(broken, dtype, lean=lean, exact=exact))
    one_line(error)


def row(target: Any) -> torch.Tensor:
    storage, pool = cache(target)
    return target.forward([Span(tokens(9), scattered(16, pool)[0], 0)], storage).logits


@lean_or_not
def test_a_cache_with_nan_is_found(lean: bool) -> None:
    target = target_of(reference("llama"), lean=lean)
    storage, pool = cache(target)
    context, _ = scattered(16, pool)
    target.forward([Span(tokens(9), context, 0)], storage)
    storage.write(1, [int(context[4])], torch.nan, 0)
    with pytest.raises(NumericsError, match="NaN") as error:
        target.forward([Span(tokens(1), context, 9)], storage)
    one_line(error)


def test_a_slot_that_no_row_sees_may_hold_anything() -> None:
    for backend in ("gather", "sdpa"):
        target = target_of(reference("llama"), backend=backend, exact=False)
        storage, pool = cache(target)
        context, left = scattered(16, pool)
        storage.write(slice(None), range(left[0] * 16, left[0] * 16 + 16), torch.nan, torch.nan)
        assert target.forward([Span(tokens(9), context, 0)], storage).logits.isfinite().all()


def test_exact_false_says_so() -> None:
    target = target_of(reference("llama"), exact=False)
    assert (target.exact, target.exact_reason) == (False, "exact=False was asked for")


def test_auto_dtype_follows_the_device() -> None:
    assert model.dtype_for("auto", torch.device("cpu")) == "float16"
    assert model.dtype_for("auto", torch.device("cuda")) == "bfloat16"


def test_other_devices_take_torch_and_promise_nothing() -> None:
    cuda = torch.device("cuda")
    assert attention.choose(cuda, exact=True).name == "sdpa"
    assert attention.choose(cuda, exact=True, name="gather").name == "gather"
    with pytest.raises(ConfigError, match=r"native is not available \(it does not run on cuda\); use gather or sdpa"):
        attention.choose(cuda, exact=True, name="native")


@pytest.mark.usefixtures("no_native")
@lean_or_not
@pytest.mark.parametrize("exact", [True, False])
def test_without_kernels_torch_does_the_work(lean: bool, exact: bool) -> None:
    assert native.library() is None
    target = target_of(reference("llama"), lean=lean, exact=exact)
    assert target.backend.name == ("gather" if exact else "sdpa")
    assert target.exact is exact
    ids = tokens(20)
    storage, pool = cache(target)
    got = target.forward([Span(ids, scattered(32, pool)[0], 0)], storage).logits
    want = reference("llama")(torch.tensor([ids]), use_cache=False).logits[0]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4 * float(want.abs().max()))


@pytest.mark.usefixtures("no_native")
def test_native_without_kernels_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"OUTRIDER_NATIVE=0\); use gather or sdpa"):
        target_of(reference("llama"), backend="native")


def test_the_small_operations_work_in_bfloat16_weights_without_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a device other than the CPU runs: torch's linear layers, torch's operations, sdpa."""
    from outrider.target import packed

    monkeypatch.setattr(
        packed, "make_kernel", lambda weight, bias, name, _: packed.PlainKernel(weight.to(STORED_AS[name]), bias)
    )
    target = target_of(reference("llama", "bfloat16", short_activations=True), "bfloat16", backend="sdpa", exact=False)
    made: list[TorchOps] = []
    init = TorchOps.__init__
    monkeypatch.setattr(TorchOps, "__init__", lambda self, *args: (made.append(self), init(self, *args))[1])
    got = row(target)
    assert made
    want = reference("llama", "bfloat16", short_activations=True)(torch.tensor([tokens(9)]), use_cache=False).logits[0]
    torch.testing.assert_close(got, want, rtol=0, atol=0.04 * float(want.abs().max()))


def test_the_general_path_runs_a_model_in_bfloat16() -> None:
    """As on a device other than the CPU: nothing is packed and transformers computes in the weights' dtype."""
    from outrider.target.attention import SdpaBackend
    from outrider.target.batch import flatten
    from outrider.target.general import GeneralDecoder
    from target.tiny import loaded

    target = target_of(reference("gemma2"), exact=False)
    decoder = GeneralDecoder(
        loaded(reference("gemma2", "bfloat16", short_activations=True)).model.bfloat16(), SdpaBackend()
    )
    storage, pool = cache(target)
    ids = tokens(9)
    logits, _ = decoder.forward(flatten([Span(ids, scattered(16, pool)[0], 0)]), storage)
    want = reference("gemma2")(torch.tensor([ids]), use_cache=False).logits[0]
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, want, rtol=0, atol=0.1 * float(want.abs().max()))


def test_a_lean_model_gives_its_unpacked_weights_back() -> None:
    target = target_of(reference("llama"), "float16")
    assert sum(parameter.numel() for parameter in target.loaded.model.parameters()) < 200


def test_describe_is_plain_data() -> None:
    import json

    text = json.dumps(target_of(reference("llama"), "float16").describe())
    assert "LlamaForCausalLM" in text


@pytest.mark.parametrize(
    "span",
    [
        Span([1] * 3, torch.arange(4, dtype=torch.int32), 2),
        Span([1] * 3, torch.arange(4, dtype=torch.int32), 2, parents=[-1, 0, 0]),
        Span([1], torch.arange(4, dtype=torch.int32), 5, parents=[-1], slots=[9]),
        Span([1], torch.arange(4, dtype=torch.int32), -1),
    ],
)
def test_a_span_with_too_few_slots_is_refused(span: Span) -> None:
    target = target_of(reference("llama"))
    with pytest.raises(CacheError, match="slots, and its context has 4"):
        target.forward([span], target.new_storage(16, 16))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "phi3"])
def test_packing_keeps_no_weight_of_the_file_alive(family: str) -> None:
    """One view would keep the whole mapped file in memory: 6 GB of a model that takes 2."""
    model_file = loaded(reference(family))
    kept = [weight.untyped_storage() for weight in model_file.model.parameters()]  # or addresses would come again
    before = {storage.data_ptr() for storage in kept}
    packed = model.Target(model_file, dtype="float16")
    gc.collect()
    alive = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and each.device.type == "cpu"]
    held = [tuple(each.shape) for each in alive if each.untyped_storage().data_ptr() in before]
    assert packed.lean
    assert not held
