"""``outrider advise``: which draft, how many tokens, and whether it pays, from the user's own model and prompts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.common import console, given_configs, open_llm, print_json
from outrider.errors import ConfigError


def advise(
    target: Annotated[str, typer.Option("--target", metavar="MODEL", help="The model that is served.")],
    prompts: Annotated[
        list[Path] | None,
        typer.Option("--prompts", metavar="FILE", help="Your prompts, as `bench` takes them, or recorded requests."),
    ] = None,
    draft: Annotated[
        list[str] | None, typer.Option("--draft", metavar="MODEL", help="Draft model; may be repeated.")
    ] = None,
    head: Annotated[
        list[str] | None, typer.Option("--head", metavar="FOLDER", help="Draft head; may be repeated.")
    ] = None,
    speculative_config: options.Config = None,
    temperature: options.Temperature = 0.0,
    concurrency: Annotated[
        str, typer.Option("--concurrency", metavar="1,8,32", help="Loads: requests at a time.")
    ] = "1,8,32",
    memory: Annotated[float | None, typer.Option("--memory", metavar="GB", help="For weights and caches.")] = None,
    target_tpot_ms: Annotated[
        float | None, typer.Option("--target-tpot-ms", metavar="X", help="Milliseconds a token that must hold.")
    ] = None,
    limit_per_task: options.Limit = None,
    max_tokens: options.MaxTokens = 64,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="For the screen.")] = 120.0,
    prove: Annotated[int, typer.Option("--prove", min=0, help="Candidates that run for real; 0 for none.")] = 3,
    prove_prompts: Annotated[int, typer.Option("--prove-prompts", min=1, help="Prompts that they run on.")] = 12,
    trees: Annotated[bool, typer.Option("--trees/--no-trees", help="Heads as trees too.")] = True,
    seed: options.Seed = 0,
    raw: options.Raw = False,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    max_model_len: options.Context = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="advice.json, advice.html, and files for `simulate`."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Say which draft, head or lookup to use for your model and prompts, how many tokens, at which load, and why."""
    from outrider.advise import answer, candidates, run, screen, traffic
    from outrider.bench import bundle

    if not prompts:
        raise ConfigError(
            "--prompts is missing: give a file of your own prompts (JSON lines with `prompt`, `turns` or `messages`, "
            "text with a prompt a line, or a request log that holds texts); 20 to 50 of each kind are a good start"
        )
    loads = _loads(concurrency)
    limits = answer.Limits(loads, None if memory is None else int(memory * 1e9), target_tpot_ms)
    if out is not None:
        bundle.check_place(str(out))
    rows = traffic.load(prompts, limit_per_task)
    plan = run.Plan(
        drafts=draft or (),
        heads={folder: candidates.kind_of_head(folder) for folder in head or ()},
        configs=given_configs(speculative_config),
        screen=screen.Plan(max_tokens, temperature, seed, raw, seconds),
        limits=limits,
        prove=prove,
        prove_prompts=prove_prompts,
        trees=trees,
    )
    for name in draft or ():
        candidates.check_draft(name, revision=revision if name == target else None)
    settings: dict[str, Any] = {"max_model_len": max_model_len, "revision": revision}
    settings |= {"trust_remote_code": trust_remote_code, "max_num_seqs": max(16, *loads), "dtype": dtype, "seed": seed}
    with open_llm(target, threads=threads, configs=(), **settings) as llm:
        advice = run.advise(llm, rows, plan)
        _tell(
            advice,
            bundle.manifest(llm.describe(), {"target": target, "prompts": [str(p) for p in prompts]}),
            out,
            as_json,
        )


def _tell(advice: Any, manifest: dict[str, Any], out: Path | None, as_json: bool) -> None:
    from outrider.advise import document, files, report

    value = {"manifest": manifest, **document.document(advice)}
    if out is not None:
        files.write(out, value, advice)
    if as_json:
        print_json(value)
        return
    for line in advice.reasons:
        print(line)
    print()
    for table in report.tables(advice):
        console(stderr=False).print(table)
        print()
    for label, reason in advice.rig.refused.items():
        print(f"left out: {label}: {reason}", file=sys.stderr)
    if out is not None:
        print(f"written to {out}: advice.html to read, advice.json for `outrider export ENGINE --advice`")


def _loads(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--concurrency {text!r}: give numbers of requests at a time, such as 1,8,32")
    return sorted({int(part) for part in parts})
