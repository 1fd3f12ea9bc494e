"""Options of commands that reckon with a machine and a model that are not there, and what they make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.theory.roofline import Machine, ModelShape

_GPU = "Machine from a data sheet"

Gpu = Annotated[
    str | None,
    typer.Option("--gpu", metavar="NAME", help="l4, a10, l40s, a100-80, h100, h200 ...", rich_help_panel=_GPU),
]
Parameters = Annotated[
    float | None,
    typer.Option("--parameters", metavar="B", help="Of the target, in billions.", rich_help_panel=_GPU),
]
BytesPerWeight = Annotated[
    float, typer.Option("--bytes-per-weight", help="2 for bfloat16, 1 for 8 bits.", rich_help_panel=_GPU)
]
Layers = Annotated[int, typer.Option("--layers", help="Of the target.", rich_help_panel=_GPU)]
Heads = Annotated[int, typer.Option("--heads", help="Attention heads.", rich_help_panel=_GPU)]
KvHeads = Annotated[int, typer.Option("--kv-heads", help="Heads of keys and values.", rich_help_panel=_GPU)]
HeadDim = Annotated[int, typer.Option("--head-dim", help="Width of a head.", rich_help_panel=_GPU)]
Experts = Annotated[
    str | None,
    typer.Option(
        "--experts",
        metavar="E,k,SHARE",
        help="A mixture: experts, those that a token uses, and the share of all weights that lies in experts.",
        rich_help_panel=_GPU,
    ),
]
Efficiency = Annotated[
    str,
    typer.Option(
        "--efficiency",
        metavar="B,F",
        help="Share of the sheet's bandwidth and FLOP/s that is reached: an assumption.",
        rich_help_panel=_GPU,
    ),
]
Price = Annotated[
    float | None,
    typer.Option(
        "--price",
        metavar="USD",
        help="Of one GPU (or the measured machine) an hour; with --gpu a listed price if left out.",
    ),
]


def numbers(text: str, name: str) -> list[float]:
    """``"0.7,0.6"`` as numbers. Raises ConfigError that says ``name``."""
    try:
        out = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        out = []
    if not out:
        raise ConfigError(f"{name} {text!r}: give numbers with commas between them")
    return out


def whole_numbers(text: str, name: str, least: int = 1) -> list[int]:
    """``"1,8,32"`` as integers of at least ``least``. Raises ConfigError that says ``name``."""
    out = numbers(text, name)
    if any(value != int(value) or value < least for value in out):
        raise ConfigError(f"{name} {text!r}: whole numbers of at least {least}")
    return [int(value) for value in out]


def shape(
    parameters: float,
    bytes_per_weight: float = 2.0,
    layers: int = 0,
    heads: int = 0,
    kv_heads: int = 0,
    head_dim: int = 128,
    experts: str | None = None,
) -> ModelShape:
    """A model of so many billion parameters. Raises ConfigError for a mixture that is none."""
    from outrider.theory.experts import ExpertWeights
    from outrider.theory.roofline import ModelShape

    mixture = None
    if experts is not None:
        values = numbers(experts, "--experts")
        if len(values) != 3 or not 0.0 < values[2] < 1.0:
            raise ConfigError(f"--experts {experts!r}: E,k,SHARE such as 64,4,0.9")
        held = parameters * 1e9 * bytes_per_weight
        mixture = ExpertWeights(held * (1 - values[2]), held * values[2] / values[0], int(values[0]), int(values[1]))
        mixture.touched(1)
    if parameters <= 0 or bytes_per_weight <= 0:
        raise ConfigError(f"--parameters {parameters}, --bytes-per-weight {bytes_per_weight}: both are over 0")
    return ModelShape(parameters * 1e9, bytes_per_weight, layers, heads, kv_heads, head_dim, experts=mixture)


def machine(gpu: str, efficiency: str, price: float | None = None) -> Machine:
    """The GPU of the table. Raises ConfigError for one that is not in it."""
    from outrider.theory.gpus import gpu_of

    values = numbers(efficiency, "--efficiency")
    if len(values) != 2 or not all(0.0 < value <= 1.0 for value in values):
        raise ConfigError(f"--efficiency {efficiency!r}: two shares, such as 0.8,0.6")
    return gpu_of(gpu).machine((values[0], values[1]), price)
