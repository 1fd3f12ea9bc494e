"""Who is served first, and how long a step may take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from engine.tiny import Models, idle, prompts, same
from outrider import LLM, SamplingParams
from outrider.engine.pacing import Pacing
from outrider.engine.waiting import WaitingQueue
from outrider.errors import ConfigError


def seq(arrival: float, tenant: str = "", priority: int = 0) -> Any:
    """As much of a sequence as the queue looks at."""
    return SimpleNamespace(arrival=arrival, tenant=tenant, params=SimpleNamespace(priority=priority))


def order(queue: WaitingQueue, running: list[Any], count: int) -> list[Any]:
    """The next ones, each of which goes on running."""
    out = []
    for _ in range(count):
        first: Any = queue.first([*running, *out])
        queue.remove(first)
        out.append(first)
    return out


def test_a_flood_of_one_tenant_does_not_hold_up_another() -> None:
    queue = WaitingQueue()
    flood, late = [seq(at, "a") for at in range(5)], [seq(10 + at, "b") for at in range(2)]
    for each in (*flood, *late):
        queue.add(each)
    assert order(queue, [seq(-1, "a")], 6) == [late[0], flood[0], late[1], flood[1], flood[2], flood[3]]
    assert list(queue) == [flood[4]]


def test_lower_priorities_come_first_and_the_preempted_before_their_equals() -> None:
    queue = WaitingQueue()
    usual, urgent, early = seq(1), seq(2, priority=-1), seq(0)
    for each in (usual, urgent):
        queue.add(each)
    queue.put_back(early)
    assert len(queue) == 3
    assert order(queue, [], 3) == [urgent, early, usual]
    assert queue.first([]) is None
    with pytest.raises(ValueError, match="does not wait"):
        queue.remove(usual)


class Line:
    """A step takes 10 ms and 1 ms a row; a sequence gets two tokens a step."""

    def step_seconds(self, num_rows: int) -> float:
        return 0.01 + 0.001 * num_rows

    def going_rate(self, num_sequences: int) -> float:
        return 2.0 * num_sequences / self.step_seconds(num_sequences)


def test_chunks_beside_decoding_are_cut_to_the_time_of_a_step() -> None:
    pacing = Pacing(Line())
    assert pacing.chunk_rows(10) == pytest.approx(80, abs=1)  # 0.1 s, less 0.02 of decoding
    pacing.observe(10, 100, 0.22)
    assert pacing.chunk_rows(10) == pytest.approx(40, abs=1)  # a row was seen to add 2 ms
    assert Pacing(Line(), target=0.03).chunk_rows(10) == pytest.approx(20, abs=1)  # at least as long as decoding
    assert Pacing(Line()).chunk_rows(200) == pytest.approx(210, abs=1)


def test_reading_the_weights_is_no_part_of_a_prompt_rows_price() -> None:
    pacing, costs = Pacing(Line()), Line()
    for _ in range(20):  # small chunks, as much as decoding takes
        pacing.observe(10, 20, costs.step_seconds(30))
    assert pacing.chunk_rows(10) == pytest.approx(80, abs=1)
    pacing.observe(10, 20, 0.0001)  # less than decoding was thought to take
    assert 80 < pacing.chunk_rows(10) < 150


def test_few_wait_longer_for_many() -> None:
    pacing = Pacing(Line())
    assert pacing.chunk_rows(10, num_reading=10) == pytest.approx(80, abs=1)
    assert pacing.chunk_rows(10, num_reading=20) == pytest.approx(180, abs=1)
    assert pacing.chunk_rows(10, num_reading=1000) == pytest.approx(230, abs=1)  # never over a quarter of a second
    assert Pacing(Line(), target=0.03).chunk_rows(10, num_reading=1000) == pytest.approx(20, abs=1)  # a target is one


def test_a_latency_target_bounds_the_batch() -> None:
    pacing = Pacing(Line(), target=0.01)  # a step of 20 ms: ten sequences
    assert [count for count in range(20) if pacing.admits(count)] == list(range(10))
    assert Pacing(Line(), target=1e-9).admits(0)
    assert Pacing(Line()).admits(1000)


def test_a_long_prompt_comes_in_beside_decoding_in_small_chunks(models: Models) -> None:
    llm = models.fresh()
    pacing = llm._engine.scheduler.pacing
    assert pacing is not None
    pacing._row = 0.01  # so slow that a chunk has the least number of rows
    short, long = prompts([9, 120])
    params = SamplingParams(max_tokens=40, temperature=1.0, seed=5, ignore_eos=True)
    first, second = llm._factory.request("a", short, params), llm._factory.request("b", long, params)
    first.start()
    llm.step()
    second.start()
    rows = []
    while not second.sequences[0].output_ids:
        before = llm._engine.num_rows
        pacing._row = 0.01
        llm.step()
        rows.append(llm._engine.num_rows - before)
    assert max(rows) <= 1 + 16
    assert len(first.sequences[0].output_ids) >= len(rows)  # it got a token in every step
    while llm.has_work:
        llm.step()
    for request, prompt in ((first, short), (second, long)):
        same(request.output().outputs[0], models.plain(prompt, params).outputs[0])
    idle(llm)


def test_priorities_decide_who_starts_and_who_makes_way(models: Models) -> None:
    llm = models.fresh(max_num_seqs=1)
    ended: list[str] = []
    requests = [
        llm._factory.request(name, prompts([9])[0], SamplingParams(max_tokens=3, priority=priority))
        for name, priority in (("late", 5), ("usual", 0), ("urgent", -5))
    ]
    for request in requests:
        request.start()
    while llm.has_work:
        llm.step()
        ended += [each.request_id for each in requests if each.finished and each.request_id not in ended]
    assert ended == ["urgent", "usual", "late"]


def test_a_target_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="target_tpot_ms=0"):
        LLM(target_tpot_ms=0)
