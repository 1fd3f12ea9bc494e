"""Blocks of GGUF files, against the gguf package's own decoding, and a model that runs on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants
from numpy.typing import NDArray

from outrider.errors import ConfigError, ModelError
from outrider.target.batch import Span
from outrider.target.gguf_blocks import _DECODERS, BlockSource
from outrider.target.model import load_target
from target.files import own_cache
from target.tiny import reference, target_of

__all__ = ["own_cache"]
TOLERANCE = {"Q4_K": 2e-3, "Q6_K": 1e-2}


def raw_blocks(name: str, rows: int, blocks: int, seed: int) -> NDArray[np.uint8]:
    """Random bytes, with scales that are numbers."""
    size = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    generator = np.random.default_rng(seed)
    raw = generator.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    scales = (generator.uniform(0.5, 2.0, (rows, blocks, 2)).astype(np.float16) * 0.01).astype(np.float16)
    places = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}[name]
    for number, place in enumerate(places):
        raw[..., place : place + 2] = scales[..., number : number + 1].copy().view(np.uint8)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("name", sorted(_DECODERS))
def test_values_are_those_of_the_gguf_package(name: str) -> None:
    raw = raw_blocks(name, 6, 3, 1)
    want = torch.from_numpy(quants.dequantize(raw, GGMLQuantizationType[name]))
    got = _DECODERS[name](raw)
    error = (got.values() - want).norm() / want.norm()
    assert float(error) <= TOLERANCE.get(name, 1e-7)
    assert got.rounded_again == (name == "Q6_K")


def matrix_file(path: Path, name: str, raw: NDArray[np.uint8]) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_rows_are_brought_into_the_order_of_the_loaded_matrix(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
    raw = quants.quantize(weight, GGMLQuantizationType.Q8_0)
    source = BlockSource(matrix_file(tmp_path / "m.gguf", "blk.0.attn_q.weight", raw), 1, (2,))
    values = torch.from_numpy(quants.dequantize(raw, GGMLQuantizationType.Q8_0))
    order = torch.arange(128).view(2, 32, 2).transpose(1, 2).reshape(-1)  # two heads of 64
    for wanted in (values, values[order]):
        blocks = source.blocks("model.layers.0.self_attn.q_proj", wanted)
        assert blocks is not None
        assert torch.equal(blocks.values(), wanted)
    with pytest.raises(ModelError, match="use dtype=int8"):
        source.blocks("model.layers.0.self_attn.q_proj", values.flip(0))
    assert source.blocks("model.layers.0.self_attn.k_proj", values) is None


def test_a_model_that_is_no_gguf_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="dtype=gguf needs a GGUF file"):
        target_of(reference("llama"), "gguf")


@pytest.mark.real_model
def test_the_embedded_model_runs_on_the_blocks_of_its_file() -> None:
    target = load_target("smollm2-135m", dtype="gguf")
    assert target.exact, target.exact_reason
    assert target.describe()["kernel"] == "NativeKernel int4, NativeKernel int8"
    rows = [Span(target.tokenizer.encode("The capital of France is"), torch.arange(32, dtype=torch.int32), 0)]
    got = target.forward(rows, target.new_storage(32, 16)).logits
    want = load_target("smollm2-135m", dtype="float32").forward(rows, target.new_storage(32, 16)).logits
    assert float((got - want).norm() / want.norm()) < 0.08  # activations of 8 bits
