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
