"""``outrider serve --replicas`` and ``--autoscale``: the same server many times, under Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.config import SpeculativeConfig
    from outrider.server.service import ServerSettings

_PANEL = "Server"

Replicas = Annotated[
    int | None,
    typer.Option("--replicas", min=1, help="Engines behind the address, under Ray Serve.", rich_help_panel=_PANEL),
]
Autoscale = Annotated[
    str | None,
    typer.Option(
        "--autoscale",
        metavar="MIN:MAX",
        help="As many engines as the load asks for, under Ray Serve.",
        rich_help_panel=_PANEL,
    ),
]


def scale(replicas: int | None, autoscale: str | None) -> dict[str, Any]:
    """Options of the application that say how many replicas there are. Raises ConfigError."""
    if autoscale is None:
        return {"replicas": replicas}
    if replicas is not None:
        raise ConfigError("--replicas and --autoscale: give one")
    low, _, high = autoscale.partition(":")
    if not (low.isdigit() and high.isdigit() and int(low) <= int(high) and int(high) > 0):
        raise ConfigError(f"--autoscale {autoscale!r}: give the fewest and the most replicas, such as 1:4")
    return {"autoscaling_config": {"min_replicas": int(low), "max_replicas": int(high)}}


def serve(
    model: str,
    llm: Mapping[str, Any],
    configs: Sequence[SpeculativeConfig],
    settings: ServerSettings,
    host: str,
    port: int,
    **given: Any,
) -> None:
    """Serve until interrupted. ``llm``: other arguments of ``LLM``; ``given``: other options of the application."""
    try:
        from outrider.server.replicas.app import Options
        from outrider.server.replicas.launch import serve_forever
    except ImportError as error:
        raise ConfigError(f"--replicas and --autoscale need {error.name}: pip install 'outrider[ray]'") from None
    methods = [config.model_dump(exclude_unset=True) for config in configs]
    server = {each.name: getattr(settings, each.name) for each in fields(settings)}
    llm = {**llm, "speculative_config": methods or None}
    serve_forever(Options(model=model, llm=llm, server=server, **given), host, port)
