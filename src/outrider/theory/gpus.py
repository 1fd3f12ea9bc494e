"""A small table of GPUs, for estimates of machines that one does not have.

Bandwidth, dense bfloat16 FLOP/s and memory are from the makers' data sheets. Prices are examples of on-demand lists
from 2026, per GPU and hour, and differ by a factor of four between providers: give your own.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import ConfigError
from outrider.theory.roofline import Machine


@dataclass(frozen=True, slots=True)
class GPU:
    """``bandwidth``: TB/s; ``tflops``: dense bfloat16; ``memory``: GB; ``price``: USD an hour, 0 where none was found;
    ``sources``: of the data sheet and of the price."""

    name: str
    bandwidth: float
    tflops: float
    memory: float
    price: float
    sources: tuple[str, ...]

    def machine(self, efficiency: tuple[float, float] = (0.8, 0.6), price: float | None = None) -> Machine:
        """As plain numbers; ``price`` replaces the table's."""
        cost = self.price if price is None else price
        return Machine(self.bandwidth * 1e12, self.tflops * 1e12, self.memory * 1e9, cost, efficiency)


_AWS = "https://khaderz.com/en/ai-engineer-path/production/gpu-cost-modeling"
_GMI = "https://www.gmicloud.ai/en/blog/h200-h100-b200-ai-inference"
_E2E = "https://e2enetworks.com/blog/nvidia-a100-vs-h100-vs-h200-gpu-comparison"
_NVIDIA = "https://www.nvidia.com/en-us/data-center/"
_AMD = "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html"

GPUS = {
    gpu.name: gpu
    for gpu in (
        GPU("l4", 0.3, 121.0, 24.0, 0.81, (f"{_NVIDIA}l4/", _AWS)),
        GPU("a10", 0.6, 125.0, 24.0, 1.00, (f"{_NVIDIA}products/a10-gpu/", _AWS)),
        GPU("l40s", 0.864, 362.0, 48.0, 1.84, (f"{_NVIDIA}l40s/", _AWS)),
        GPU("a100-40", 1.555, 312.0, 40.0, 3.67, (f"{_NVIDIA}a100/", _AWS)),
        GPU("a100-80", 2.039, 312.0, 80.0, 4.60, (f"{_NVIDIA}a100/", _AWS)),
        GPU("h100", 3.35, 989.0, 80.0, 2.00, (f"{_NVIDIA}h100/", _GMI)),
        GPU("h200", 4.8, 989.0, 141.0, 3.37, (f"{_NVIDIA}h200/", _E2E)),
        GPU("b200", 8.0, 2250.0, 180.0, 0.0, (f"{_NVIDIA}dgx-b200/",)),
        GPU("mi300x", 5.3, 1307.0, 192.0, 0.0, (_AMD,)),
    )
}


def gpu_of(name: str) -> GPU:
    """The GPU called ``name``. Raises ConfigError that lists the known ones."""
    if name.lower() not in GPUS:
        raise ConfigError(f"--gpu {name!r} is unknown; choose one of: {', '.join(GPUS)}")
    return GPUS[name.lower()]
