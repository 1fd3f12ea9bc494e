"""``outrider export ENGINE``: a deployment as another engine's configuration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.common import print_json, single_config
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.export.base import Exported
    from outrider.export.deployment import Deployment

ENGINES = {
    "vllm": "Write a deployment as a vLLM command, its --speculative-config and a YAML file.",
    "sglang": "Write a deployment as an SGLang command, a YAML file, and the file of its adaptive mode.",
    "trtllm": "Write a deployment as a TensorRT-LLM command and the YAML file that it reads.",
    "llamacpp": "Write a deployment as a llama-server command.",
    "transformers": "Write a deployment as arguments of transformers' generate, and a program that uses them.",
    "openvino": "Write a deployment as an OpenVINO GenAI generation config, and a program that uses it.",
}
Target = Annotated[str, typer.Option("--target", metavar="MODEL", help="The model that is served.")]
Head = Annotated[str | None, typer.Option("--head", metavar="PATH", help="Draft head: a folder, or a hub id of one.")]
Advice = Annotated[
    Path | None,
    typer.Option(
        "--advice", metavar="FILE", help="What `outrider advise` wrote; with --method another one of its ranking."
    ),
]
Schedule = Annotated[
    Path | None,
    typer.Option(
        "--load-schedule",
        metavar="FILE",
        help="JSON: rows of first batch, last batch and draft tokens, or measurements to compute them from.",
    ),
]
Gpus = Annotated[int, typer.Option("--tensor-parallel-size", min=1, help="GPUs that the target is spread over.")]
Version = Annotated[
    str | None, typer.Option("--engine-version", help="Version to write for; none: the one checked last.")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Where files and a converted head go; none: shown only.")
]


def command_for(engine: str, summary: str) -> Callable[..., None]:
    """The command of one engine."""

    def export(
        target: Target,
        method: options.Method = None,
        draft: options.Draft = None,
        head: Head = None,
        num_tokens: options.NumTokens = None,
        config: options.Config = None,
        advice: Advice = None,
        load_schedule: Schedule = None,
        temperature: options.Temperature = 0.0,
        max_model_len: options.Context = None,
        tensor_parallel_size: Gpus = 1,
        engine_version: Version = None,
        out: Out = None,
        as_json: options.Json = False,
    ) -> None:
        from outrider.export import registry

        values: dict[str, Any] = {"temperature": temperature, "max_model_len": max_model_len}
        values["tensor_parallel_size"] = tensor_parallel_size
        if advice is not None:
            if draft is not None or head is not None or config:
                raise ConfigError("--advice names draft and settings: leave the options for them out, or leave it out")
            chosen = registry.engine_named(engine)
            values |= _from_advice(advice, method, chosen.able(chosen.check_version(engine_version)), num_tokens)
        else:
            if head is not None and draft is not None:
                raise ConfigError("--draft and --head: a method drafts with one of the two")
            found = single_config(method, config, draft if head is None else head, num_tokens)
            if len(found) != 1:
                raise ConfigError("name one drafting method: --method NAME (see `outrider methods`)")
            values["speculation"] = found[0]
        if load_schedule is not None:
            from outrider.export.schedule import read_schedule

            values["load_schedule"] = read_schedule(load_schedule)
        exported = registry.export(engine, _deployment(target, values), engine_version, out)
        print_json(exported.as_dict() | {"command_line": exported.command_line}) if as_json else _show(exported, out)

    export.__doc__ = summary
    return export


def register(app: typer.Typer) -> None:
    """Add one command for each engine."""
    for engine, summary in ENGINES.items():
        app.command(engine)(command_for(engine, summary))


def _deployment(target: str, values: dict[str, Any]) -> Deployment:
    from outrider.export.deployment import Deployment

    return Deployment(target=target, **values)


def _from_advice(
    path: Path, method: str | None, able: Mapping[str, tuple[str, ...]], num_tokens: int | None
) -> dict[str, Any]:
    """Speculation and load schedule of a recommendation, or of another candidate of its ranking, or its method with
    another K at any load. Raises ConfigError for a file that holds none."""
    from outrider.export.advice import read_advice

    speculation, schedule = read_advice(path, method, able)
    if num_tokens is not None:
        speculation, schedule = speculation.model_copy(update={"num_speculative_tokens": num_tokens}), None
    return {"speculation": speculation, "load_schedule": schedule}


def _show(exported: Exported, out: Path | None) -> None:
    from shlex import join

    for note in exported.notes:
        print(f"note: {note}", file=sys.stderr)
    for words in exported.before:
        print(join(words))
    print(exported.command_line)
    if out is not None:
        for name in [*exported.files, "run.sh"]:
            print(out / name, file=sys.stderr)
        return
    for name, text in exported.files.items():
        print(f"\n# {name}\n{text}", end="")
