"""Weight formats: how a matrix is rounded, and how it is laid out for the kernels.

`int8` has blocks of 32 inputs with one scale, as ggml's Q8_0; `int4` has a scale and a minimum for 32 inputs, as Q4_1.
Both scales are float16. `gguf` keeps the blocks that a GGUF file has, each matrix in its own format (``gguf_blocks``).
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.native.abi import COLUMNS, INPUTS

_PAGE = 2 << 20  # bytes of a large page
# What a format's embedding table, and its weights where there is no kernel for it, are held in.
STORED_AS = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.float16,
    "int4": torch.float16,
    "gguf": torch.float16,
}


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [out, in] in blocks of 32 inputs: value = scale * code + minimum.

    ``codes``: int8 [out, in padded to 32]; -127..127, or 0..15 where there are minima. ``scales`` and ``minima``:
    float16 [out, blocks]; without minima they are 0.
    """

    codes: Tensor
    scales: Tensor
    minima: Tensor | None
    rounded_again: bool = False  # made from values that had other blocks

    def values(self) -> Tensor:
        """[out, in padded to 32] float32."""
        split = self.codes.view(*self.scales.shape, INPUTS).float() * self.scales.float()[..., None]
        return (split if self.minima is None else split + self.minima.float()[..., None]).view(self.codes.shape)


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix in the layout of a kernel (linear.h). ``inputs``: its inputs with padding."""

    codes: Tensor
    scales: Tensor | None
    inputs: int

    @property
    def num_bytes(self) -> int:
        """What one forward streams."""
        scales = 0 if self.scales is None else self.scales.numel() * self.scales.element_size()
        return self.codes.numel() * self.codes.element_size() + scales


def quantise(weight: Tensor, weight_format: str) -> Blocks:
    """Round a matrix [out, in] to ``int8`` or ``int4``, to nearest within each block."""
    out, inner = weight.shape
    padded = torch.nn.functional.pad(weight.float(), (0, -inner % INPUTS)).view(out, -1, INPUTS)
    if weight_format == "int8":
        scales = (padded.abs().amax(-1) / 127).half()
        codes = (padded / _divisor(scales)).round_().clamp_(-127, 127)
        return Blocks(codes.to(torch.int8).view(out, -1), scales, None)
    low, high = padded.aminmax(dim=-1)
    scales, minima = ((high - low) / 15).half(), low.half()
    codes = ((padded - minima.float()[..., None]) / _divisor(scales)).round_().clamp_(0, 15)
    return Blocks(codes.to(torch.int8).view(out, -1), scales, minima)


def join(parts: Sequence[Blocks]) -> Blocks:
    """Matrices one below the other. Where only some have minima, those are rounded anew to int8."""
    if len({part.minima is None for part in parts}) > 1:
        parts = [part if part.minima is None else quantise(part.values(), "int8") for part in parts]
    minima = [part.minima for part in parts if part.minima is not None]
    return Blocks(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(minima) if minima else None,
    )


def _divisor(scales: Tensor) -> Tensor:
    """Scales to divide by; a block whose scale is 0 has codes 0."""
    return scales.float().masked_fill(scales == 0, torch.inf)[..., None]


def rounded(weight: Tensor, weight_format: str) -> Tensor:
    """The matrix with the values that ``weight_format`` gives it, float32 for int8 and int4, else as it was."""
    if weight_format not in ("int8", "int4"):
        return weight
    return quantise(weight, weight_format).values()[:, : weight.shape[1]]


def format_of(weight_format: str, blocks: Blocks | None) -> str:
    """The format of one matrix: for `gguf` that of its blocks, float16 without any."""
    if weight_format != "gguf":
        return weight_format
    if blocks is None:
        return "float16"
    return "int8" if blocks.minima is None else "int4"


def pack(weight: Tensor, weight_format: str) -> Packed:
    """Lay out a matrix [out, in] for the kernels."""
    if weight_format in ("int8", "int4"):
        return pack_blocks(quantise(weight, weight_format))
    out, inner = weight.shape
    padded = weight.new_zeros(out + -out % COLUMNS, inner, dtype=STORED_AS[weight_format])
    padded[:out] = weight
    return Packed(_streamed(padded.view(-1, 32, inner).transpose(1, 2)), None, inner)


def pack_blocks(blocks: Blocks) -> Packed:
    """Tiles of 16 columns x 32 inputs: bytes [out / 16][in / 32][4 inputs at a time][16 columns][4 inputs]."""
    short = -blocks.codes.shape[0] % COLUMNS
    codes = torch.nn.functional.pad(blocks.codes, (0, 0, 0, short))
    tiles, inputs = blocks.scales.shape[1], blocks.codes.shape[1]
    columns = [torch.nn.functional.pad(blocks.scales, (0, 0, 0, short))]
    if blocks.minima is None:
        ordered = (codes.int() + 128).to(torch.uint8).view(-1, 16, tiles, 8, 4).permute(0, 2, 3, 1, 4)
    else:
        columns.append(torch.nn.functional.pad(blocks.minima, (0, 0, 0, short)))
        halves = codes.to(torch.uint8).view(-1, 16, tiles, 2, 4, 4)
        ordered = (halves[:, :, :, 0] | halves[:, :, :, 1] << 4).permute(0, 2, 3, 1, 4)
    scales = torch.stack([part.view(-1, 16, tiles).transpose(1, 2) for part in columns], dim=2)
    return Packed(_streamed(ordered), _streamed(scales), inputs)


def _streamed(source: Tensor) -> Tensor:
    """A contiguous copy in large pages where the system has them: a forward reads it once, from end to end."""
    size = source.numel() * source.element_size()
    room = mmap.mmap(-1, size + _PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            room.madvise(mmap.MADV_HUGEPAGE)
    raw = torch.frombuffer(room, dtype=torch.uint8)
    start = -raw.data_ptr() % _PAGE
    return raw[start : start + size].view(source.dtype).view(source.shape).copy_(source)
