"""The metrics of all replicas as one page: every sample says which replica it is of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


class _Joined(Collector):
    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        joined: dict[str, Metric] = {}
        for replica, page in self._pages.items():
            for family in text_string_to_metric_families(page):
                out = joined.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    out.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
        yield from joined.values()


def join(pages: Mapping[str, str]) -> bytes:
    """One page in Prometheus' format of the pages of all replicas, by their names."""
    registry = CollectorRegistry()
    registry.register(_Joined(pages))
    return generate_latest(registry)
