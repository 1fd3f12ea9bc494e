"""How loaded an engine is: plain numbers that are read at any time, from any thread."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.cache.pool import BlockPool
from outrider.engine.step import Engine


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """Blocks of a cache of keys and values. ``num_used``: those that sequences hold; cached prefixes count as free.
    ``num_blocks``: those and what it could have beside them now, in the budget that it shares with others."""

    num_blocks: int
    num_used: int
    block_size: int

    @property
    def usage(self) -> float:
        """The share in use."""
        return self.num_used / max(1, self.num_blocks)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """``pools``: the target's cache, and those of drafters that keep one; ``cache_usage``: the share of the bytes of
    all of them that sequences hold. ``num_rows``: rows of sequences so far, ``num_rows_computed``: rows that the target
    computed for them. ``speed_up``: tokens per second of late over plain decoding's, by the planner's cost curve."""

    num_running: int
    num_waiting: int
    num_preemptions: int
    num_rows: int
    num_rows_computed: int
    speed_up: float
    pools: dict[str, PoolLoad]
    cache_usage: float


def load_of(engine: Engine) -> EngineLoad:
    """The load of ``engine`` right now; numbers that belong to one step may be a step apart."""
    scheduler = engine.scheduler
    pools = {"target": _pool(scheduler.pool)}
    for method in engine.drafting.methods.values():
        for name, pool in method.drafter.kv_pools().items():
            pools[f"{name} ({method.config.method})" if name in pools else name] = _pool(pool)
    return EngineLoad(
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting),
        num_preemptions=scheduler.num_preemptions,
        num_rows=engine.num_rows,
        num_rows_computed=engine.num_rows_computed,
        speed_up=engine.planner.speed_up,
        pools=pools,
        cache_usage=0.0 if scheduler.pool.budget is None else scheduler.pool.budget.usage,
    )


def _pool(pool: BlockPool) -> PoolLoad:
    return PoolLoad(pool.num_held + pool.num_free, pool.num_held, pool.block_size)
