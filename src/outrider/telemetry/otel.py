"""Calls and acceptance for OpenTelemetry: a span for every call that generates, and the metrics of its semantic
conventions for GenAI servers, with `gen_ai.speculative.*` beside them.

Rates are pooled over all tokens since they were last exported, by method, never means of calls' own rates.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.propagate import extract
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode

from outrider import __version__
from outrider.closing import Closing
from outrider.errors import ConfigError
from outrider.telemetry.calls import Call
from outrider.telemetry.counters import PLAIN, Counters, MethodCounts

OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
Attributes = dict[str, str | int | float | list[str]]

_DURATIONS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)


class Telemetry(Closing):
    """A watcher of calls that writes spans and metrics. ``counters``: where acceptance is read at every export."""

    def __init__(self, counters: Counters, model: str, reader: MetricReader, spans: SpanProcessor) -> None:
        self._model = model
        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "outrider")})
        self._meters = MeterProvider([reader], resource)
        self._tracers = TracerProvider(resource=resource)
        self._tracers.add_span_processor(spans)
        self._tracer = self._tracers.get_tracer("outrider", __version__)
        meter = self._meters.get_meter("outrider", __version__)
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration", "s", "From a call's arrival to its last token.",
            explicit_bucket_boundaries_advisory=_DURATIONS,
        )  # fmt: skip
        self._first = meter.create_histogram(
            "gen_ai.server.time_to_first_token", "s", "From a call's arrival to its first token.",
            explicit_bucket_boundaries_advisory=_FIRST,
        )  # fmt: skip
        self._between = meter.create_histogram(
            "gen_ai.server.time_per_output_token", "s", "Mean time of a token after the first.",
            explicit_bucket_boundaries_advisory=_BETWEEN,
        )  # fmt: skip
        self._latency = meter.create_histogram(
            "gen_ai.request.e2e_latency_ms", "ms", "From a call's arrival to its last token.",
            explicit_bucket_boundaries_advisory=[1e3 * bound for bound in _DURATIONS],
        )  # fmt: skip
        for name, unit, help_text, value in _GAUGES:
            meter.create_observable_gauge(
                f"gen_ai.speculative.{name}", [Since(counters, model, value)], unit, help_text
            )

    def __call__(self, call: Call) -> None:
        """Record a call that has ended."""
        operation = OPERATIONS.get(call.route)
        if operation is None:
            return
        common: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "outrider",
            "gen_ai.request.model": self._model,
            "gen_ai.response.model": self._model,
        }
        wrong = _error(call)
        labels = common | ({"error.type": wrong} if wrong else {})
        self._duration.record(call.seconds, labels)
        self._latency.record(1e3 * call.seconds, labels)
        if call.time_to_first_token is not None and not wrong:
            self._first.record(call.time_to_first_token, labels)
        if call.time_per_output_token is not None and not wrong:
            self._between.record(call.time_per_output_token, labels)
        self._span(call, operation, labels | _facts(call), wrong)

    def _span(self, call: Call, operation: str, attributes: Attributes, wrong: str | None) -> None:
        begin = int(1e9 * call.arrived)
        span = self._tracer.start_span(
            f"{operation} {self._model}", extract(call.headers), SpanKind.SERVER, attributes, start_time=begin
        )
        if wrong:
            span.set_status(Status(StatusCode.ERROR, wrong))
        span.end(begin + int(1e9 * call.seconds))

    def close(self) -> None:
        """Export what is left."""
        self._tracers.shutdown()
        self._meters.shutdown()


def exporters(endpoint: str) -> tuple[MetricExporter, SpanExporter]:
    """To a collector at ``endpoint`` (OTLP over HTTP, such as http://localhost:4318). The SDK's own variables set
    headers, timeouts and the like. Raises ConfigError for another protocol."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    if protocol != "http/protobuf":
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: set http/protobuf, and the port that takes it (4318)"
        )
    base = endpoint.rstrip("/")
    if not base.startswith(("http://", "https://")):
        raise ConfigError(f"--otlp-endpoint {endpoint}: give a URL, such as http://localhost:4318")
    return OTLPMetricExporter(f"{base}/v1/metrics"), OTLPSpanExporter(f"{base}/v1/traces")


def sending(counters: Counters, model: str, metrics: MetricExporter, spans: SpanExporter) -> Telemetry:
    """Telemetry that is exported in batches, from a thread beside."""
    return Telemetry(counters, model, PeriodicExportingMetricReader(metrics), BatchSpanProcessor(spans))


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of one method, or how much they grew."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_steps: int = 0  # of the engine
    draft_seconds: float = 0.0

    @classmethod
    def of(cls, counts: MethodCounts) -> Sums:
        """Those of ``counts``."""
        latency = counts.draft_latency
        return cls(
            counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens, sum(latency.counts), latency.total
        )

    def since(self, before: Sums) -> Sums:
        """What came after ``before``."""
        return Sums(
            self.drafts - before.drafts,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            self.draft_steps - before.draft_steps,
            self.draft_seconds - before.draft_seconds,
        )


class Since:
    """A gauge's callback: ``value`` of what each method did since it was asked last; nothing where that is None."""

    def __init__(self, counters: Counters, model: str, value: Callable[[Sums], float | None]) -> None:
        self._counters, self._model, self._value = counters, model, value
        self._before: Mapping[str, Sums] = {}

    def __call__(self, options: CallbackOptions) -> Iterator[Observation]:
        """An observation for every method."""
        methods = self._counters.snapshot().methods
        now = {name: Sums.of(counts) for name, counts in methods.items() if name != PLAIN}
        before, self._before = self._before, now
        for name, sums in now.items():
            value = self._value(sums.since(before.get(name, Sums())))
            if value is not None:
                yield Observation(value, {"gen_ai.request.model": self._model, "gen_ai.speculative.method": name})


def _ratio(part: float, whole: int, more: float = 0.0) -> float | None:
    return more + part / whole if whole else None


_GAUGES: tuple[tuple[str, str, str, Callable[[Sums], float | None]], ...] = (
    ("acceptance_rate", "1", "Accepted / drafted tokens.", lambda sums: _ratio(sums.accepted, sums.drafted)),
    (
        "accepted_tokens_per_step",
        "{token}",
        "Tokens of a step that verified a draft: the accepted ones, and the target's own.",
        lambda sums: _ratio(sums.accepted, sums.drafts, 1.0),
    ),
    (
        "draft_latency_ms",
        "ms",
        "Mean time of drafting in a step of the engine.",
        lambda sums: _ratio(1e3 * sums.draft_seconds, sums.draft_steps),
    ),
)


def _error(call: Call) -> str | None:
    """What `error.type` says, None for a call that went well."""
    if call.status >= 400:
        return str(call.status)
    return next((reason for reason in call.finish_reasons if reason in ("error", "abort")), None)


def _facts(call: Call) -> Attributes:
    """What only a span says of a call."""
    drafts = call.num_drafts
    values: dict[str, str | int | float | list[str] | None] = {
        "http.request.method": call.method,
        "http.route": call.route,
        "http.response.status_code": call.status,
        "gen_ai.response.id": call.answer_id,
        "gen_ai.response.finish_reasons": call.finish_reasons or None,
        "gen_ai.usage.input_tokens": call.num_prompt_tokens,
        "gen_ai.usage.output_tokens": call.num_tokens,
        "gen_ai.server.time_to_first_token": call.time_to_first_token,
        "gen_ai.server.time_per_output_token": call.time_per_output_token,
        "gen_ai.request.e2e_latency_ms": 1e3 * call.seconds,
        "gen_ai.speculative.method": call.speculation,
        "gen_ai.speculative.acceptance_rate": call.acceptance,
        "gen_ai.speculative.accepted_tokens_per_step": call.acceptance_length,
        "gen_ai.speculative.draft_latency_ms": 1e3 * call.draft_seconds / drafts if drafts else None,
    }
    return {name: value for name, value in values.items() if value is not None}
