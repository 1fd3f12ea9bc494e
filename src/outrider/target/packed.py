"""Packed linear layers: the place where the kernel that holds the weights is chosen.

| format | kernel | activations | bits of a row |
|---|---|---|---|
| `float32`, `float16`, `bfloat16` | native/linear.cpp | float32 | equal for every number of rows |
| `int8`, `int4` | native/linear.cpp | int8, one scale for 32 inputs | equal for every number of rows |
| `bfloat16`, no compiler | oneDNN | bfloat16 | equal within tiles, if `row_tile` finds any |
| `float16`, `int8`, `int4`, no compiler | FBGEMM, one thread | float32 | equal for every number of rows |
| `float32`, no compiler | torch's own | float32 | equal in tiles padded to 16 rows |

``row_tile`` asserts the property for a layer's own shape on this machine; a layer for which no tile keeps it reports
``exact = False``. Timing never chooses between kernels that differ in bits.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from outrider import native
from outrider.native import abi
from outrider.target.formats import STORED_AS, Blocks, format_of, pack, pack_blocks, rounded

_TILES = (256, 64, 32, 16, 8)


class Kernel(Protocol):
    """A packed weight [out, in] that maps [rows, in] float32 to [rows, out] float32."""

    def __call__(self, x: Tensor) -> Tensor: ...


class FbgemmKernel:
    """FBGEMM: float16 weights (``check_range`` says whether they fit), float32 activations and sums."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.bias = None if bias is None else bias.float().contiguous()
        self._linear: Any
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:  # the same kernel as torch.ops.quantized, at half the cost of a call
                self._packed = torch.fbgemm_pack_gemm_matrix_fp16(weight.float().contiguous())
                self._linear = torch.fbgemm_linear_fp16_weight_fp32_activation
                self._linear(torch.zeros(1, weight.shape[1]), self._packed, self.bias)
            except (AttributeError, RuntimeError):
                self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), self.bias)
                self._linear = lambda x, packed, bias: torch.ops.quantized.linear_dynamic_fp16(x, packed)

    def __call__(self, x: Tensor) -> Tensor:
        return self._linear(x, self._packed, self.bias)  # type: ignore[no-any-return]


class OneDnnKernel:
    """oneDNN: packed bfloat16 weights, activations rounded to bfloat16, sums in float32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.bias = None if bias is None else bias.bfloat16().contiguous()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.bfloat16().contiguous(), None)
        self._linear = torch.ops.mkldnn._linear_pointwise

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._linear(x.bfloat16(), self._packed, self.bias, "none", [], "")
        return out.float()


class NativeKernel:
    """The C++ kernel: a packed weight, sums in an order that is the same for every number of rows and threads."""

    def __init__(
        self,
        library: native.Library,
        weight: Tensor,
        bias: Tensor | None,
        weight_format: str,
        blocks: Blocks | None = None,
    ) -> None:
        self.format_name = weight_format
        self._linear = library.linear
        self.out_features, self.in_features = weight.shape
        self.packed = pack(weight, weight_format) if blocks is None else pack_blocks(blocks)
        self._bias = torch.zeros(-(-self.out_features // abi.COLUMNS) * abi.COLUMNS)
        if bias is not None:
            self._bias[: self.out_features] = bias
        scales = self.packed.scales
        self.layer = abi.Linear(
            weight=self.packed.codes.data_ptr(),
            scales=None if scales is None else scales.data_ptr(),
            bias=self._bias.data_ptr(),
            n=self.out_features,
            k=self.in_features,
            inputs=self.packed.inputs,
            format=abi.FORMATS[weight_format],
        )
        self._pointer = ctypes.byref(self.layer)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.float().contiguous()
        rows = x.shape[0]
        out = torch.empty(rows, self.out_features)
        self._linear(self._pointer, x.data_ptr(), out.data_ptr(), rows, native.threads())
        return out


class PlainKernel:
    """torch's own linear in the weight's dtype, on the weight's device."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.contiguous(), None if bias is None else bias.to(weight.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x.to(self.weight.dtype), self.weight, self.bias).float()


def make_kernel(weight: Tensor, bias: Tensor | None, weight_format: str, blocks: Blocks | None = None) -> Kernel:
    """The kernel for a weight format on the weight's device. On other devices than the CPU it is torch's own.

    ``blocks``: the weight as int8 or int4 holds it, where that is known already. Without our kernels, int8 and int4
    weights are rounded as such and held in float16.
    """
    dtype = STORED_AS[weight_format]
    if weight.device.type == "cpu":
        library = native.library()
        if library is not None:
            return NativeKernel(library, weight, bias, weight_format, blocks)
        weight = rounded(weight, weight_format) if blocks is None else blocks.values()[:, : weight.shape[1]]
        if dtype == torch.bfloat16:
            return OneDnnKernel(weight, bias)
        if dtype == torch.float16:
            return FbgemmKernel(weight, bias)
    return PlainKernel(weight.to(dtype), bias)


def kernel_name(kernel: Kernel) -> str:
    """What to call a kernel where it is shown."""
    name = getattr(kernel, "format_name", "")
    return f"{type(kernel).__name__} {name}".rstrip()


class PackedLinear(nn.Module):
    """A linear layer [rows, in] -> [rows, out] over a packed weight; float32 in and out.

    With ``exact`` its rows are computed in tiles of ``tile`` rows, short ones padded to ``pad``.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        weight_format: str,
        exact: bool,
        blocks: Blocks | None = None,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        weight_format = format_of(weight_format, blocks)
        self.kernel = make_kernel(weight, bias, weight_format, blocks)
        packed = self.kernel.packed.num_bytes if isinstance(self.kernel, NativeKernel) else 0
        self.num_bytes = packed or weight.numel() * STORED_AS[weight_format].itemsize
        found = None
        if exact:
            outputs = min(self.out_features, 256) if isinstance(self.kernel, NativeKernel) else self.out_features
            shape = (outputs, self.in_features)  # outputs of our own kernel do not know of each other
            found = row_tile(
                lambda w: make_kernel(w, None, weight_format), shape, f"{kernel_name(self.kernel)}:{shape}"
            )
        self.tile, self.pad = found or (0, 1)
        self.exact = exact and self.tile > 0

    @property
    def format(self) -> str:
        """What the layer's bits depend on: kernel, dtype and shape."""
        return f"{kernel_name(self.kernel)}:{self.out_features}x{self.in_features}"

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        if x.dim() == 2:
            return self.rows(x)
        return self.rows(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)

    def rows(self, x: Tensor) -> Tensor:
        """x [rows, in] -> [rows, out], without the detour through ``nn.Module``."""
        rows = x.shape[0]
        if not self.tile or (rows <= self.tile and rows % self.pad == 0):
            return self.kernel(x)
        out = x.new_empty(rows, self.out_features, dtype=torch.float32)
        for start in range(0, rows, self.tile):
            part = x[start : start + self.tile]
            short = -part.shape[0] % self.pad
            whole = torch.cat([part, part.new_zeros(short, self.in_features)]) if short else part
            out[start : start + self.tile] = self.kernel(whole)[: part.shape[0]]
        return out


_found: dict[str, tuple[int, int] | None] = {}


def row_tile(make: Callable[[Tensor], Kernel], shape: Sequence[int], key: str) -> tuple[int, int] | None:
    """The largest tile, and the padding, for which every row's bits are those of the row alone, or None.

    Checked once per kernel and ``shape`` (out, in), with one thread and with all, on a weight whose products cancel in
    pairs: what is left of a sum is the rounding of its partial sums, so another order of adding shows in every
    output. (On ordinary numbers, rounding the result to bfloat16 would hide it almost always.)
    """
    key = f"{key}:{native.threads()}"
    if key not in _found:
        out_features, in_features = shape
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(in_features, generator=generator)
        left, right = order[: in_features // 2], order[in_features // 2 : in_features // 2 * 2]
        weight = torch.randn(out_features, in_features, generator=generator)
        weight[:, right] = -weight[:, left]
        x = torch.randn(_TILES[0], in_features, generator=generator)
        x[:, right] = x[:, left]
        if in_features % 2:
            x[:, order[-1]] = 0.0
        kernel = make(weight)
        _found[key] = next(
            ((tile, pad) for pad in (1, 8, 16) for tile in _TILES if tile >= pad and _row_exact(kernel, x, tile, pad)),
            None,
        )
    return _found[key]


def _row_exact(kernel: Kernel, x: Tensor, tile: int, pad: int) -> bool:
    def run(rows: Tensor) -> Tensor:
        short = -rows.shape[0] % pad
        return kernel(torch.cat([rows, rows.new_zeros(short, rows.shape[1])]) if short else rows)[: rows.shape[0]]

    picked = [*range(min(8, tile)), *range(8, tile, 13)]  # every place within blocks of up to 8 rows, and some beyond
    single = torch.cat([run(x[row : row + 1]) for row in picked])
    threads = native.threads()
    try:
        for count in {1, threads}:
            native.set_threads(count)
            for rows in sorted({2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 24, 31, 48, 96, 200, tile // 2, tile - 1, tile}):
                within = [row for row in picked if row < rows]
                if 2 <= rows <= tile and not torch.equal(run(x[:rows])[within], single[: len(within)]):
                    return False
    finally:
        native.set_threads(threads)
    return True
