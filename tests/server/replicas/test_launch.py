"""What replicas get of a machine."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'outrider[ray]'")

from outrider.server.replicas import launch
from outrider.server.replicas.app import Options


@pytest.mark.parametrize(
    ("cores", "given", "threads", "cpus"),
    [
        (8, {"replicas": 2}, 4, 4),
        (8, {"replicas": 3}, 2, 2),
        (8, {"autoscaling_config": {"min_replicas": 1, "max_replicas": 4}}, 2, 2),
        (2, {"replicas": 4}, 1, 0.5),
        (8, {"replicas": 2, "llm": {"threads": 1}}, 1, 1),
        (8, {"replicas": 2, "llm": {"threads": 8}}, 8, 4),
        (8, {"replicas": 3, "llm": {"threads": 4}}, 4, 2),
    ],
)
def test_replicas_share_the_machine(
    cores: int, given: dict[str, object], threads: int, cpus: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.os, "cpu_count", lambda: cores)
    sized = launch._sized(Options(model="m", **given))
    assert sized.llm["threads"] == threads
    assert sized.ray_actor_options == {"num_cpus": cpus}


def test_what_is_said_about_the_machine_is_kept() -> None:
    options = Options(model="m", ray_actor_options={"num_cpus": 3, "num_gpus": 1})
    assert launch._sized(options).ray_actor_options == {"num_cpus": 3, "num_gpus": 1}
