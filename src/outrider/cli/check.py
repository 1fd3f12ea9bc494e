"""``outrider check``: is the text with speculation the text without it, token for token?"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.common import choose_methods, console, explain, open_llm, print_json, speculative_configs
from outrider.errors import ConfigError


def check(
    model: options.Model,
    prompts: options.Prompts,
    method: options.Methods = None,
    num_tokens: options.NumTokens = None,
    draft: options.Draft = None,
    speculative_config: options.Config = None,
    limit_per_task: options.Limit = None,
    max_tokens: options.MaxTokens = 64,
    temperature: Annotated[str, typer.Option("--temperature", metavar="T,T", help="Temperatures to check.")] = "0,1",
    seed: options.Seed = 0,
    raw: options.Raw = False,
    concurrency: Annotated[str, typer.Option("--concurrency", metavar="C,C", help="Batch sizes to check.")] = "1,8",
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
        typer.Option("--json", metavar="OUT", help="Result bundle: a folder, a .json file, or - for stdout."),
    ] = None,
) -> None:
    """Compare every method with plain decoding and classify each divergence as tie or bug; exit status 1 on a bug."""
    from outrider.bench import bundle, data, lossless, runner
    from outrider.bench.progress import TerminalProgress

    rows = data.load_prompts(prompts, limit_per_task)
    predicted = any(row.prediction is not None for row in rows)
    choice = choose_methods(method, num_tokens, speculative_config, draft, predicted)
    configs = speculative_configs(choice.methods, speculative_config, draft)
    plan = lossless.Plan(
        variants=[runner.Variant(v.label, v.method, v.num_tokens) for v in choice.variants],
        verifiers={config.method: config.verifier for config in configs},
        temperatures=_numbers("--temperature", temperature, float),
        concurrencies=[int(value) for value in _numbers("--concurrency", concurrency, int)],
        max_tokens=max_tokens,
        seed=seed,
        raw=raw,
    )
    settings: dict[str, Any] = {"max_model_len": max_model_len, "revision": revision}
    settings |= {"trust_remote_code": trust_remote_code, "tensor_parallel_size": tensor_parallel_size}
    most = max(16, lossless.NOISE_BATCH, *plan.concurrencies)
    bundle.check_place(out)
    with open_llm(
        model,
        threads=threads,
        configs=configs,
        dtype=dtype,
        exact=exact,
        seed=seed,
        max_num_seqs=most,
        skip_refused=choice.everything,
        **settings,
    ) as llm:
        if choice.everything:
            choice = choice.without(llm.refused)
            plan = replace(plan, variants=[v for v in plan.variants if v.method in choice.methods])
        choice.explain()
        outcome = lossless.run(llm, rows, plan, progress=TerminalProgress("check"))
        arguments: dict[str, Any] = {
            "model": model,
            "prompts": [str(path) for path in prompts],
            "limit_per_task": limit_per_task,
        }
        arguments |= {"speculative_config": [config.model_dump(exclude_unset=True) for config in configs]}
        manifest = bundle.manifest(llm.describe(), {**arguments, **plan.arguments()})
        explain(llm, show_reasons)
        token_text = llm.get_tokenizer().token_text
    summary = {**outcome.summary(), "left_out": choice.left_out}
    if out == "-":
        print_json({"manifest": manifest, "summary": summary})
    else:
        for part in lossless.report(outcome, token_text):
            console(stderr=False).print(part)
        if out is not None:
            bundle.write(out, manifest, summary)
    if outcome.num_bugs:
        raise typer.Exit(1)


def _numbers(option: str, text: str, kind: type[int] | type[float]) -> list[float]:
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text!r}: write numbers, comma separated") from None
    low = 1 if kind is int else 0
    if any(value < low for value in values):
        raise ConfigError(f"{option} {text!r}: a value is below {low}")
    return list(values)
