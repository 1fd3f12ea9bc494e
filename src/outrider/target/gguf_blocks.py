"""The quantised blocks of a GGUF file as the kernels take them, so that a model runs on the numbers in its file.

| type | becomes | exactly |
|---|---|---|
| Q8_0, Q5_0 | int8 codes and a scale for 32 inputs | yes |
| Q4_0, Q4_1 | 4-bit codes, a scale and a minimum for 32 inputs | yes (Q4_0: its minimum, -8 * scale, is exact too) |
| Q4_K | the same; scale * 6-bit scale and its minimum are rounded to float16 | to 2^-11 |
| Q6_K | rounded anew to 8 bits in blocks of 32 (its own have 16 inputs) | to half a step of 8 bits |
| others | not blocks: the matrix is held in float16 | |

Layout of the blocks: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.errors import ModelError
from outrider.target.formats import Blocks, quantise

Bytes = NDArray[np.uint8]
_SAME = 2e-3  # relative distance up to which blocks and the loaded matrix are one


class BlockSource:
    """The matrices of one GGUF file by the names of transformers' modules."""

    def __init__(self, path: Path, num_layers: int, heads: Sequence[int]) -> None:
        """``heads``: the numbers of heads whose rows the file may have in another order."""
        from gguf import MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map

        reader = GGUFReader(path)
        self._heads = heads
        self._path, self._tensors = path, {tensor.name: tensor for tensor in reader.tensors}
        field = reader.fields["general.architecture"].contents()
        arch = next(key for key, name in MODEL_ARCH_NAMES.items() if name == field)
        self._names = get_tensor_name_map(arch, num_layers)

    def blocks(self, name: str, weight: Tensor) -> Blocks | None:
        """The blocks of module ``name``, whose values are ``weight`` [out, in]; None when the file has none for it.

        Raises ModelError when they are not the same matrix.
        """
        tensor = self._find(name)
        decode = _DECODERS.get(tensor.tensor_type.name) if tensor is not None else None
        if tensor is None or decode is None or tensor.data.shape[0] != weight.shape[0]:
            return None
        blocks = decode(np.ascontiguousarray(tensor.data))
        paired = (_reordered(blocks, heads) for heads in self._heads if len(weight) % (2 * heads) == 0)
        for candidate in chain((blocks,), paired):
            if _same(candidate, weight):
                return candidate
        raise ModelError(f"dtype=gguf: {self._path} has other rows in {tensor.name} than {name}: use dtype=int8")

    def _find(self, name: str) -> Any:
        found = f"{self._names.get_name(name)}.weight"
        return self._tensors.get("token_embd.weight" if found not in self._tensors and name == "lm_head" else found)


def _same(blocks: Blocks, weight: Tensor) -> bool:
    rows = torch.linspace(0, len(weight) - 1, min(64, len(weight))).long()
    minima = None if blocks.minima is None else blocks.minima[rows]
    values = Blocks(blocks.codes[rows], blocks.scales[rows], minima).values()[:, : weight.shape[1]]
    tolerance = 2e-2 if blocks.rounded_again else _SAME
    return bool((values - weight[rows].float()).norm() <= tolerance * weight[rows].float().norm())


def _reordered(blocks: Blocks, heads: int) -> Blocks:
    """Rows in the order of transformers' Llama: GGUF has the two dimensions of a rotary pair next to each other."""
    order = torch.arange(len(blocks.codes)).view(heads, -1, 2).transpose(1, 2).reshape(-1)
    minima = None if blocks.minima is None else blocks.minima[order]
    return Blocks(blocks.codes[order], blocks.scales[order], minima, blocks.rounded_again)


def _halves(raw: Bytes) -> Tensor:
    """Bytes [..., 2 n] as float16 [..., n]."""
    return torch.from_numpy(np.ascontiguousarray(raw).view(np.float16).copy())


def _nibbles(raw: Bytes) -> Bytes:
    """[..., 16] -> [..., 32]: low halves first."""
    return np.concatenate([raw & 15, raw >> 4], axis=-1)


def _blocks(codes: NDArray[Any], scales: Tensor, minima: Tensor | None) -> Blocks:
    """codes [rows, blocks, 32], scales and minima [rows, blocks, 1] or [rows, blocks]."""
    rows = codes.shape[0]
    flat = torch.from_numpy(codes.astype(np.int8).reshape(rows, -1))
    return Blocks(flat, scales.reshape(rows, -1), None if minima is None else minima.reshape(rows, -1))


def _q8_0(data: Bytes) -> Blocks:
    raw = data.reshape(len(data), -1, 34)
    return _blocks(raw[..., 2:].view(np.int8), _halves(raw[..., :2]), None)


def _q4_0(data: Bytes) -> Blocks:
    raw = data.reshape(len(data), -1, 18)
    scales = _halves(raw[..., :2])
    return _blocks(_nibbles(raw[..., 2:]), scales, -8 * scales)


def _q4_1(data: Bytes) -> Blocks:
    raw = data.reshape(len(data), -1, 20)
    return _blocks(_nibbles(raw[..., 4:]), _halves(raw[..., :2]), _halves(raw[..., 2:4]))


def _q5_0(data: Bytes) -> Blocks:
    raw = data.reshape(len(data), -1, 22)
    high = np.unpackbits(raw[..., 2:6], axis=-1, bitorder="little")
    codes = (_nibbles(raw[..., 6:]) | high << 4).astype(np.int16) - 16
    return _blocks(codes, _halves(raw[..., :2]), None)


def _q4_k(data: Bytes) -> Blocks:
    """256 inputs: two float16, eight 6-bit pairs of scale and minimum in 12 bytes, 128 bytes of codes."""
    raw = data.reshape(len(data), -1, 144)
    pairs = raw[..., 4:16].astype(np.uint8)
    low, high, rest = pairs[..., :4], pairs[..., 4:8], pairs[..., 8:12]
    scales = np.concatenate([low & 63, rest & 15 | (low >> 6) << 4], axis=-1).astype(np.float32)
    minima = np.concatenate([high & 63, rest >> 4 | (high >> 6) << 4], axis=-1).astype(np.float32)
    both = _halves(raw[..., :4]).float()
    codes = raw[..., 16:].reshape(*raw.shape[:2], 4, 32)
    split = np.stack([codes & 15, codes >> 4], axis=3).reshape(len(data), -1, 32)
    return _blocks(
        split,
        (both[..., :1] * torch.from_numpy(scales)).half(),
        (-both[..., 1:] * torch.from_numpy(minima)).half(),
    )


def _q6_k(data: Bytes) -> Blocks:
    """256 inputs: 128 bytes of low and 64 of high bits, 16 scales of 8 bits for 16 inputs each, one float16."""
    raw = data.reshape(len(data), -1, 210)
    low = raw[..., :128].reshape(*raw.shape[:2], 2, 64)
    high = raw[..., 128:192].reshape(*raw.shape[:2], 2, 32)
    parts = [
        (low[..., :32] & 15) | (high & 3) << 4,
        (low[..., 32:] & 15) | (high >> 2 & 3) << 4,
        (low[..., :32] >> 4) | (high >> 4 & 3) << 4,
        (low[..., 32:] >> 4) | (high >> 6) << 4,
    ]
    codes = np.stack(parts, axis=3).reshape(*raw.shape[:2], 16, 16).astype(np.float32) - 32
    scales = raw[..., 192:208].view(np.int8).astype(np.float32)[..., None]
    values = torch.from_numpy(codes * scales) * _halves(raw[..., 208:]).float()[..., None]
    again = quantise(values.reshape(len(data), -1), "int8")
    return Blocks(again.codes, again.scales, None, rounded_again=True)


_DECODERS: dict[str, Callable[[Bytes], Blocks]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q4_K": _q4_k,
    "Q6_K": _q6_k,
}
