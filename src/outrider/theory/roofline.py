"""How long a forward takes on a machine that one only knows by its data sheet (Williams, Waterman, Patterson,
"Roofline", CACM 2009):

    t(n) = max(bytes read / bandwidth, arithmetic / FLOP per second)

Bytes are the weights once (for a mixture: of the experts touched), and the KV of every sequence once; arithmetic is
2 FLOPs a row and weight used, and 4 FLOPs a row, context token, layer and query width in attention. Both are peak rates
times an efficiency that is an assumption: kernels reach 60 to 90 % of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.errors import ConfigError
from outrider.theory.experts import ExpertWeights


@dataclass(frozen=True, slots=True)
class Machine:
    """``bandwidth``: bytes a second of its memory; ``flops``: a second, dense, at the weights' format; ``memory``;
    ``price``: per hour. ``efficiency``: the share of ``bandwidth`` and ``flops`` that is reached."""

    bandwidth: float
    flops: float
    memory: float = 0.0
    price: float = 0.0
    efficiency: tuple[float, float] = (0.8, 0.6)

    def __post_init__(self) -> None:
        if min(self.bandwidth, self.flops, *self.efficiency) <= 0 or min(self.memory, self.price) < 0:
            raise ConfigError("machine: bandwidth, flops and efficiency are positive, memory and price not negative")

    def together(self, count: int, efficiency: float) -> Machine:
        """``count`` of them under tensor parallelism; ``efficiency``: the share of their sum that is reached (1 for
        one). It stands for communication, and is an assumption."""
        if count < 1 or not 0.0 < efficiency <= 1.0:
            raise ConfigError(f"num_gpus={count}, tp_efficiency={efficiency}: at least 1, and over 0 to 1")
        factor = count * (efficiency if count > 1 else 1.0)
        reached = self.bandwidth * factor, self.flops * factor
        return Machine(*reached, self.memory * count, self.price * count, self.efficiency)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a forward moves and computes. ``parameters``: all of them; ``bytes_per_weight``; ``num_layers``;
    ``num_heads``, ``num_kv_heads``, ``head_dim``: of attention; ``bytes_per_kv``: of one number in the cache.
    ``experts``: for a mixture, ``parameters`` then counts all experts."""

    parameters: float
    bytes_per_weight: float = 2.0
    num_layers: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_dim: int = 128
    bytes_per_kv: float = 2.0
    experts: ExpertWeights | None = field(default=None)

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights."""
        return self.parameters * self.bytes_per_weight

    @property
    def kv_bytes_per_token(self) -> float:
        """2 (keys and values) * layers * KV heads * head width * bytes of a number."""
        return 2.0 * self.num_layers * self.num_kv_heads * self.head_dim * self.bytes_per_kv

    def step_bytes(self, num_rows: int, num_sequences: int = 1, context: float = 0.0) -> float:
        """Bytes that a step reads: weights, and each sequence's KV of ``context`` tokens."""
        weights = self.weight_bytes if self.experts is None else self.experts.step_bytes(num_rows)
        return weights + num_sequences * context * self.kv_bytes_per_token

    def step_flops(self, num_rows: int, context: float = 0.0) -> float:
        """2 * active parameters * rows, and 4 * layers * heads * head width * context * rows of attention."""
        active = self.parameters
        if self.experts is not None:
            active = self.experts.step_bytes(1) / self.bytes_per_weight
        return num_rows * (2.0 * active + 4.0 * self.num_layers * self.num_heads * self.head_dim * context)


def step_seconds(
    shape: ModelShape, machine: Machine, num_rows: int, num_sequences: int = 1, context: float = 0.0
) -> float:
    """Seconds of a forward of ``num_rows`` rows in all, of sequences with ``context`` tokens each."""
    read = shape.step_bytes(num_rows, num_sequences, context) / (machine.bandwidth * machine.efficiency[0])
    computed = shape.step_flops(num_rows, context) / (machine.flops * machine.efficiency[1])
    return max(read, computed)


def free_rows(shape: ModelShape, machine: Machine, context: float = 0.0, rows_per_sequence: int = 1) -> float:
    """Rows beyond which they stop being free: arithmetic takes as long as reading does.

    With n rows of n / ``rows_per_sequence`` sequences, (W + n * r) / B = n * f / F, so n = W / (f * B / F - r), with W
    the weights' bytes, r the KV bytes a row, f the FLOPs a row. Infinite where reading KV outgrows arithmetic, as it
    does for long contexts (Chen et al., "MagicDec", 2024). A mixture's weights are taken as all read.
    """
    bandwidth = machine.bandwidth * machine.efficiency[0]
    flops = machine.flops * machine.efficiency[1]
    weights = shape.weight_bytes if shape.experts is None else shape.experts.bytes
    row = context * shape.kv_bytes_per_token / rows_per_sequence
    slope = shape.step_flops(1, context) * bandwidth / flops - row
    return weights / slope if slope > 0 else float("inf")


def batch_limit(shape: ModelShape, machine: Machine, context: float, share: float = 0.9) -> int:
    """Sequences of ``context`` tokens whose KV fits beside the weights, in ``share`` of the memory."""
    weights = shape.weight_bytes if shape.experts is None else shape.experts.bytes
    room = machine.memory * share - weights
    each = context * shape.kv_bytes_per_token
    return max(0, int(room // each)) if each > 0 else 0
