"""Requests: from a prompt and its parameters to sequences, and back to what the caller gets."""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from outrider.config import SamplingParams
from outrider.core.logits import LogitsPipeline
from outrider.core.noise import derive_seed, noise_key
from outrider.drafters import registry
from outrider.engine.drafting import Method
from outrider.engine.sequence import Sequence
from outrider.engine.step import Engine
from outrider.engine.text import OutputText
from outrider.errors import OutriderError, RequestError
from outrider.outputs import RequestOutput, RequestStats, StreamChunk, ToldStep
from outrider.target.grammar import Grammars

_REASONS = 32


@dataclass(slots=True)
class Request:
    """One prompt and its ``n`` samples."""

    engine: Engine
    factory: RequestFactory
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    seed: int
    sequences: list[Sequence] = field(default_factory=list)
    _told: dict[int, int] = field(default_factory=dict)  # tokens of each sample that ``chunks`` has handed out
    _told_steps: dict[int, int] = field(default_factory=dict)  # and the steps of it, where they are told
    _ended: set[int] = field(default_factory=set)  # samples whose end it has told

    @property
    def finished(self) -> bool:
        """All samples have ended."""
        return all(seq.finished for seq in self.sequences)

    @property
    def failure(self) -> OutriderError | None:
        """Why a sample failed, or None."""
        return next((seq.failure for seq in self.sequences if seq.failure is not None), None)

    def charge(self, tenant: str) -> None:
        """Say on whose behalf it runs, before it starts: tenants take turns."""
        for seq in self.sequences:
            seq.tenant = tenant

    def start(self, arrival: float | None = None) -> None:
        """Queue all samples. ``arrival``: when the request came, by ``time.perf_counter``; None: now."""
        for seq in self.sequences:
            self.engine.add(seq, arrival)

    def chunks(self) -> list[StreamChunk]:
        """What is new since this was asked last, by sample; the last chunk of a sample has its finish reason."""
        out = []
        for seq in self.sequences:
            start, text = self._told.get(seq.index, 0), seq.text.released()
            ends = seq.finished and seq.index not in self._ended
            if not (text or ends or start < len(seq.output_ids)):
                continue
            self._told[seq.index] = len(seq.output_ids)
            if ends:
                self._ended.add(seq.index)
            logprobs = seq.logprobs[start:] if seq.params.logprobs is not None else None
            new, drafted = seq.output_ids[start:], seq.from_draft[start:]
            steps = self._new_steps(seq)
            out.append(StreamChunk(text, new, drafted, seq.finish_reason, seq.index, logprobs, seq.stop_reason, steps))
        return out

    def _new_steps(self, seq: Sequence) -> list[ToldStep] | None:
        if seq.steps is None:
            return None
        start = self._told_steps.get(seq.index, 0)
        self._told_steps[seq.index] = len(seq.steps)
        return seq.steps[start:]

    def abort(self) -> None:
        """End what still runs and free it; nothing happens when all samples have ended."""
        with ExitStack() as stack:  # every sample is let go of, even when a drafter raises
            for seq in self.sequences:
                stack.callback(self.engine.abort, seq)

    def output(self) -> RequestOutput:
        """What the caller gets."""
        stats = RequestStats()
        reasons = []
        for seq in self.sequences:
            stats.merge(seq.stats)
            reasons += [reason for reason in (seq.off_reason, seq.planned) if reason]
        stats.time_to_first_token = min(seq.stats.time_to_first_token for seq in self.sequences)
        stats.queue_seconds = min(seq.stats.queue_seconds for seq in self.sequences)
        self.factory.remember(self.request_id, reasons)
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[seq.completion() for seq in self.sequences],
            finished=self.finished,
            stats=stats,
            seed=self.seed,
            error=None if self.failure is None else str(self.failure),
            speculation=reasons,
        )


class RequestFactory:
    """Makes requests for one engine; every impossible one is refused here, before it costs anything."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine, self._seed = engine, seed
        self._tokenizer = engine.target.tokenizer
        self._grammars = Grammars(engine.target.tokenizer, engine.target.vocab_size)
        self._numbers, self._seq_ids = itertools.count(), itertools.count()
        self._reasons: deque[str] = deque(maxlen=_REASONS)

    def request(self, request_id: str, prompt: str | Seq[int] | Mapping[str, Any], params: SamplingParams) -> Request:
        """A request ready to be queued. Raises RequestError that names the setting and the remedy."""
        text, tokens, salt = self._tokens(prompt)
        number = next(self._numbers)
        seed = derive_seed(self._seed, number) if params.seed is None else params.seed
        request = Request(self._engine, self, request_id, text, tokens, seed)
        pipeline = self._pipeline(tokens, params)
        expected = self._prediction(params)
        for index in range(params.n):
            if index and params.structured_outputs is not None:  # each sample has a place of its own in the grammar
                pipeline = self._pipeline(tokens, params)
            request.sequences.append(self._sequence(request, index, params, pipeline, expected, salt))
        return request

    def _tokens(self, prompt: str | Seq[int] | Mapping[str, Any]) -> tuple[str | None, list[int], str]:
        text: str | None = None
        salt = ""
        if isinstance(prompt, Mapping):
            known = {"prompt", "prompt_token_ids", "cache_salt"}
            if unknown := set(prompt) - known:
                raise RequestError(f"prompt: unknown keys {sorted(unknown)}; known: {sorted(known)}")
            salt = str(prompt.get("cache_salt") or "")
            text = prompt.get("prompt")
            ids = prompt.get("prompt_token_ids")
            if text is None and ids is None:
                raise RequestError("prompt: give 'prompt' or 'prompt_token_ids'")
            tokens = self._encode(text) if ids is None else _token_ids("prompt_token_ids", ids)
        elif isinstance(prompt, str):
            text, tokens = prompt, self._encode(prompt)
        else:
            tokens = _token_ids("prompt", prompt)
        self._check_length(len(tokens))
        return text, tokens, salt

    def _encode(self, text: object) -> list[int]:
        if not isinstance(text, str):
            raise RequestError(f"prompt is a {type(text).__name__}: give text, or token ids as prompt_token_ids")
        return self._tokenizer.encode(text)

    def _check_length(self, length: int) -> None:
        engine = self._engine
        if not length:
            raise RequestError("prompt is empty: give at least one token")
        if length >= engine.target.max_model_len:
            raise RequestError(
                f"prompt of {length} tokens leaves no room in a context of {engine.target.max_model_len}: shorten it, "
                "or raise max_model_len"
            )
        if length >= engine.max_len:
            raise RequestError(
                f"prompt of {length} tokens leaves no room in a cache of {engine.max_len}: raise kv_cache_tokens"
            )

    def _pipeline(self, tokens: list[int], params: SamplingParams) -> LogitsPipeline:
        encode, bad_words = self._tokenizer.encode, params.bad_words or ()
        if any(not word for word in bad_words):
            raise RequestError("bad_words holds an empty string: remove it")
        words = [encode(form, add_special_tokens=False) for word in bad_words for form in (word, f" {word}")]
        wanted = params.structured_outputs
        return LogitsPipeline(
            vocab_size=self._engine.target.vocab_size,
            prompt_ids=tokens,
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            typical_p=params.typical_p,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            logit_bias=params.logit_bias,
            bad_words_ids=words,
            allowed_token_ids=params.allowed_token_ids,
            min_tokens=params.min_tokens,
            eos_ids=self._tokenizer.eos_ids,
            stop_token_ids=params.stop_token_ids or (),
            constraint=None if wanted is None else self._grammars.constraint(wanted),
        )

    def _prediction(self, params: SamplingParams) -> list[int]:
        expected = params.prediction
        if isinstance(expected, str):
            return self._tokenizer.encode(expected, add_special_tokens=False)
        size = self._engine.target.vocab_size
        if any(not 0 <= token < size for token in expected or ()):
            raise RequestError(f"prediction holds a token id outside the vocabulary of {size}: remove it")
        return list(expected or ())

    def _sequence(
        self,
        request: Request,
        index: int,
        params: SamplingParams,
        pipeline: LogitsPipeline,
        expected: list[int],
        salt: str,
    ) -> Sequence:
        tokenizer = self._tokenizer if params.detokenize else None
        if tokenizer is None and params.stop_strings:
            raise RequestError("stop needs text: set detokenize=True, or use stop_token_ids")
        text = OutputText(
            tokenizer,
            request.prompt_token_ids,
            params.stop_strings,
            include_stop=params.include_stop_str_in_output,
            skip_special_tokens=params.skip_special_tokens,
        )
        seq = Sequence(
            seq_id=next(self._seq_ids),
            request_id=request.request_id,
            index=index,
            params=params,
            token_ids=list(request.prompt_token_ids),
            num_prompt_tokens=len(request.prompt_token_ids),
            pipeline=pipeline,
            noise_key=noise_key(request.seed, index),
            end_ids=frozenset() if params.ignore_eos else self._tokenizer.eos_ids,
            text=text,
            constraint=pipeline.constraint,
            prediction=expected,
            cache_salt=salt,
        )
        self._choose_method(seq, params)
        return seq

    def _choose_method(self, seq: Sequence, params: SamplingParams) -> None:
        methods, wish = self._engine.drafting.methods, params.speculation
        if wish is not None and wish.explain:
            seq.steps = []
        if wish is not None and not wish.enabled:
            return
        name = wish.method if wish is not None and wish.method is not None else self._default_method(seq)
        if name is None:
            return
        if name not in methods:
            raise RequestError(f"speculation.method={name!r} is not loaded; loaded: {', '.join(methods) or 'none'}")
        method = methods[name]
        own = wish.num_speculative_tokens if wish is not None else None
        if wish is not None and wish.task:
            seq.task = self._task(wish.task, method)
        seq.fixed_tokens = method.config.num_speculative_tokens if own is None else own
        if seq.fixed_tokens == 0:
            seq.off_reason = "speculation off: num_speculative_tokens is 0"
        else:
            seq.method, seq.drafter = name, method.drafter
            if wish is not None and wish.metrics not in (None, "none"):
                seq.drafts = []

    def _default_method(self, seq: Sequence) -> str | None:
        """The first loaded method; for a request with a prediction, the first that drafts from it, if any does."""
        methods = self._engine.drafting.methods
        following = (name for name, method in methods.items() if registry.follows_prediction(method.config))
        found = next(following, None) if seq.prediction else None
        return found or next(iter(methods), None)

    @staticmethod
    def _task(task: str, method: Method) -> str:
        if any("route_tasks" in registry.info(config.method).options for config in registry.everyone(method.config)):
            return task
        readers = ", ".join(name for name, row in registry.REGISTRY.items() if "route_tasks" in row.options)
        raise RequestError(
            f"speculation.task={task!r} is not used by method {method.config.method!r}; it is used by: {readers}"
        )

    def default_params(self) -> SamplingParams:
        """The model's generation config as sampling parameters."""
        config = self._engine.target.loaded.generation_config
        values: dict[str, Any] = {}
        if getattr(config, "do_sample", None) is False:
            values["temperature"] = 0.0
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
            value = getattr(config, name, None)
            if value is not None and name not in values:
                values[name] = value
        return SamplingParams(**values)

    def remember(self, request_id: str, reasons: Seq[str]) -> None:
        """Keep a request's reasons for ``LLM.explain``."""
        self._reasons.extend(f"request {request_id}: {reason}" for reason in reasons)

    def recent_reasons(self) -> list[str]:
        """Reasons of the latest requests."""
        return list(self._reasons)


def _token_ids(setting: str, ids: Iterable[Any]) -> list[int]:
    """Plain integers from any integer type. Raises RequestError."""
    try:
        return [operator.index(token) for token in ids]
    except TypeError:
        raise RequestError(f"{setting} is neither text nor a list of token ids: give one of the two") from None
