"""Putting an engine together: target, cost curve, cache, methods, scheduler."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from outrider import native
from outrider.cache.pool import BlockPool
from outrider.cache.prefix import PrefixIndex
from outrider.config import SpeculativeConfig
from outrider.core.verifiers.registry import make_verifier
from outrider.drafters import registry
from outrider.drafters.base import DraftSource
from outrider.drafters.registry import DrafterContext
from outrider.engine import memory
from outrider.engine.drafting import Drafting, Method, level_widths
from outrider.engine.planner import Planner
from outrider.engine.scheduler import Scheduler
from outrider.engine.step import Engine, max_len
from outrider.errors import ConfigError
from outrider.target.batch import Span
from outrider.target.costs import curve_of
from outrider.target.model import Target, load_target
from outrider.target.vocab import compare_vocabularies

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Sizes and switches of an engine; see ``LLM`` for what each does."""

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    enable_prefix_caching: bool = True
    kv_cache_tokens: int | None = None
    strict: bool = False
    seed: int = 0


def check_configs(configs: Seq[SpeculativeConfig]) -> None:
    """Refuse impossible or doubled methods before any weights load."""
    seen: set[str] = set()
    for config in configs:
        registry.check(config)
        if config.method in seen:
            raise ConfigError(f"speculative_config: method {config.method!r} is given twice")
        seen.add(config.method)


def build_engine(target: Target, configs: Seq[SpeculativeConfig], options: EngineOptions) -> Engine:
    """An engine over a loaded target with all ``configs`` ready to draft."""
    drafts = _load_drafts(target, configs)
    draft_tokens = max((_draft_tokens(config) for config in configs), default=0)
    num_tokens = _cache_tokens(target, [draft for _, draft in drafts], options, draft_tokens)
    num_blocks = num_tokens // BLOCK_SIZE
    storage = target.new_storage(num_tokens, BLOCK_SIZE)
    pool = BlockPool(num_blocks, BLOCK_SIZE, zero_blocks=storage.zero_blocks)
    index = PrefixIndex(pool) if options.enable_prefix_caching else None
    engine: Engine
    scheduler = Scheduler(
        pool,
        index,
        storage,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        on_preempt=lambda seq: engine.preempted(seq),
    )
    planner = Planner(curve_of(target))
    methods = {c.method: _method(target, c, options, drafts, num_tokens, planner) for c in configs}
    library = native.library() if target.device.type == "cpu" else None
    limit = max_len(target, scheduler)
    drafting = Drafting(methods, planner, target.vocab_size, limit, options.strict, library)
    engine = Engine(target, scheduler, drafting, planner)
    return engine


def _load_drafts(target: Target, configs: Seq[SpeculativeConfig]) -> list[tuple[SpeculativeConfig, Target]]:
    """The model of every config that needs one, members included. Equal weights are loaded once."""
    loaded: dict[object, Target] = {}
    out = []
    for config in itertools.chain.from_iterable(map(registry.everyone, configs)):
        if registry.info(config.method).needs_model:
            key = (config.model, config.draft_dtype, config.max_model_len)
            if key not in loaded:
                loaded[key] = _load_draft(target, config)
            out.append((config, loaded[key]))
    return out


def _load_draft(target: Target, config: SpeculativeConfig) -> Target:
    assert config.model is not None  # check_configs saw to it
    draft = load_target(
        config.model,
        dtype=config.draft_dtype,
        device=str(target.device),
        exact=target.exact,
        max_model_len=config.max_model_len,
    )
    compare_vocabularies(target.tokenizer, draft.tokenizer)
    return draft


def _method(
    target: Target,
    config: SpeculativeConfig,
    options: EngineOptions,
    drafts: Seq[tuple[SpeculativeConfig, Target]],
    num_tokens: int,
    planner: Planner,
) -> Method:
    def load_draft(member: SpeculativeConfig) -> DraftSource:
        model = next(model for known, model in drafts if known == member)
        tokens = memory.draft_cache_tokens(
            num_tokens,
            max_model_len=model.max_model_len,
            max_num_seqs=options.max_num_seqs,
            draft_tokens=max(_draft_tokens(config), _draft_tokens(member)),
            block_size=BLOCK_SIZE,
        )
        return DraftSource(model, tokens)

    context = DrafterContext(
        vocab_size=target.vocab_size,
        max_model_len=target.max_model_len,
        eos_ids=target.tokenizer.eos_ids,
        load_draft=load_draft,
        seed=options.seed,
        estimates=planner,
        strict=options.strict,
    )
    verifier = make_verifier(
        config.verifier, typical_threshold=config.typical_threshold, typical_alpha=config.typical_alpha
    )
    return Method(config, registry.build(config, context), verifier)


def _draft_tokens(config: SpeculativeConfig) -> int:
    """Nodes of the largest draft that is asked for unless a request fixes a larger K."""
    if config.tree:
        return sum(level_widths(config))
    default = registry.info(config.method).default_tokens
    return (config.num_speculative_tokens or 2 * default) * config.num_paths


def _cache_tokens(target: Target, drafts: Seq[Target], options: EngineOptions, draft_tokens: int) -> int:
    sizes = [model.kv_bytes_per_token for model in (target, *drafts)]
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
            target.forward([Span([1] * rows, context, start)], storage)  # type: ignore[arg-type]
            taken.append(time.perf_counter() - begin)
        total += sorted(taken)[1]
    return total
