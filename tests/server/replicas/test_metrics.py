"""Pages of metrics that become one."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from outrider.server.replicas.metrics import join


def page(count: int) -> str:
    registry = CollectorRegistry()
    Counter("tokens", "All tokens.", ["model"], registry=registry).labels("m").inc(count)
    Histogram("seconds", "Times.", buckets=(1.0,), registry=registry).observe(count)
    return generate_latest(registry).decode()


def test_samples_keep_their_values_and_say_whose_they_are() -> None:
    lines = join({"a": page(1), "b": page(2)}).decode().splitlines()
    assert 'tokens_total{model="m",replica="a"} 1.0' in lines
    assert 'tokens_total{model="m",replica="b"} 2.0' in lines
    assert 'seconds_bucket{le="1.0",replica="b"} 0.0' in lines
    assert 'seconds_bucket{le="+Inf",replica="b"} 1.0' in lines
    assert lines.count("# TYPE tokens_total counter") == 1
    assert lines.count("# TYPE seconds histogram") == 1
