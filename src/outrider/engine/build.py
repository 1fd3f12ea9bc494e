"""Putting an engine together: target, cost curve, cache, methods, scheduler."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch

from outrider import native
from outrider.cache.budget import CacheBudget
from outrider.cache.pages import can_give_back
from outrider.cache.prefix import PrefixIndex
from outrider.cache.storage import tap_dtype
from outrider.config import SpeculativeConfig
from outrider.core.verifiers.registry import make_verifier
from outrider.core.verifiers.table import RULES
from outrider.drafters import registry
from outrider.drafters.base import DraftSource, HeadSource
from outrider.drafters.registry import DrafterContext
from outrider.drafters.trees import shape_of
from outrider.engine import heads, memory
from outrider.engine.drafting import Drafting, Method
from outrider.engine.handle import EngineTarget
from outrider.engine.inner import InnerEngine
from outrider.engine.pacing import Pacing
from outrider.engine.planner import Planner
from outrider.engine.scheduler import Scheduler
from outrider.engine.sequence import Sequence
from outrider.engine.step import Engine, max_len
from outrider.errors import ConfigError, OutriderError
from outrider.target.batch import Span
from outrider.target.costs import curve_of, spread_tokens
from outrider.target.facts import read_facts
from outrider.target.model import Target, load_target
from outrider.target.narrow import load_narrow
from outrider.target.token_map import match_vocabularies
from outrider.target.vocab import fingerprint

BLOCK_SIZE = 16
_BORROWED = 2  # times its own blocks are the most that the target's cache can have
_TAPPED = 3  # layers that a head reads at most


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes and switches of an engine; see ``LLM`` for what each does."""

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = True
    kv_cache_tokens: int | None = None
    strict: bool = False
    seed: int = 0
    target_tpot_ms: float | None = None


def check_configs(configs: Seq[SpeculativeConfig]) -> None:
    """Refuse impossible or doubled methods before any weights load."""
    seen: set[str] = set()
    for config in configs:
        registry.check(config)
        registry.check_files(config)
        if config.method in seen:
            raise ConfigError(f"speculative_config: method {config.method!r} is given twice")
        seen.add(config.method)


def _everyone(configs: Seq[SpeculativeConfig]) -> Iterator[SpeculativeConfig]:
    """All configs and those within them."""
    return itertools.chain.from_iterable(map(registry.everyone, configs))


def check_target(
    configs: Seq[SpeculativeConfig],
    model: str,
    *,
    dtype: str,
    device: str,
    revision: str | None,
    trust_remote_code: bool,
    skip_refused: bool = False,
    tensor_parallel_size: int = 1,
) -> dict[str, str]:
    """Refuse methods that cannot work with this model, from its config alone; with ``skip_refused``, say why."""
    refused: dict[str, str] = {}
    if not any(registry.info(config.method).check_target for config in _everyone(configs)):
        return refused
    facts = read_facts(model, dtype=dtype, device=device, revision=revision, trust_remote_code=trust_remote_code)
    for config in configs:
        try:
            if tensor_parallel_size > 1:
                _refuse_own_layers(config, tensor_parallel_size)
            registry.check_target(config, facts)
        except ConfigError as error:
            if not skip_refused:
                raise
            refused[config.method] = str(error)
    return refused


def _refuse_own_layers(config: SpeculativeConfig, size: int) -> None:
    """Raise ConfigError for a method that drafts with the target's layers, of which this process has a part only."""
    for member in registry.everyone(config):
        if registry.info(member.method).check_target:
            raise ConfigError(
                f"method {member.method}: it drafts with the target's own layers, which tensor_parallel_size={size} "
                "spreads over processes; use another method"
            )


def build_engine(target: Target, configs: Seq[SpeculativeConfig], options: EngineOptions) -> Engine:
    """An engine over a loaded target with all ``configs`` ready to draft."""
    drafts = _load_drafts(target, configs)
    copies = _load_copies(target, configs)
    draft_tokens = max((_draft_tokens(config) for config in configs), default=0)
    num_tokens = _cache_tokens(
        target, [draft for _, draft in drafts], options, draft_tokens, _tap_bytes(target, configs)
    )
    storage = target.new_storage(_BORROWED * num_tokens if _lends(target, configs) else num_tokens, BLOCK_SIZE)
    pool = storage.new_pool(num_tokens)
    index = PrefixIndex(pool) if options.enable_prefix_caching else None
    engine: Engine
    planner = Planner(curve_of(target))
    scheduler = Scheduler(
        pool,
        index,
        storage,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        on_preempt=lambda seq: engine.preempted(seq),
        pacing=Pacing(planner, None if options.target_tpot_ms is None else options.target_tpot_ms / 1000.0),
        may_borrow=lambda seq: not _caches(seq) or planner.puts_off(seq, 1 + len(engine.scheduler.running)),
    )
    handle = EngineTarget(target, scheduler, copies)
    methods = {c.method: _method(handle, c, options, drafts, num_tokens, planner) for c in configs}
    tapped = max((len(method.drafter.needs.hidden_layers) for method in methods.values()), default=0)
    if index is not None and tapped:
        storage.keep_taps(tapped, int(target.config.hidden_size))
    CacheBudget([pool, *(each for method in methods.values() for each in method.drafter.kv_pools().values())])
    library = native.library() if target.device.type == "cpu" else None
    limit = max_len(target, scheduler)
    drafting = Drafting(methods, planner, target.vocab_size, limit, options.strict, library)
    engine = Engine(target, scheduler, drafting, planner)
    return engine


def build_allowed(
    target: Target, configs: Seq[SpeculativeConfig], options: EngineOptions, skip_refused: bool
) -> tuple[Engine, dict[str, str]]:
    """An engine with ``configs``; with ``skip_refused``, those of them that target and draft models allow, and why each
    other method is left out: when not all go together, each is tried alone to find those that do not."""
    try:
        return build_engine(target, configs, options), {}
    except OutriderError:
        if not skip_refused:
            raise
        refused: dict[str, str] = {}
        for config in configs:
            try:
                build_engine(target, [config], options)
            except OutriderError as error:
                refused[config.method] = str(error)
        if not refused:
            raise
    return build_engine(target, [config for config in configs if config.method not in refused], options), refused


def _lends(target: Target, configs: Seq[SpeculativeConfig]) -> bool:
    """Whether the target's cache may hold what drafters with a cache of their own leave idle."""
    rows = [registry.info(config.method) for config in _everyone(configs)]
    return can_give_back(target.device) and any(row.needs_model or row.needs_head for row in rows)


def _caches(seq: Sequence) -> bool:
    """Whether the drafter of ``seq`` has a cache of its own, which is to have room for it too."""
    return seq.drafter is not None and seq.fixed_tokens != 0 and bool(seq.drafter.kv_pools())


def _load_drafts(target: Target, configs: Seq[SpeculativeConfig]) -> list[tuple[SpeculativeConfig, Target]]:
    """The model of every config that needs one, members included. Equal weights are loaded once."""
    loaded: dict[object, Target] = {}
    out = []
    for config in _everyone(configs):
        if registry.info(config.method).needs_model:
            key = (config.model, config.draft_dtype, config.max_model_len)
            if key not in loaded:
                loaded[key] = _load_draft(target, config)
            out.append((config, loaded[key]))
    return out


def _load_draft(target: Target, config: SpeculativeConfig) -> Target:
    assert config.model is not None  # check_configs saw to it
    return load_target(
        config.model,
        dtype=config.draft_dtype,
        device=str(target.device),
        exact=target.exact,
        max_model_len=config.max_model_len,
    )


def _load_copies(target: Target, configs: Seq[SpeculativeConfig]) -> dict[str, Target]:
    """The narrower copies of the target that methods draft with, by ``draft_dtype``."""
    wanted = {config.draft_dtype for config in _everyone(configs) if registry.info(config.method).needs_copy}
    return {draft_dtype: load_narrow(target, draft_dtype) for draft_dtype in sorted(wanted)}


def _method(
    handle: EngineTarget,
    config: SpeculativeConfig,
    options: EngineOptions,
    drafts: Seq[tuple[SpeculativeConfig, Target]],
    num_tokens: int,
    planner: Planner,
) -> Method:
    def cache_tokens(model: Target) -> int:
        return memory.draft_cache_tokens(
            num_tokens,
            max_model_len=model.max_model_len,
            max_num_seqs=options.max_num_seqs,
            draft_tokens=sum(map(_draft_tokens, registry.everyone(config))),
            block_size=BLOCK_SIZE,
        )

    def load_draft(member: SpeculativeConfig) -> DraftSource:
        model = next(model for known, model in drafts if known == member)
        sizes = (target.vocab_size, model.vocab_size)
        wanted = member.vocabulary if "vocabulary" in registry.info(member.method).options else "same"
        token_map = match_vocabularies(
            wanted, target.tokenizer, model.tokenizer, sizes, model.device, RULES[config.verifier].needs_laws
        )
        return DraftSource(model, cache_tokens(model), token_map)

    def load_head(member: SpeculativeConfig) -> HeadSource:
        return HeadSource(heads.load_head(target, member), target, cache_tokens(target))

    target = handle.model

    def inner_loop(member: SpeculativeConfig) -> InnerEngine:
        assert member.drafter is not None  # check_configs saw to it
        source = load_draft(member)
        drafter = registry.build(member.drafter, replace(context, max_model_len=source.model.max_model_len))
        return InnerEngine(source, member.drafter, drafter, target.vocab_size, options.strict)

    context = DrafterContext(
        vocab_size=target.vocab_size,
        max_model_len=target.max_model_len,
        eos_ids=target.tokenizer.eos_ids,
        load_draft=load_draft,
        load_head=load_head,
        has_head=lambda method: heads.has_head(target, method),
        tokenizer_fingerprint=lambda: fingerprint(target.tokenizer),
        inner_loop=inner_loop,
        seed=options.seed,
        target=handle,
        target_fingerprint=target.fingerprint,
        estimates=planner,
        strict=options.strict,
    )

    verifier = make_verifier(
        config.verifier, typical_threshold=config.typical_threshold, typical_alpha=config.typical_alpha
    )
    return Method(config, registry.build(config, context), verifier)


def _draft_tokens(config: SpeculativeConfig) -> int:
    """Rows of the largest draft that is asked for, probes included, unless a request fixes a larger K."""
    shape, row = shape_of(config), registry.info(config.method)
    extra = 0
    if "ouroboros_phrases" in row.options:
        extra = config.ouroboros_phrases * (config.ouroboros_ngram - 1)
    elif "lookahead_window" in row.options:
        extra = config.lookahead_window * (config.lookahead_ngram - 1)
    if shape.max_levels is None:
        return (config.num_speculative_tokens or 2 * row.default_tokens) * config.num_chains + extra
    nodes = shape.nodes(shape.max_levels) * len(config.models or (None,))
    return max(nodes, shape.rows(nodes)) + extra


def _tap_bytes(target: Target, configs: Seq[SpeculativeConfig]) -> int:
    """Bytes a token of the hidden states that heads read, which are cached beside keys and values."""
    heads_wanted = any(registry.info(config.method).needs_head for config in _everyone(configs))
    return _TAPPED * int(target.config.hidden_size) * tap_dtype(target.kv_dtype).itemsize if heads_wanted else 0


def _cache_tokens(
    target: Target, drafts: Seq[Target], options: EngineOptions, draft_tokens: int, tap_bytes: int
) -> int:
    sizes = [*(model.kv_bytes_per_token for model in (target, *drafts)), tap_bytes]
    reserved = memory.logits_bytes(target.vocab_size, options.max_num_seqs, draft_tokens)
    return memory.cache_tokens(
        options.kv_cache_tokens,
        affordable=memory.affordable_tokens(memory.free_memory(target.device), reserved, sizes),
        max_model_len=target.max_model_len,
        max_num_seqs=options.max_num_seqs,
        block_size=BLOCK_SIZE,
    )


def choose_threads(target: Target, wanted: int | None) -> int:
    """Set and return the threads of a forward: ``wanted``, or whichever of one and all cores runs few rows faster.

    Bits do not depend on it (on the exact path), so timing may choose.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if wanted is not None:
        if not 1 <= wanted <= 4 * cores:
            raise ConfigError(f"threads={wanted}: choose 1 to {cores}, the number of cores")
        native.set_threads(wanted)
        return wanted
    limit = os.environ.get("OMP_NUM_THREADS", "")
    cores = min(cores, int(limit)) if limit.isdigit() and int(limit) > 0 else cores
    if target.device.type != "cpu" or cores == 1:
        return native.threads()
    storage = target.new_storage(64 * BLOCK_SIZE, BLOCK_SIZE)
    context = torch.arange(64 * BLOCK_SIZE, dtype=torch.int32)
    best = min((1, cores), key=lambda count: _few_rows(target, storage, context, count))
    native.set_threads(best)
    return best


def _few_rows(target: Target, storage: object, context: torch.Tensor, threads: int) -> float:
    """Median seconds of forwards of 1 and 4 rows, behind up to 64 tokens of context."""
    native.set_threads(threads)
    start = max(0, min(64, target.max_model_len - 4))
    total = 0.0
    for rows in (1, min(4, target.max_model_len)):
        taken = []
        for _ in range(4):
            begin = time.perf_counter()
            target.forward([Span(spread_tokens(rows, target.vocab_size), context, start)], storage)  # type: ignore[arg-type]
            taken.append(time.perf_counter() - begin)
        total += sorted(taken)[1]
    return total
