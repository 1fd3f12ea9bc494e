"""The counters as Prometheus metrics, under vLLM's names where vLLM has one, so that its dashboards read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider.engine.load import EngineLoad
from outrider.telemetry.counters import PLAIN, Counters, MethodCounts, RequestCounts, Snapshot
from outrider.telemetry.histogram import Histogram

Values = Mapping[tuple[str, ...], float]  # by the labels after model_name

_BY_METHOD = {
    "generation_tokens": ("tokens that requests got", "num_tokens"),
    "prompt_tokens": ("tokens of prompts that were computed or found in the cache", "num_prompt_tokens"),
    "decode_steps": ("steps of sequences after their prefill, with or without a draft", "num_steps"),
    "prefill_seconds": ("seconds in which prompts were computed", "prefill_seconds"),
    "draft_seconds": ("seconds in which drafters proposed", "draft_seconds"),
    "verify_seconds": ("seconds in which the target computed steps after prefill", "verify_seconds"),
    "overhead_seconds": ("seconds of steps after prefill beside drafting and the target", "overhead_seconds"),
}
_OF_DRAFTS = {
    "spec_decode_num_drafts": ("steps of sequences that verified a draft", "num_drafts"),
    "spec_decode_num_draft_tokens": ("tokens that were drafted and verified", "num_draft_tokens"),
    "spec_decode_num_accepted_tokens": ("tokens that were drafted and accepted", "num_accepted_tokens"),
}
_BY_POSITION = {
    "spec_decode_num_accepted_tokens_per_pos": ("drafts of which more tokens were accepted", "accepted_per_position"),
    "spec_decode_num_tested_tokens_per_pos": (
        "drafts that went on after so many accepted tokens",
        "tested_per_position",
    ),
}
_LATENCIES = {
    "time_to_first_token_seconds": ("from a request's arrival to its first token", "first_token"),
    "inter_token_latency_seconds": ("between two steps that gave a request tokens", "between_tokens"),
    "request_time_per_output_token_seconds": ("a request's mean time of a token after the first", "per_token"),
    "e2e_request_latency_seconds": ("from a request's arrival to its last token", "whole"),
    "request_queue_time_seconds": ("from a request's arrival to the begin of its prefill", "queue"),
}


class EngineCollector(Collector):
    """What ``counters`` and ``load`` say at the moment of a scrape. ``prefix``: what all names begin with."""

    def __init__(self, counters: Counters, load: Callable[[], EngineLoad], model: str, prefix: str) -> None:
        self._counters, self._load, self._model, self._prefix = counters, load, model, prefix

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        now = self._counters.snapshot()
        drafting = {name: counts for name, counts in now.methods.items() if name != PLAIN}
        yield from self._sums(_BY_METHOD, now.methods)
        if drafting:  # without speculation there is nothing to say about drafts
            yield from self._sums(_OF_DRAFTS, drafting)
            yield from self._positions(drafting)
            yield self._drift(drafting)
            name, help_text = "draft_latency_seconds", "drafting in one step, for all sequences of the method"
            yield self._histogram(name, help_text, {key: counts.draft_latency for key, counts in drafting.items()})
        yield from self._requests(now.requests)
        calls: Values = {(route, str(status)): count for (route, status), count in now.calls.items()}
        yield self._counter("http_requests", "calls of clients, refused ones too", calls, "route", "status")
        yield from self._engine(now, self._load())

    def _sums(self, table: Mapping[str, tuple[str, str]], methods: Mapping[str, MethodCounts]) -> Iterator[Metric]:
        for name, (help_text, field) in table.items():
            yield self._counter(name, help_text, {(key,): getattr(c, field) for key, c in methods.items()}, "method")

    def _positions(self, methods: Mapping[str, MethodCounts]) -> Iterator[Metric]:
        for name, (help_text, field) in _BY_POSITION.items():
            values: Values = {
                (key, str(position)): count
                for key, counts in methods.items()
                for position, count in enumerate(getattr(counts, field))
            }
            yield self._counter(name, help_text, values, "method", "position")

    def _drift(self, methods: Mapping[str, MethodCounts]) -> Metric:
        help_text = "how sure it is that conditional acceptance has fallen for good: 1 is an alarm (CUSUM)"
        values: Values = {(key,): counts.drift.level for key, counts in methods.items()}
        return self._gauge("spec_decode_acceptance_drift", help_text, values, "method")

    def _requests(self, requests: RequestCounts) -> Iterator[Metric]:
        ends: Values = {(reason,): count for reason, count in requests.finished.items()}
        yield self._counter("request_success", "requests that ended", ends, "finished_reason")
        yield self._counter("prefix_cache_queries", "prompt tokens looked up", {(): requests.num_query_tokens})
        yield self._counter("prefix_cache_hits", "prompt tokens found in the cache", {(): requests.num_hit_tokens})
        for name, (help_text, field) in _LATENCIES.items():
            yield self._histogram(name, help_text, {None: getattr(requests, field)})

    def _engine(self, now: Snapshot, load: EngineLoad) -> Iterator[Metric]:
        yield self._gauge("num_requests_running", "sequences that run", {(): load.num_running})
        yield self._gauge("num_requests_waiting", "sequences that wait", {(): load.num_waiting})
        usage: Values = {(name,): pool.usage for name, pool in load.pools.items()}
        yield self._gauge("kv_cache_usage_perc", "share of a cache's blocks in use; 1 is all", usage, "pool")
        help_text = "share of the bytes of all caches together that sequences hold"
        yield self._gauge("kv_cache_budget_usage_perc", help_text, {(): load.cache_usage})
        yield self._counter("num_preemptions", "sequences that lost their blocks", {(): load.num_preemptions})
        yield self._counter("engine_steps", "steps of the engine", {(): now.num_steps})
        yield self._counter("batch_rows", "rows of sequences", {(): load.num_rows})
        yield self._counter("batch_rows_computed", "rows that the target computed", {(): load.num_rows_computed})
        fill: Values = {(): load.num_rows / load.num_rows_computed} if load.num_rows_computed else {}
        yield self._gauge("batch_fill", "rows of sequences / rows that the target computed", fill)
        help_text = "tokens per second of late over plain decoding's, as the planner reckons"
        yield self._gauge("going_rate", help_text, {(): load.speed_up})
        yield self._gauge("tokens_per_second", "tokens per second of late", {(): now.tokens_per_second})

    def _counter(self, name: str, help_text: str, values: Values, *labels: str) -> Metric:
        family = CounterMetricFamily(self._prefix + name, help_text, labels=("model_name", *labels))
        for key, value in values.items():
            family.add_metric((self._model, *key), value)
        return family

    def _gauge(self, name: str, help_text: str, values: Values, *labels: str) -> Metric:
        family = GaugeMetricFamily(self._prefix + name, help_text, labels=("model_name", *labels))
        for key, value in values.items():
            family.add_metric((self._model, *key), value)
        return family

    def _histogram(self, name: str, help_text: str, values: Mapping[str | None, Histogram]) -> Metric:
        labels = ("model_name",) if None in values else ("model_name", "method")
        family = HistogramMetricFamily(self._prefix + name, help_text, labels=labels)
        for key, each in values.items():
            bounds = [*(str(bound) for bound in each.bounds), "+Inf"]
            own = (self._model,) if key is None else (self._model, key)
            family.add_metric(own, list(zip(bounds, each.cumulative, strict=True)), each.total)
        return family
