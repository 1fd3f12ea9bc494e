"""How a server ends, and readers that do not read."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from outrider.cli.main import run
from outrider.server.serving import bind, url
from outrider.server.stream import EventStream
from server.conftest import serving, tiny
from server.test_runner import LONG, SHORT, slow, until


@contextmanager
def process(folder: str, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``outrider serve`` in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "outrider", "serve", folder, "--port", str(port), "--dtype", "float32", *options]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    address = f"http://127.0.0.1:{port}"
    try:
        until(lambda: _ready(address, running), 120)
        yield address, running
    finally:
        running.kill()
        running.wait()


def _ready(address: str, running: subprocess.Popen[str]) -> bool:
    assert running.poll() is None, running.stderr and running.stderr.read()
    try:
        return httpx.get(f"{address}/ready").status_code == 200
    except httpx.TransportError:
        time.sleep(0.2)
        return False


def texts(lines: list[str], count: int) -> list[str]:
    """What a stream of ``count`` samples said."""
    assert lines[-1] == "data: [DONE]"
    out = [""] * count
    for line in lines[:-1]:
        for choice in json.loads(line[6:])["choices"]:
            out[choice["index"]] += choice["text"]
    return out


def test_at_sigterm_running_streams_finish_and_new_requests_are_refused(folder: str) -> None:
    body: dict[str, Any] = {**LONG, "stream": True, "seed": 3, "n": 32}
    with process(folder, "--method", "suffix", "--threads", "1") as (address, running):
        want = httpx.post(f"{address}/v1/completions", json={**body, "stream": False}, timeout=60).json()
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            read = [next(lines)]
            running.send_signal(signal.SIGTERM)
            refused = httpx.post(f"{address}/v1/completions", json=SHORT)
            assert httpx.get(f"{address}/ready").status_code == 503
            read += list(lines)
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "service_unavailable_error"
        assert texts([line for line in read if line], 32) == [choice["text"] for choice in want["choices"]]
        assert running.wait(20) == 0
        assert running.stderr is not None
        assert "Traceback" not in running.stderr.read()


@pytest.mark.parametrize("again", [False, True], ids=["time is over", "second signal"])
def test_what_does_not_finish_is_ended_with_a_word(folder: str, again: bool) -> None:
    options = ("--method", "plain", "--drain-seconds", "60" if again else "0.2")
    with process(folder, *options) as (address, running), concurrent.futures.ThreadPoolExecutor() as pool:
        body = {**LONG, "n": 64}
        late = {**body, "priority": 1}
        whole = pool.submit(httpx.post, f"{address}/v1/completions", json=late, timeout=60)
        with httpx.stream("POST", f"{address}/v1/completions", json={**body, "stream": True}, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            running.send_signal(signal.SIGTERM)
            if again:
                time.sleep(0.2)
                running.send_signal(signal.SIGTERM)
            *_, last, done = [line for line in lines if line]
        assert json.loads(last[6:])["error"]["type"] == "service_unavailable_error"
        assert done == "data: [DONE]"
        assert whole.result().status_code == 503
        assert running.wait(20) == 0
        assert running.stderr is not None
        assert "Traceback" not in running.stderr.read()


def test_a_port_that_is_taken_is_said_before_anything_loads(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["serve", "nowhere", "--port", str(port)]) == 2
    assert f"--port {port} of 127.0.0.1 is taken: end what listens there, or choose another" in capsys.readouterr().err


def test_an_address_of_another_machine_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "nowhere", "--host", "192.0.2.1", "--port", "0"]) == 2
    assert "cannot be listened on: this machine has no such address" in capsys.readouterr().err


def test_addresses_of_ipv6_are_bracketed() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert url("::1", taken) == f"http://[::1]:{port}"
        assert url("127.0.0.1", taken) == f"http://127.0.0.1:{port}"


def test_a_free_port_is_told(folder: str) -> None:
    command = [sys.executable, "-m", "outrider", "serve", folder, "--port", "0", "--method", "plain"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    try:
        assert running.stderr is not None
        line = next(line for line in running.stderr if "http://" in line)
        address = line.split()[line.split().index("(Ctrl-C") - 1].removesuffix("/v1")
        until(lambda: _ready(address, running), 60)
    finally:
        running.kill()
        running.wait()


def test_killed_under_load_it_starts_again(folder: str) -> None:
    for _ in range(2):
        with (
            process(folder, "--method", "suffix") as (address, running),
            concurrent.futures.ThreadPoolExecutor() as pool,
        ):
            assert httpx.post(f"{address}/v1/completions", json=SHORT).status_code == 200
            asked = [pool.submit(httpx.post, f"{address}/v1/completions", json={**LONG, "n": 64}) for _ in range(4)]
            time.sleep(0.2)
            running.kill()
            for each in asked:
                assert isinstance(each.exception(), httpx.TransportError)


def test_a_reader_that_does_not_read_is_cut_off_and_holds_up_nobody(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventStream, "patience", 1.0)
    body = json.dumps({**LONG, "stream": True, "n": 64, "logprobs": 20, "max_tokens": 300}).encode()
    with serving(slow(tiny(folder), 0.001)) as (address, runner), socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", int(address.rsplit(":", 1)[1])))
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        client.sendall(f"{head}\r\n\r\n".encode() + body)
        until(lambda: runner.num_requests == 1)
        assert httpx.post(f"{address}/v1/completions", json=SHORT, timeout=30).status_code == 200
        until(lambda: runner.num_requests == 0)
        assert not runner.llm.has_work
