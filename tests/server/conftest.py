"""A server over the tiny model, on a free port, in a thread."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import openai
import pytest
import uvicorn

from engine.tiny import Models
from outrider.llm import LLM
from outrider.server.app import create_app
from outrider.server.runner import Runner
from outrider.server.service import ServerSettings
from outrider.telemetry.calls import Watcher
from train.tiny import chatting

METHODS = [{"method": "suffix"}, {"method": "prediction"}, {"method": "auto"}]


@contextmanager
def serving(
    llm: LLM, max_waiting: int = 512, watchers: Sequence[Watcher] = (), **settings: Any
) -> Iterator[tuple[str, Runner]]:
    """The address of a server over ``llm``, and its runner."""
    with Runner(llm, max_waiting) as runner, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # or who calls before the thread is there is turned away
        app = create_app(runner, ServerSettings("tiny", **settings), watchers)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", runner
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny target with a chat template."""
    models = Models(tmp_path_factory.mktemp("models"))
    return chatting(models.folders["target"], tmp_path_factory.mktemp("chat"))


def tiny(folder: str, **settings: Any) -> LLM:
    """An engine over the tiny target."""
    options = {"dtype": "float32", "threads": 1, "strict": True, "speculative_config": METHODS, **settings}
    return LLM(folder, **options)


@pytest.fixture(scope="session")
def plain(folder: str) -> LLM:
    """Plain decoding, to compare with."""
    return tiny(folder, speculative_config=None)


@pytest.fixture(scope="module")
def server(folder: str) -> Iterator[tuple[str, Runner]]:
    """Its address, and its runner."""
    with serving(tiny(folder)) as started:
        yield started


@pytest.fixture(scope="module")
def client(server: tuple[str, Runner]) -> Iterator[openai.OpenAI]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0) as opened:
        yield opened
