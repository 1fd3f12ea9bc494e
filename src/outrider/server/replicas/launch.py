"""Starting the application from the command line, on the Ray cluster at hand or on this machine alone."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

import ray
from ray import serve
from ray.serve.schema import LoggingConfig

from outrider.errors import ConfigError
from outrider.server.replicas.app import APP_NAME, Options, build


def serve_forever(options: Options, host: str, port: int) -> None:
    """Start the application and keep it until the process is interrupted or told to end.

    Ray is the cluster of RAY_ADDRESS, or one that runs on this machine, or a new one. A replica reserves a CPU for each
    thread; without ``threads`` replicas share this machine's. Raises ConfigError when Serve runs there already.
    """
    app = build(_sized(options))
    ray.init(logging_level=logging.WARNING)
    try:
        if serve.status().proxies:
            raise ConfigError(
                "Ray Serve runs on this cluster already, at its own address: deploy beside what it serves, with "
                "`serve deploy CONFIG` and import_path outrider.server.replicas.app:build"
            )
        signal.signal(signal.SIGTERM, _end)
        logs = LoggingConfig(log_level="WARNING", enable_access_log=False)
        serve.start(http_options={"host": host, "port": port}, logging_config=logs)
        try:
            serve.run(app, name=APP_NAME, logging_config=logs)
            print(f"{_summary(options)}: http://{host}:{port}/v1 (Ctrl-C ends it)", file=sys.stderr)
            while True:
                time.sleep(3600)
        finally:
            serve.shutdown()
    finally:
        ray.shutdown()


def _end(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _most(options: Options) -> int:
    """Replicas at the same time."""
    return int((options.autoscaling_config or {}).get("max_replicas", options.replicas))


def _sized(options: Options) -> Options:
    """``options`` with threads, and with CPUs reserved for them where nothing is said about that."""
    share = (os.cpu_count() or 1) / _most(options)
    share = share if share < 1 else int(share)  # Ray takes no fractions above one
    threads = options.llm.get("threads") or max(1, int(share))
    reserved: dict[str, Any] = {"num_cpus": min(threads, share)}
    return options.model_copy(
        update={
            "llm": {**options.llm, "threads": threads},
            "ray_actor_options": {**reserved, **options.ray_actor_options},
        }
    )


def _summary(options: Options) -> str:
    scale = options.autoscaling_config
    count = f"{scale['min_replicas']} to {scale['max_replicas']}" if scale else f"{options.replicas}"
    return f"{options.model} ({count} replicas)"
