"""Clients that leave, wait, are late or have the wrong key; an engine that fails."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from outrider import LLM, SamplingParams
from outrider.server.runner import Event, Runner, Stopped
from server.conftest import serving, tiny

LONG: dict[str, Any] = {"prompt": "the ab of the", "max_tokens": 400, "ignore_eos": True, "temperature": 1.0}
SHORT: dict[str, Any] = {"prompt": "the ab of the", "max_tokens": 4}


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def slow(llm: LLM, seconds: float = 0.02) -> LLM:
    """An engine whose steps take a while."""
    step = llm.step
    llm.step = lambda: (time.sleep(seconds), step())[1]  # type: ignore[method-assign]
    return llm


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(folder: str, stream: bool) -> None:
    with serving(slow(tiny(folder))) as (address, runner):
        httpx.post(f"{address}/v1/completions", json=SHORT)
        if stream:
            with httpx.stream("POST", f"{address}/v1/completions", json={**LONG, "stream": True}) as answer:
                next(answer.iter_lines())
                assert runner.num_requests == 1
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{address}/v1/completions", json=LONG, timeout=0.5)
        until(lambda: runner.num_requests == 0)
        assert not runner.llm.has_work
        assert runner.llm._engine.scheduler.running == []


def test_a_full_queue_says_when_to_come_back(folder: str) -> None:
    with (
        serving(slow(tiny(folder, max_num_seqs=1)), max_waiting=1) as (address, runner),
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        asked = [
            pool.submit(httpx.post, f"{address}/v1/completions", json={**LONG, "max_tokens": 60}) for _ in range(2)
        ]
        until(lambda: runner.num_requests == 2)
        refused = httpx.post(f"{address}/v1/completions", json=SHORT)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert [each.result(timeout=30).status_code for each in asked] == [200, 200]
        assert httpx.post(f"{address}/v1/completions", json=SHORT).status_code == 200


def test_a_request_has_its_time(folder: str) -> None:
    with serving(slow(tiny(folder))) as (address, runner):
        late = httpx.post(f"{address}/v1/completions", json={**LONG, "timeout": 0.2})
        assert late.status_code == 408
        assert "ran out of its time" in late.json()["error"]["message"]
        with httpx.stream("POST", f"{address}/v1/completions", json={**LONG, "timeout": 0.2, "stream": True}) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert "timeout_error" in lines[-2]
        assert lines[-1] == "data: [DONE]"
        assert runner.num_requests == 0


def test_keys_let_in_and_keep_prefixes_apart(folder: str) -> None:
    keys = {"api_keys": ("one", "two")}
    with serving(tiny(folder, speculative_config={"method": "suffix"}), **keys) as (address, _):
        body = {**SHORT, "prompt": "the ab of the cd " * 4}

        def cached(key: str) -> int:
            answer = httpx.post(f"{address}/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})
            assert answer.status_code == 200
            return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [cached("one"), cached("one") > 0, cached("two")] == [0, True, 0]
        for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "one"}):
            refused = httpx.post(f"{address}/v1/completions", json=body, headers=headers)
            assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        for content in (b"{", b" " * (9 << 20)):  # nothing of the body is read before the key
            refused = httpx.post(f"{address}/v1/completions", content=content)
            assert refused.status_code == 401
        assert httpx.get(f"{address}/ping").json() == httpx.get(f"{address}/health").json()
        assert httpx.get(f"{address}/health").status_code == 200


def test_when_the_engine_fails_everyone_is_told(folder: str) -> None:
    llm = tiny(folder)
    with serving(llm) as (address, runner):
        llm.step = lambda: 1 / 0  # type: ignore[method-assign,assignment]
        assert httpx.post(f"{address}/v1/completions", json=SHORT).status_code == 503
        assert httpx.post(f"{address}/v1/completions", json=SHORT).status_code == 503
        health = httpx.get(f"{address}/health")
        assert health.status_code == 503
        assert "ZeroDivisionError" in health.json()["reason"]
        assert httpx.get(f"{address}/ready").status_code == 503
        assert runner.num_requests == 0


def test_closing_tells_those_who_wait(folder: str) -> None:
    events: list[Event] = []
    with Runner(slow(tiny(folder))) as runner:
        for name in "ab":
            params = SamplingParams(max_tokens=400, ignore_eos=True)
            runner.submit(runner.llm.request(name, "the ab of", params), events.append)
        until(lambda: len(events) > 2)
        assert not runner.drain(0.05)
        with pytest.raises(Stopped):
            runner.submit(runner.llm.request("c", "the ab of", SamplingParams()), events.append)
    assert sum(isinstance(event.error, Stopped) for event in events) == 2
    assert not runner.llm.has_work


def test_turns_go_by_key_whatever_the_cache_salts(folder: str) -> None:
    with (
        serving(slow(tiny(folder)), api_keys=("one", "two")) as (address, runner),
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        asked = [("one", "x"), ("one", "y"), ("two", "x")]
        for key, salt in asked:
            body, headers = {**LONG, "max_tokens": 60, "cache_salt": salt}, {"Authorization": f"Bearer {key}"}
            pool.submit(httpx.post, f"{address}/v1/completions", json=body, headers=headers)
        running = runner.llm._engine.scheduler.running
        until(lambda: len(running) == 3)
        assert len({seq.tenant for seq in running}) == 2
        assert len({seq.cache_salt for seq in running}) == 3
