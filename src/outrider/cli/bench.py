"""``outrider bench``: methods against plain decoding in one alternating run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.common import choose_methods, console, explain, open_llm, print_json, speculative_configs


def bench(
    model: options.Model,
    prompts: options.Prompts,
    method: options.Methods = None,
    num_tokens: options.NumTokens = None,
    draft: options.Draft = None,
    speculative_config: options.Config = None,
    limit_per_task: options.Limit = None,
    max_tokens: options.MaxTokens = 128,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = 0,
    raw: options.Raw = False,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests at a time.")] = 1,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each prompt; medians count.")] = 1,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    exact: options.Exact = True,
    max_model_len: options.Context = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    tensor_parallel_size: options.TensorParallel = 1,
    show_reasons: options.Explain = False,
    out: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="OUT",
            help="Result bundle: a folder, a .json file (without the rows of single prompts), or - for stdout.",
        ),
    ] = None,
) -> None:
    """Measure methods against plain decoding: the same prompts and weights, one run, alternating."""
    from outrider.bench import bundle, data, report, runner
    from outrider.bench.progress import TerminalProgress

    rows = data.load_prompts(prompts, limit_per_task)
    predicted = any(row.prediction is not None for row in rows)
    choice = choose_methods(method, num_tokens, speculative_config, draft, predicted)
    configs = speculative_configs(choice.methods, speculative_config, draft)
    settings: dict[str, Any] = {"max_model_len": max_model_len, "revision": revision}
    settings |= {"trust_remote_code": trust_remote_code, "tensor_parallel_size": tensor_parallel_size}
    bundle.check_place(out)
    with open_llm(
        model,
        threads=threads,
        configs=configs,
        dtype=dtype,
        exact=exact,
        seed=seed,
        max_num_seqs=max(16, concurrency),
        skip_refused=choice.everything,
        enable_prefix_caching=False,  # or the second run of a prompt would skip its prefill
        **settings,
    ) as llm:
        choice = choice.without(llm.refused) if choice.everything else choice
        choice.explain()
        plan = runner.Plan(
            variants=[runner.PLAIN, *(runner.Variant(v.label, v.method, v.num_tokens) for v in choice.variants)],
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            concurrency=concurrency,
            repeats=repeats,
            raw=raw,
        )
        results = runner.run(llm, rows, plan, progress=TerminalProgress("bench"))
        arguments: dict[str, Any] = {
            "model": model,
            "prompts": [str(path) for path in prompts],
            "limit_per_task": limit_per_task,
        }
        arguments |= {"speculative_config": [config.model_dump(exclude_unset=True) for config in configs]}
        manifest = bundle.manifest(llm.describe(), {**arguments, **plan.arguments()})
        explain(llm, show_reasons)
    summary = {**report.summarize(results, plan), "left_out": choice.left_out}
    if out == "-":
        print_json({"manifest": manifest, "summary": summary})
        return
    for table in report.tables(summary):
        console(stderr=False).print(table)
    if out is not None:
        bundle.write(out, manifest, summary, results)
