"""`outrider serve --replicas 2` on this machine: one address, the text of one engine, and a replica that is killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from outrider import LLM, SamplingParams

pytest.importorskip("ray", reason="needs Ray: pip install 'outrider[ray]'")

KEY = {"Authorization": "Bearer secret"}
DIES = "SERVE_REPLICA::outrider#Replica#"
KILL = "import ray, sys; ray.init(address='auto'); ray.kill(ray.get_actor(sys.argv[1], namespace='serve'))"


@dataclass
class Fleet:
    """A served application: its address, and the environment of its Ray cluster."""

    url: str
    environment: dict[str, str]
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, headers=KEY, timeout=60)

    def complete(self, prompt: str, **fields: Any) -> httpx.Response:
        """A whole answer."""
        body = {"prompt": prompt, "max_tokens": 12, "seed": 5, "ignore_eos": True, **fields}
        return self.client.post("/v1/completions", json=body)

    def kill(self, replica: str) -> None:
        """End a replica as a crash would."""
        subprocess.run([sys.executable, "-c", KILL, DIES + replica], env=self.environment, check=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(what: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "took too long"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def fleet(folder: str) -> Iterator[Fleet]:
    """Two replicas of the tiny model."""
    state = tempfile.mkdtemp(prefix="or")  # short: Ray's sockets are in it
    environment = {**os.environ, "RAY_TMPDIR": state, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    port = free_port()
    options = ["--replicas", "2", "--port", f"{port}", "--dtype", "float32", "--max-num-seqs", "8", "--threads", "1"]
    options += ["--served-model-name", "tiny", "--api-key", "secret", "--method", "suffix"]
    command = [sys.executable, "-m", "outrider", "serve", folder, *options]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lambda stderr: lines.extend(stderr), args=(process.stderr,), daemon=True)
    reader.start()

    def started() -> bool:
        assert process.poll() is None, "".join(lines)
        return any("Ctrl-C ends it" in line for line in lines)

    try:
        wait_for(started, 180)
        yield Fleet(f"http://127.0.0.1:{port}", environment)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 130, "".join(lines)
    finally:
        process.kill()
        shutil.rmtree(state, ignore_errors=True)


def test_the_routes_are_those_of_one_server(fleet: Fleet, plain: LLM) -> None:
    assert fleet.client.get("/health").json()["status"] == "ok"
    assert fleet.client.get("/v1/models").json()["data"][0]["id"] == "tiny"
    assert fleet.client.get("/v1/models", headers={"Authorization": "Bearer wrong"}).status_code == 401
    refused = fleet.client.post("/v1/completions", json={"prompt": "the", "bad": 1})
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "unknown field 'bad'")
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, max_tokens=12, seed=5, ignore_eos=True)
        (expected,) = plain.generate("the abc of", params)
        served = fleet.complete("the abc of", temperature=temperature).json()
        assert served["choices"][0]["text"] == expected.outputs[0].text


def test_prompts_that_begin_alike_meet_on_one_replica(fleet: Fleet) -> None:
    seen = {}
    for number in range(8):
        prompt = f"{number} of the abc ing " * 12  # 240 characters
        replicas = {fleet.complete(prompt + end).headers["x-outrider-replica"] for end in ("a", "b", "c")}
        assert len(replicas) == 1
        seen[number] = replicas.pop()
    assert len(set(seen.values())) == 2


def test_metrics_are_those_of_all_replicas(fleet: Fleet) -> None:
    page = fleet.client.get("/metrics").text
    ups = [line for line in page.splitlines() if line.startswith("process_start_time_seconds{")]
    assert len(ups) == 2
    steps = re.findall(r'^outrider:request_success_total{.*replica="(\w+)".*} (\d+)', page, re.MULTILINE)
    assert len(steps) >= 2


@dataclass
class Outcomes:
    """What clients saw while a replica was killed."""

    whole: list[int] = field(default_factory=list)  # statuses
    ended: int = 0  # streams that were whole
    broken: list[dict[str, Any]] = field(default_factory=list)  # errors in streams
    streaming: dict[int, str] = field(default_factory=dict)  # client -> replica, of streams in flight
    stop: threading.Event = field(default_factory=threading.Event)


def use(fleet: Fleet, number: int, seen: Outcomes) -> None:
    """One client: streams and whole answers in turn."""
    client = Fleet(fleet.url, fleet.environment)
    body = {"prompt": f"{number} the abc " * 9, "max_tokens": 150, "ignore_eos": True, "stream": True}
    while not seen.stop.is_set():
        seen.whole.append(client.complete(f"{number} of ing " * 12).status_code)
        with client.client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            seen.streaming[number] = response.headers["x-outrider-replica"]
            events = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
            del seen.streaming[number]
        assert events.pop() == "[DONE]"
        error = json.loads(events[-1]).get("error")
        if error is None:
            seen.ended += 1
        else:
            seen.broken.append(error)


def test_a_replica_that_is_killed_costs_only_the_streams_in_flight(fleet: Fleet) -> None:
    seen = Outcomes()
    clients = [threading.Thread(target=use, args=(fleet, number, seen)) for number in range(6)]
    for client in clients:
        client.start()
    wait_for(lambda: seen.ended >= 6)
    killed = next(iter([*seen.streaming.values()]), None) or fleet.complete("x").headers["x-outrider-replica"]
    fleet.kill(killed)
    ended = seen.ended
    wait_for(lambda: seen.ended >= ended + 6)
    seen.stop.set()
    for client in clients:
        client.join()
    assert set(seen.whole) == {200}
    assert len(seen.broken) <= len(clients)
    assert all(error["type"] == "service_unavailable_error" for error in seen.broken)

    alive: set[str] = set()

    def replaced() -> bool:
        fresh = f"{time.monotonic()} is a prompt that nobody has cached"
        alive.add(fleet.complete(fresh).headers["x-outrider-replica"])
        assert killed not in alive
        return len(alive) == 2

    wait_for(replaced)
