"""The offline entry point: ``LLM`` with vLLM's names, so that a vLLM example runs unchanged."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from outrider import threads as thread_settings
from outrider.closing import Closing
from outrider.config import SamplingParams, SpeculationParams, SpeculativeConfig
from outrider.errors import ConfigError, RequestError
from outrider.outputs import RequestOutput, RequestStats, StreamChunk

if TYPE_CHECKING:
    from outrider.engine.load import EngineLoad
    from outrider.engine.requests import Request
    from outrider.engine.step import Meter, Recorder

Prompt = str | Seq[int] | Mapping[str, Any]
Messages = Seq[Mapping[str, Any]]
Configs = SpeculativeConfig | Mapping[str, Any] | Seq[SpeculativeConfig | Mapping[str, Any]] | None


class LLM(Closing):
    """A model that answers prompts, with speculation where it pays and the text of plain decoding.

    ``model``: a known name (`outrider models`), a folder, a GGUF file, or a hub id. ``dtype``: auto, float32, float16,
    bfloat16, int8, int4 or gguf (weights; auto is float16 on the CPU, gguf keeps the blocks of a GGUF file).
    ``speculative_config``: one method or several; the first serves requests that do not name one. ``threads``: None
    measures. ``exact``: a row's bits depend on nothing but its own tokens. ``kv_cache_tokens``: size of the cache; None
    takes a quarter of the free memory. ``target_tpot_ms``: milliseconds per token that running requests are to keep:
    others wait while the batch is too large for it. ``strict``: a failing drafter is an error instead of a reasoned
    switch-off. ``skip_refused``: methods that the model or their draft models do not allow are left out; ``refused``
    says why.
    Raises ConfigError, ModelError or VocabularyError, each one line.

    ``tensor_parallel_size``: processes that the target is spread over, which `torchrun` has started; in all but the
    first the call does not return, and they end with the first.

    ``last_output``: what the request of the latest ``stream`` got, complete once its iterator has ended or was dropped.
    """

    last_output: RequestOutput | None = None

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        dtype: str = "auto",
        max_model_len: int | None = None,
        speculative_config: Configs = None,
        seed: int = 0,
        device: str = "cpu",
        threads: int | None = None,
        exact: bool = True,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 512,
        enable_prefix_caching: bool = True,
        kv_cache_tokens: int | None = None,
        target_tpot_ms: float | None = None,
        strict: bool = False,
        revision: str | None = None,
        trust_remote_code: bool = False,
        skip_refused: bool = False,
        tensor_parallel_size: int = 1,
    ) -> None:
        thread_settings.prepare(threads)
        from outrider.engine import build
        from outrider.engine.requests import RequestFactory
        from outrider.target.model import Target, load_target
        from outrider.target.sharded import load_sharded

        if max_num_seqs < 1 or max_num_batched_tokens < max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens={max_num_batched_tokens} must be at least max_num_seqs={max_num_seqs} and one"
            )
        if tensor_parallel_size < 1:
            raise ConfigError(f"tensor_parallel_size={tensor_parallel_size}: give 1 or more processes")
        if target_tpot_ms is not None and target_tpot_ms <= 0.0:
            raise ConfigError(f"target_tpot_ms={target_tpot_ms} must be over 0: leave it out for no target")
        configs = _configs(speculative_config)
        build.check_configs(configs)
        origin: dict[str, Any] = {"dtype": dtype, "device": device, "revision": revision}
        origin["trust_remote_code"] = trust_remote_code
        refused = build.check_target(
            configs, model, skip_refused=skip_refused, tensor_parallel_size=tensor_parallel_size, **origin
        )
        configs = [config for config in configs if config.method not in refused]
        if tensor_parallel_size > 1:
            target: Target = load_sharded(model, tensor_parallel_size, max_model_len=max_model_len, **origin)
        else:
            target = load_target(model, exact=exact, max_model_len=max_model_len, **origin)
        self._threads = build.choose_threads(target, threads)
        options = build.EngineOptions(
            max_num_seqs, max_num_batched_tokens, enable_prefix_caching, kv_cache_tokens, strict, seed, target_tpot_ms
        )
        self._engine, more = build.build_allowed(target, configs, options, skip_refused)
        self.refused = refused | more
        self._factory = RequestFactory(self._engine, seed)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one prompt or many (text, token ids, or ``{"prompt": ...}`` / ``{"prompt_token_ids": ...}``).

        ``sampling_params``: one for all, or one a prompt; None: the model's own defaults. Raises RequestError before
        anything runs. When a request fails, the others finish first; the error (NumericsError, or RequestError when
        the cache is too small) then holds what all of them got in ``outputs``.
        """
        listed = _listed(prompts)
        params = _spread(sampling_params, len(listed), self.get_default_sampling_params)
        requests = [self._factory.request(f"{next(self._ids)}", p, s) for p, s in zip(listed, params, strict=True)]
        return self._run(requests, use_tqdm)

    def chat(
        self,
        messages: Messages | Seq[Messages],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one conversation or many through the model's chat template."""
        many: Seq[Messages] = [messages] if messages and isinstance(messages[0], Mapping) else messages  # type: ignore[assignment,list-item]
        prompts = [self._chat_prompt(conversation) for conversation in many]
        return self.generate(prompts, sampling_params, use_tqdm)

    def stream(
        self,
        prompt: Prompt | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        messages: Messages | None = None,
    ) -> Iterator[StreamChunk]:
        """Answer one prompt or conversation step by step. The iterator may be dropped at any token."""
        if (prompt is None) == (messages is None):
            raise RequestError("stream: give either prompt or messages")
        source = self._chat_prompt(messages) if messages is not None else prompt
        assert source is not None
        params = sampling_params or self.get_default_sampling_params()
        request = self._factory.request(f"{next(self._ids)}", source, params)
        return self._stream(request)

    def request(
        self,
        request_id: str,
        prompt: Prompt | None,
        sampling_params: SamplingParams,
        *,
        messages: Messages | None = None,
        cache_salt: str = "",
    ) -> Request:
        """A request to be started, followed (``Request.chunks``) and aborted by the caller, who calls ``step``; prompts
        of one ``cache_salt`` share cached prefixes. Raises RequestError for one that cannot be served."""
        source = self._chat_prompt(messages) if messages is not None else prompt
        if source is None:
            raise RequestError("request: give either prompt or messages")
        if cache_salt:
            known = source if isinstance(source, Mapping) else None
            key = "prompt" if isinstance(source, str) else "prompt_token_ids"
            source = {**(known or {key: source}), "cache_salt": cache_salt}
        return self._factory.request(request_id, source, sampling_params)

    def step(self) -> None:
        """One step of the engine over all requests that were started."""
        self._engine.step()

    @property
    def has_work(self) -> bool:
        """Requests that were started have not ended."""
        return self._engine.has_work

    @property
    def max_num_seqs(self) -> int:
        """Sequences that run at the same time."""
        return self._engine.scheduler.max_num_seqs

    def _stream(self, request: Request) -> Iterator[StreamChunk]:
        try:
            request.start()
            finished = False
            while not finished:
                finished = request.finished  # it may also end between two chunks, while others are answered
                yield from request.chunks()
                if not request.finished:
                    self._engine.step()
            self._raise_failure([request])
        finally:
            request.abort()
            self.last_output = request.output()

    def _run(self, requests: list[Request], progress: bool) -> list[RequestOutput]:
        from outrider.target.progress import late_bar

        with ExitStack() as stack:
            for request in requests:
                stack.callback(request.abort)
                request.start()
            left = {seq.seq_id for request in requests for seq in request.sequences}
            total = len(left)
            shown = progress and sys.stderr.isatty()
            bar = stack.enter_context(late_bar("requests")) if shown else None
            while left:
                left.difference_update(seq.seq_id for seq in self._engine.step() if seq.finished)
                if bar is not None:
                    bar.update(total - len(left), total)
        self._raise_failure(requests)
        return [request.output() for request in requests]

    def _raise_failure(self, requests: list[Request]) -> None:
        """Raise the first request's failure, when there is one, with what all requests got."""
        for request in requests:
            if request.failure is not None:
                error = type(request.failure)(f"request {request.request_id}: {request.failure}")
                error.outputs = [each.output() for each in requests]
                raise error

    def _chat_prompt(self, messages: Messages) -> dict[str, Any]:
        tokenizer = self._engine.target.tokenizer
        return {"prompt_token_ids": tokenizer.encode_chat(messages), "prompt": tokenizer.render_chat(messages)}

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together: the context, or the whole cache where that is smaller."""
        return self._engine.max_len

    @property
    def fingerprint(self) -> str:
        """What tells the model's weights from others."""
        return self._engine.target.fingerprint

    def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._engine.target.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Sampling parameters of the model's own generation config."""
        return self._factory.default_params()

    @property
    def methods(self) -> dict[str, SpeculativeConfig]:
        """The loaded methods by name; the first serves requests that do not name one."""
        return {name: method.config for name, method in self._engine.drafting.methods.items()}

    def describe(self) -> dict[str, Any]:
        """Model, format, kernels, attention, whether the path is exact and why, threads, methods, cost curve."""
        engine = self._engine
        curve = engine.planner.curve
        return {
            **engine.target.describe(),
            "threads": self._threads,
            "methods": list(engine.drafting.methods),
            "notes": {name: each.drafter.note for name, each in engine.drafting.methods.items() if each.drafter.note},
            "kv_cache_tokens": engine.scheduler.pool.own_blocks * engine.scheduler.pool.block_size,
            "cost_ms": {rows: round(1e3 * s, 3) for rows, s in zip(curve.rows, curve.seconds, strict=True)},
        }

    def explain(self) -> list[str]:
        """Why the engine does what it does: format, attention, threads, and the planner's latest choices."""
        facts = self.describe()
        lines = [
            f"weights: {facts['dtype']} through {facts['kernel']} ({facts['path']} path)",
            f"attention: {facts['attention']}",
            f"exact: {facts['exact']} ({facts['exact_reason']})",
            f"threads: {facts['threads']}",
        ]
        lines += [f"{method}: {note}" for method, note in facts["notes"].items()]
        return lines + self._factory.recent_reasons()

    def record(self, recorder: Recorder | None) -> None:
        """From now on tell ``recorder`` about every step; None ends it. Texts and counters stay the same."""
        self._engine.recorder = recorder

    def meter(self, meter: Meter | None) -> None:
        """From now on let ``meter`` count every step; None ends it."""
        self._engine.meter = meter

    def load(self) -> EngineLoad:
        """What runs, waits and fills the caches right now; any thread may ask."""
        from outrider.engine.load import load_of

        return load_of(self._engine)

    def close(self) -> None:
        """Free what the drafters hold."""
        for method in self._engine.drafting.methods.values():
            method.drafter.close()
        self._engine.target.close()


def _configs(value: Configs) -> list[SpeculativeConfig]:
    if value is None:
        return []
    if isinstance(value, SpeculativeConfig | Mapping):
        value = [value]
    if not all(isinstance(config, SpeculativeConfig | Mapping) for config in value):  # such as a method's bare name
        raise ConfigError(
            f'speculative_config={value!r}: give a dict such as {{"method": "ngram"}}, or a list of dicts'
        )
    return [config if isinstance(config, SpeculativeConfig) else SpeculativeConfig(**config) for config in value]


def _listed(prompts: Prompt | Seq[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if prompts and all(isinstance(token, int) for token in prompts):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _spread(params: SamplingParams | Seq[SamplingParams] | None, count: int, default: Any) -> list[SamplingParams]:
    if params is None:
        return [default()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise RequestError(f"{len(params)} sampling_params for {count} prompts: give one, or one a prompt")
    return list(params)


__all__ = ["LLM", "RequestOutput", "RequestStats", "SamplingParams", "SpeculationParams", "StreamChunk"]
