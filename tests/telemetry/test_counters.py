"""Counts of steps and requests, held against the engine's own accounting."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tiny import Models, ids
from outrider import SamplingParams
from outrider.config import SpeculationParams
from outrider.core.accounting import SpeculationStats
from outrider.core.draft import Draft
from outrider.telemetry.counters import PLAIN, Counters, MethodCounts, Recent
from outrider.telemetry.histogram import Histogram


@given(st.integers(0, 2**32))
def test_trees_count_as_in_the_requests_own_stats(seed: int) -> None:
    rng, counts, stats = random.Random(seed), MethodCounts(), SpeculationStats()
    for _ in range(6):
        size = rng.randint(1, 6)
        parents = None if rng.random() < 0.3 else [rng.randint(-1, node - 1) for node in range(size)]
        draft, path = Draft(list(range(size)), parents), list[int]()
        while rng.random() < 0.7 and (below := draft.children()[(path[-1] if path else -1) + 1]):
            path.append(rng.choice(below))
        counts.add_draft(draft, path)
        stats.add_step(draft, path, len(path) + 1)
    assert counts.num_drafts == stats.num_spec_steps
    assert counts.num_draft_tokens == stats.num_draft_tokens
    assert counts.num_accepted_tokens == stats.num_accepted_draft_tokens
    assert [*counts.accepted_per_position][: len(stats.accepted_per_position)] == stats.accepted_per_position
    assert counts.tested_per_position == stats.tested_per_position
    assert counts.conditional_acceptance == stats.conditional_acceptance[: len(counts.tested_per_position)]


def test_an_engine_tells_its_steps(models: Models) -> None:
    llm = models.fresh({"method": "ngram", "num_speculative_tokens": 3})
    counters = Counters(llm.methods)
    llm.meter(counters)
    params = SamplingParams(max_tokens=20, temperature=0.0)
    off = params.model_copy(update={"speculation": SpeculationParams(enabled=False)})
    outputs = llm.generate([ids(24, period=6), ids(24, 1)], [params, off], use_tqdm=False)
    llm.meter(None)
    llm.generate(ids(24, period=6), params, use_tqdm=False)
    now = counters.snapshot()
    drafted, plain = now.methods["ngram"], now.methods[PLAIN]
    for counts, output in ((drafted, outputs[0]), (plain, outputs[1])):
        stats = output.stats
        assert counts.num_tokens == stats.num_completion_tokens
        assert counts.num_prompt_tokens == 24
        assert counts.num_steps == stats.num_steps
        assert counts.num_draft_tokens == stats.num_draft_tokens
        assert counts.draft_seconds == pytest.approx(stats.draft_seconds)
        assert counts.verify_seconds == pytest.approx(stats.verify_seconds)
        assert counts.overhead_seconds == pytest.approx(stats.overhead_seconds)
    assert drafted.num_draft_tokens > 0
    assert sum(drafted.draft_latency.counts) > 0
    assert plain.num_drafts == sum(plain.draft_latency.counts) == 0
    assert sum(now.requests.between_tokens.counts) == drafted.num_steps + plain.num_steps
    load = llm.load()
    assert load.num_rows == load.num_rows_computed > 48
    assert load.pools["target"].num_used == 0


def test_pools_of_drafters_are_named(models: Models) -> None:
    llm = models.fresh({"method": "draft_model", "model": "draft", "num_speculative_tokens": 2})
    assert set(llm.load().pools) == {"target", "draft_model"}
    seen: list[float] = []

    class Looking(Counters):
        def step(self, *args: object) -> None:
            seen.append(llm.load().pools["draft_model"].usage)

    llm.meter(Looking(llm.methods))
    llm.generate(ids(24), SamplingParams(max_tokens=8, temperature=0.0), use_tqdm=False)
    assert max(seen) > 0.0
    assert llm.load().pools["draft_model"].num_used == 0


def test_snapshots_are_whole_while_others_add() -> None:
    counters, stop = Counters(["suffix"]), threading.Event()

    def add() -> None:
        while not stop.is_set():
            with counters._lock:
                counters._methods["suffix"].add_draft(Draft([1, 2, 3]), [0, 1, 2])

    thread = threading.Thread(target=add)
    thread.start()
    try:
        for _ in range(200):
            counts = counters.snapshot().methods["suffix"]
            assert sum(counts.accepted_per_position) == counts.num_accepted_tokens == 3 * counts.num_drafts
    finally:
        stop.set()
        thread.join()
    before = counters.snapshot().methods["suffix"]
    counters._methods["suffix"].add_draft(Draft([1]), [0])
    assert before.num_drafts + 1 == counters.snapshot().methods["suffix"].num_drafts
    assert before.accepted_per_position != counters.snapshot().methods["suffix"].accepted_per_position


def test_recent_forgets() -> None:
    recent = Recent(100.2)
    for second in range(100, 110):
        recent.add(second + 0.5, 10)
    assert recent.rate(110.0) == 10.0
    assert recent.rate(112.0) == pytest.approx(6.0)
    assert recent.rate(200.0) == 0.0
    early = Recent(100.2)
    early.add(100.5, 7)
    assert early.rate(101.1) == 7.0


def test_a_value_on_a_bound_is_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    assert histogram.cumulative == [2, 3, 4]
    assert histogram.total == 12.0
