"""The table of engines."""

from __future__ import annotations

from pathlib import Path

from outrider.errors import ConfigError
from outrider.export import heads
from outrider.export.base import Engine, Exported
from outrider.export.deployment import Deployment
from outrider.export.llamacpp import LlamaCpp
from outrider.export.openvino import OpenVino
from outrider.export.sglang import Sglang
from outrider.export.transformers import Transformers
from outrider.export.trtllm import Trtllm
from outrider.export.vllm import Vllm

ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (Vllm(), Sglang(), Trtllm(), LlamaCpp(), Transformers(), OpenVino())
}
_WITH_HEADS = ("eagle3", "eagle", "eagle2", "mtp")


def engine_named(name: str) -> Engine:
    """The engine. Raises ConfigError that lists them."""
    if name not in ENGINES:
        raise ConfigError(f"no engine is called {name!r}; choose one of: {', '.join(ENGINES)}")
    return ENGINES[name]


def export(name: str, deployment: Deployment, version: str | None = None, out: Path | None = None) -> Exported:
    """The deployment for an engine; its head is converted, and everything written to the folder ``out`` if given."""
    engine = engine_named(name)
    notes: list[str] = []
    in_target = deployment.method == "mtp" and deployment.speculation.model is None
    if deployment.method in _WITH_HEADS and not in_target:
        named = deployment.speculation.model or "head"  # refuse what cannot be before a head is looked for
        config = deployment.speculation.model_copy(update={"model": named})
        engine.export(deployment.model_copy(update={"speculation": config}), version)
        deployment, notes = heads.place(deployment, engine, out)
    exported = engine.export(deployment, version)
    exported.notes[:0] = notes
    if deployment.speculation.num_speculative_tokens is None and deployment.load_schedule is None:
        exported.notes.append(
            f"nobody chose how much is drafted: {deployment.num_tokens} tokens a step is where {deployment.method} "
            "begins; set it with -k, or measure it (`outrider advise`) and give --advice"
        )
    if out is not None:
        write(exported, out)
    return exported


def write(exported: Exported, out: Path) -> None:
    """The files, and a script with the commands. Raises ConfigError where they cannot be written."""
    from shlex import join

    commands = [*map(join, exported.before), exported.command_line]
    texts = exported.files | {"run.sh": "\n".join(["#!/bin/sh", *commands]) + "\n"}
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}; name a folder that can be written") from None
