"""``outrider tune``: settings of a method, searched on your own prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import options
from outrider.cli.common import open_llm, print_json

app = typer.Typer(help="Search the settings of a method on your own prompts.", no_args_is_help=True)


@app.callback()
def _tune() -> None:
    """Search the settings of a method on your own prompts."""


@app.command("layer_skip")
def layer_skip(
    model: options.Model,
    prompts: options.Prompts,
    trials: Annotated[int, typer.Option("--trials", min=1, help="Sets that are tried.")] = 200,
    limit_per_task: options.Limit = None,
    max_tokens: options.MaxTokens = 64,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the search.")] = 0,
    raw: options.Raw = False,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    max_model_len: options.Context = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="File for skip_file; layer_skip finds the default by itself."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Search the sublayers that layer_skip leaves out: expected tokens per second over your prompts."""
    from outrider.tune import layer_skip as tuner
    from outrider.tune import run

    tuner.require_optuna()
    plan = run.Plan(prompts, limit_per_task, max_tokens, raw, trials, seed, out)
    settings = {"max_model_len": max_model_len, "revision": revision, "trust_remote_code": trust_remote_code}
    with open_llm(model, threads=threads, configs=(), dtype=dtype, **settings) as llm:
        result = run.layer_skip(llm, plan)
    if as_json:
        print_json(result)
        return
    print(f"skipped attention: {result['skip_attention_layers']}")
    print(f"skipped MLP: {result['skip_mlp_layers']}")
    print(
        f"expected {result['expected_speedup']:.2f}x the speed of plain decoding with "
        f"{result['num_speculative_tokens']} draft tokens a step; a draft row takes {result['draft_ms']:.2f} ms, "
        f"a plain step {result['plain_ms']:.2f} ms"
    )
    print(f"written to {result['file']}")
