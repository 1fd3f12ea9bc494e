"""``outrider tune``: measure what a setting should be, and write it to a file that the engine reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import options
from outrider.cli.common import console, open_llm, print_json
from outrider.errors import ConfigError

app = typer.Typer(help="Measure what a setting should be.", no_args_is_help=True)


@app.callback()
def _tune() -> None:
    pass


@app.command("tree")
def tree(
    model: options.Model,
    draft: Annotated[str, typer.Option("--draft", metavar="MODEL", help="Draft model.")],
    prompts: options.Prompts,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write; read as `tree_file`.")] = Path(
        "tree.json"
    ),
    depth: Annotated[int, typer.Option("--depth", min=1, max=16, help="Levels of the calibrating draft.")] = 6,
    topk: Annotated[int, typer.Option("--topk", min=1, max=16, help="Children that are looked at.")] = 6,
    limit_per_task: options.Limit = None,
    max_tokens: options.MaxTokens = 64,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    raw: options.Raw = False,
    draft_dtype: Annotated[str, typer.Option("--draft-dtype", help="Format of the draft model's weights.")] = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    max_model_len: options.Context = None,
    as_json: options.Json = False,
) -> None:
    """Count which of a draft model's candidates the target takes, by depth and rank, for `tree_kind` static."""
    from outrider.bench import data, tree_tuning
    from outrider.bench.progress import TerminalProgress
    from outrider.config import SamplingParams, SpeculativeConfig

    rows = data.load_prompts(prompts, limit_per_task)
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: the folder {out.parent} does not exist; create it")
    config = SpeculativeConfig(**tree_tuning.comb(draft, depth, topk, draft_dtype=draft_dtype))
    with open_llm(model, threads=threads, configs=[config], dtype=dtype, max_model_len=max_model_len) as llm:
        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
        table = tree_tuning.calibrate(llm, rows, params, raw, TerminalProgress("tune tree"))
    if not sum(table.trials):
        raise ConfigError("--max-tokens is too low: no draft was verified; raise it")
    table.write(out)
    if as_json:
        print_json({"file": str(out), "acceptance": table.acceptance, "trials": table.trials})
        return
    for part in tree_tuning.report(table):
        console(stderr=False).print(part)
    print(f'written to {out}: use "tree_kind": "static", "tree_file": "{out}" in --speculative-config')


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
