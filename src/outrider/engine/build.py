"""Putting an engine together: target, cost curve, cache, methods, scheduler."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from outrider.cache.pool import BlockPool
from outrider.cache.prefix import PrefixIndex
from outrider.config import SpeculativeConfig
from outrider.core.verifiers.registry import make_verifier
from outrider.drafters import registry
from outrider.drafters.registry import DrafterContext
from outrider.target.costs import curve_of
from outrider.engine.drafting import Drafting, Method
from outrider.engine.planner import Planner
from outrider.engine.scheduler import Scheduler
from outrider.engine.step import Engine
from outrider.errors import ConfigError
from outrider.target.batch import Span
from outrider.target.model import Target, load_target
from outrider.target.vocab import compare_vocabularies

BLOCK_SIZE = 16
_CACHE_SHARE = 0.25  # of the memory that is free after loading


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
    num_tokens = _cache_tokens(target, options)
    num_blocks = num_tokens // BLOCK_SIZE
    storage = target.new_storage(num_blocks * BLOCK_SIZE, BLOCK_SIZE)
    pool = BlockPool(num_blocks, BLOCK_SIZE, zero_blocks=storage.zero_blocks)
    index = PrefixIndex(pool) if options.enable_prefix_caching else None
    planner = Planner(curve_of(target))
    methods = {config.method: _method(target, config, options) for config in configs}
    drafting = Drafting(methods, planner, target.vocab_size, target.max_model_len, options.strict)
    engine: Engine
    scheduler = Scheduler(
        pool, index, storage, max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens, on_preempt=lambda seq: engine.preempted(seq),
    )
    engine = Engine(target, scheduler, drafting, planner)
    return engine


def _method(target: Target, config: SpeculativeConfig, options: EngineOptions) -> Method:
    def load_draft(config: SpeculativeConfig) -> Target:
        assert config.model is not None
        draft = load_target(
            config.model, dtype=config.draft_dtype, device=str(target.device), exact=target.exact,
            max_model_len=config.max_model_len,
        )
        compare_vocabularies(target.tokenizer, draft.tokenizer)
        return draft

    context = DrafterContext(
        vocab_size=target.vocab_size, max_model_len=target.max_model_len, eos_ids=target.tokenizer.eos_ids,
        load_draft=load_draft, seed=options.seed,
    )
    verifier = make_verifier(
        config.verifier, typical_threshold=config.typical_threshold, typical_alpha=config.typical_alpha
    )
    return Method(config, registry.build(config, context), verifier)


def _cache_tokens(target: Target, options: EngineOptions) -> int:
    per_token = target.kv_bytes_per_token
    wanted = options.kv_cache_tokens
    if wanted is None:
        free = int(_free_memory(target.device) * _CACHE_SHARE) // per_token
        wanted = min(max(free, 4 * BLOCK_SIZE), target.max_model_len * options.max_num_seqs)
    if wanted < 2 * BLOCK_SIZE:
        raise ConfigError(f"kv_cache_tokens={wanted} holds less than two blocks of {BLOCK_SIZE}; raise it")
    return -(-wanted // BLOCK_SIZE) * BLOCK_SIZE


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 << 30


def choose_threads(target: Target, wanted: int | None) -> int:
    """Set and return torch's thread count: ``wanted``, or whichever of one and all cores runs few rows faster.

    Bits do not depend on it (on the exact path), so timing may choose.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if wanted is not None:
        if not 1 <= wanted <= 4 * cores:
            raise ConfigError(f"threads={wanted}: choose 1 to {cores}, the number of cores")
        torch.set_num_threads(wanted)
        return wanted
    limit = os.environ.get("OMP_NUM_THREADS", "")
    cores = min(cores, int(limit)) if limit.isdigit() and int(limit) > 0 else cores
    if target.device.type != "cpu" or cores == 1:
        return torch.get_num_threads()
    storage = target.new_storage(64 * BLOCK_SIZE, BLOCK_SIZE)
    context = torch.arange(64 * BLOCK_SIZE, dtype=torch.int32)
    best = min((1, cores), key=lambda count: _few_rows(target, storage, context, count))
    torch.set_num_threads(best)
    return best


def _few_rows(target: Target, storage: object, context: torch.Tensor, threads: int) -> float:
    """Median seconds of forwards of 1 and 4 rows."""
    torch.set_num_threads(threads)
    taken = []
    for rows in (1, 4) * 4:
        begin = time.perf_counter()
        target.forward([Span([1] * rows, context, 64)], storage)  # type: ignore[arg-type]
        taken.append((rows, time.perf_counter() - begin))
    return sum(sorted(seconds for n, seconds in taken if n == rows)[1] for rows in (1, 4))
