"""A server in a process of its own, and what can be asked about it from outside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Server:
    """``address``: without a path. ``pid``: of the process that answers."""

    address: str
    pid: int

    def stats(self) -> dict[str, Any]:
        """What Outrider counts."""
        out: dict[str, Any] = httpx.get(f"{self.address}/stats", timeout=60).json()
        return out

    def memory(self) -> float:
        """Resident memory in MiB."""
        fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def free_port() -> int:
    """A port that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    command: Sequence[str], port: int, health: str, seconds: float = 300.0, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """``command`` until the block ends, once ``health`` answers 200. Raises RuntimeError when it never does."""
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, stderr=sys.stderr, stdout=sys.stderr)
    address, until = f"http://127.0.0.1:{port}", time.monotonic() + seconds
    try:
        while not _answers(address + health):
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{' '.join(command[:4])} ... did not start: see its messages above")
            time.sleep(0.2)
        yield Server(address, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def outrider(model: str, *options: str) -> Iterator[Server]:
    """``outrider serve`` with ``options``."""
    port = free_port()
    command = [sys.executable, "-m", "outrider", "serve", model, "--port", str(port), "--no-pages", *options]
    with running(command, port, "/ready") as server:
        yield server


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False
