"""``outrider trace``: one generation, every step of it, as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli import options
from outrider.cli.common import explain, open_llm, print_json, single_config
from outrider.cli.generate import check_prediction, messages, read_prompt, read_value
from outrider.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from outrider.telemetry.record import Trace


def trace(
    model: options.Model,
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The prompt; standard input when left out or '-'.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The page; trace.html by default.")
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", metavar="FILE", help="Take the prompt from this prompt file or folder.")
    ] = None,
    index: Annotated[int, typer.Option("--index", min=0, help="Which prompt of --prompts, from 0.")] = 0,
    compare: Annotated[bool, typer.Option("--compare", help="Decode the prompt without speculation as well.")] = False,
    method: options.Method = None,
    num_tokens: options.NumTokens = None,
    draft: options.Draft = None,
    speculative_config: options.Config = None,
    prediction: options.Prediction = None,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.Penalty = 1.0,
    seed: options.Seed = 0,
    max_tokens: options.MaxTokens = 128,
    stop: options.Stop = None,
    system: options.System = None,
    raw: options.Raw = False,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    exact: options.Exact = True,
    max_model_len: options.Context = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    show_reasons: options.Explain = False,
    as_json: options.Record = False,
) -> None:
    """Show one generation step by step on one HTML page: drafts as trees, probabilities, acceptance, time, choices."""
    if prediction is not None and not (method or draft or speculative_config):
        method = "prediction"
    configs = single_config(method, speculative_config, draft, num_tokens)
    if len(configs) > 1:
        raise ConfigError("trace shows one method: give one object in --speculative-config")
    if raw and system is not None:
        raise RequestError("--system needs the chat template: leave out --raw or --system")
    text, expected = _prompt(prompt, prompts, index)
    expected = read_value("--prediction", prediction) or expected
    check_prediction(expected is not None, prediction is not None, configs)
    page = None if as_json and out is None else _place(out or Path("trace.html"))
    from outrider.bench.runner import encode
    from outrider.config import SamplingParams

    sampling = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        max_tokens=max_tokens,
        stop=stop,
        prediction=expected,
    )
    settings = {"max_model_len": max_model_len, "revision": revision, "trust_remote_code": trust_remote_code}
    with open_llm(
        model, threads=threads, configs=configs, dtype=dtype, exact=exact, enable_prefix_caching=False, **settings
    ) as llm:
        from outrider.telemetry.trace import trace as run

        tokens = encode(llm, messages(text, system), raw)
        record = run(llm, tokens, sampling, configs[0] if configs else None, compare=compare)
        explain(llm, show_reasons)
    if as_json:
        print_json(record.to_dict())
    if page is not None:
        _write(page, record)


def _prompt(prompt: str | None, prompts: Path | None, index: int) -> tuple[str, str | None]:
    """The prompt's text and the expected output that its row has."""
    if prompts is None:
        return read_prompt(prompt), None
    if prompt is not None:
        raise RequestError("give either a prompt or --prompts FILE")
    from outrider.bench.data import load_prompts

    rows = load_prompts([prompts])
    if index >= len(rows):
        raise ConfigError(f"--index {index}: {prompts} has {len(rows)} prompts; choose 0 to {len(rows) - 1}")
    if len(rows[index].turns) > 1:
        print(f"{rows[index].prompt_id}: the first of {len(rows[index].turns)} turns", file=sys.stderr)
    return rows[index].turns[0], rows[index].prediction


def _place(path: Path) -> Path:
    """``path``, when a file can be made there: to be known before the model is loaded."""
    import tempfile

    if path.is_dir():
        raise ConfigError(f"-o {path}: cannot be written (it is a folder); name another place")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"-o {path}: cannot be written ({error.strerror}); name another place")


def _write(path: Path, record: Trace) -> None:
    from outrider.telemetry.page import render

    try:
        path.write_text(render(record), encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from None
    stats = record.stats
    length = stats.mean_acceptance_length
    parts = [f"{path}: {stats.num_completion_tokens} token(s) in {stats.num_steps} step(s) after prefill"]
    if length is not None and record.method is not None:
        parts.append(f"mean acceptance length {length:.2f}")
    print(", ".join(parts), file=sys.stderr)
