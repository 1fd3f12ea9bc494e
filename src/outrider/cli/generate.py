"""``outrider generate``: one answer, streamed; drafted tokens coloured on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli import options
from outrider.cli.common import check_text, explain, open_llm, print_json, single_config
from outrider.errors import RequestError, why_unread

if TYPE_CHECKING:
    from outrider.config import SpeculativeConfig, StructuredOutputs
    from outrider.llm import LLM


def generate(
    model: options.Model,
    prompt: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The prompt; standard input when left out or '-'.")
    ] = None,
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
    max_tokens: options.MaxTokens = 256,
    stop: options.Stop = None,
    structured_outputs: options.StructuredOutputs = None,
    system: options.System = None,
    raw: options.Raw = False,
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    exact: options.Exact = True,
    max_model_len: options.Context = None,
    revision: options.Revision = None,
    trust_remote_code: options.TrustRemoteCode = False,
    tensor_parallel_size: options.TensorParallel = 1,
    show_reasons: options.Explain = False,
    as_json: options.Json = False,
) -> None:
    """Answer one prompt. The text goes to stdout as it is made, statistics to stderr."""
    if prediction is not None and not (method or draft or speculative_config):
        method = "prediction"
    configs = single_config(method, speculative_config, draft, num_tokens)
    check_prediction(prediction is not None, prediction is not None, configs)
    text = read_prompt(prompt)
    if raw and system is not None:
        raise RequestError("--system needs the chat template: leave out --raw or --system")
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
        prediction=read_value("--prediction", prediction),
        structured_outputs=_structured(structured_outputs),
    )
    settings: dict[str, Any] = {"max_model_len": max_model_len, "revision": revision}
    settings |= {"trust_remote_code": trust_remote_code, "tensor_parallel_size": tensor_parallel_size}
    with open_llm(model, threads=threads, configs=configs, dtype=dtype, exact=exact, **settings) as llm:
        if as_json:
            print_json(_complete(llm, text, system, raw, sampling))
        else:
            _stream(llm, text, system, raw, sampling)
        explain(llm, show_reasons)


def messages(text: str, system: str | None = None) -> list[dict[str, str]]:
    """A conversation of one user turn."""
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": text}]


def check_prediction(known: bool, given: bool, configs: Sequence[SpeculativeConfig]) -> None:
    """Raise RequestError when a method lacks the expected output (``known``), or nothing uses a ``given`` one."""
    from outrider.drafters import registry

    used = [member.method for config in configs for member in registry.everyone(config)]
    following = [name for name in used if registry.info(name).needs_prediction]
    if not known and used and following == used:
        raise RequestError(f"--method {used[0]} needs the expected output: add --prediction TEXT (or @FILE)")
    if given and not following:
        raise RequestError("--prediction is used by prediction only: add --method prediction or leave it out")


def read_prompt(prompt: str | None) -> str:
    """The prompt as given, or from standard input. Raises RequestError when there is none."""
    if prompt is not None and prompt != "-":
        return check_text(prompt, "the prompt")
    if sys.stdin.isatty():
        raise RequestError("no prompt: give it after the model, or pipe it in")
    try:
        return check_text(sys.stdin.read(), "the prompt on standard input")
    except UnicodeDecodeError:
        raise RequestError(
            "the prompt on standard input is not UTF-8 text: convert it first, such as with iconv"
        ) from None


def _structured(value: str | None) -> StructuredOutputs | None:
    from outrider.config import StructuredOutputs

    text = read_value("--structured-outputs", value)
    if text is None:
        return None
    try:
        wanted = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"--structured-outputs is not JSON ({error.msg} at character {error.pos})") from None
    if not isinstance(wanted, dict):
        raise RequestError('--structured-outputs takes a JSON object, such as {"choice": ["yes", "no"]}')
    return StructuredOutputs(**wanted)


def read_value(option: str, value: str | None) -> str | None:
    """The value of an option, from a file for ``@FILE``."""
    if value is None or not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{option} {value}: cannot be read ({why_unread(error)})") from None


def _stream(llm: LLM, text: str, system: str | None, raw: bool, sampling: Any) -> None:
    from outrider.cli.stream import play

    if raw or not llm.get_tokenizer().has_chat_template:
        chunks = llm.stream(text, sampling_params=sampling)
    else:
        chunks = llm.stream(messages=messages(text, system), sampling_params=sampling)
    answer = play(chunks, decode=llm.get_tokenizer().decode)
    print()
    sys.stdout.flush()
    print(answer.line(), file=sys.stderr)
    if answer.finish_reason == "interrupt":
        raise typer.Exit(130)


def _complete(llm: LLM, text: str, system: str | None, raw: bool, sampling: Any) -> dict[str, Any]:
    if raw or not llm.get_tokenizer().has_chat_template:
        (output,) = llm.generate(text, sampling, use_tqdm=False)
    else:
        (output,) = llm.chat(messages(text, system), sampling)
    first = output.outputs[0]
    return {
        "prompt_token_ids": list(output.prompt_token_ids),
        "text": first.text,
        "token_ids": list(first.token_ids),
        "from_draft": list(first.from_draft),
        "finish_reason": first.finish_reason,
        "stop_reason": first.stop_reason,
        "stats": output.stats.to_dict(),
        "model": llm.describe(),
    }
