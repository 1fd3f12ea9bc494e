"""Tracing one generation: run it with a recorder, and beside it plain decoding if that is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outrider.config import SamplingParams, SpeculationParams, SpeculativeConfig
from outrider.core.verifiers.table import RULES
from outrider.errors import RequestError
from outrider.outputs import RequestOutput
from outrider.telemetry.record import PlainRun, Trace, tokens_per_second
from outrider.telemetry.recorder import StepRecorder

if TYPE_CHECKING:
    from outrider.llm import LLM

_WARM_UP_TOKENS = 16


def trace(
    llm: LLM,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    config: SpeculativeConfig | None,
    *,
    compare: bool = False,
) -> Trace:
    """Generate one sample for one prompt and record every step. Raises RequestError when ``params.n`` is not 1.

    ``config``: the method that ``llm`` was opened with, None for plain decoding. ``compare`` decodes the prompt without
    speculation first. A short run before each warms up kernels and the planner's estimates; stores learn nothing of it.
    """
    if params.n != 1:
        raise RequestError(f"n={params.n}: a trace shows one sample; set n=1")
    tokenizer = llm.get_tokenizer()
    plain = _generate(llm, prompt_token_ids, params, SpeculationParams(enabled=False)) if compare else None
    recorder = StepRecorder(tokenizer)
    _warm_up(llm, prompt_token_ids, params, None)
    llm.record(recorder)
    try:
        output = llm.generate(_prompt(prompt_token_ids, "trace"), params, use_tqdm=False)[0]
    finally:
        llm.record(None)
    completion = output.outputs[0]
    return Trace(
        method=None if config is None else config.method,
        verifier=None if config is None else config.verifier,
        lossless=config is None or RULES[config.verifier].lossless,
        greedy=params.temperature == 0.0,
        model=llm.describe(),
        settings=_settings(params, config, output),
        prompt=tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False),
        num_prompt_tokens=len(output.prompt_token_ids),
        text=completion.text,
        finish_reason=completion.finish_reason,
        steps=recorder.steps(output.request_id),
        stats=output.stats,
        plain=None if plain is None else _plain_run(plain, output),
        reasons=list(output.speculation),
    )


def _generate(
    llm: LLM, tokens: Sequence[int], params: SamplingParams, speculation: SpeculationParams | None
) -> RequestOutput:
    _warm_up(llm, tokens, params, speculation)
    params = params.model_copy(update={"speculation": speculation})
    return llm.generate(_prompt(tokens, "plain"), params, use_tqdm=False)[0]


def _warm_up(llm: LLM, tokens: Sequence[int], params: SamplingParams, speculation: SpeculationParams | None) -> None:
    length = min(_WARM_UP_TOKENS, params.max_tokens or _WARM_UP_TOKENS)
    params = params.model_copy(update={"speculation": speculation, "max_tokens": length, "min_tokens": 0})
    llm.generate(_prompt(tokens, "warm-up"), params, use_tqdm=False)


def _prompt(tokens: Sequence[int], salt: str) -> dict[str, Any]:
    # the salt separates stores that outlive a request: the trace must not find the answer of the warm-up there
    return {"prompt_token_ids": list(tokens), "cache_salt": salt}


def _plain_run(plain: RequestOutput, output: RequestOutput) -> PlainRun:
    return PlainRun(
        identical=plain.outputs[0].token_ids == output.outputs[0].token_ids,
        num_tokens=len(plain.outputs[0].token_ids),
        tokens_per_second=tokens_per_second(plain.stats),
        prefill_seconds=plain.stats.prefill_seconds,
        decode_seconds=plain.stats.decode_seconds,
    )


def _settings(params: SamplingParams, config: SpeculativeConfig | None, output: RequestOutput) -> dict[str, Any]:
    """What was asked for: settings that differ from their defaults, and the seed that was used."""
    sampling = params.model_dump(exclude_defaults=True, exclude={"prediction"})
    return {
        "sampling": {"temperature": params.temperature, **sampling, "seed": output.seed},
        "speculative_config": None if config is None else config.model_dump(exclude_unset=True),
    }
