"""What a collector receives: OTLP over HTTP, spans and metrics each at their path."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from outrider.core.draft import Draft
from outrider.telemetry.calls import Call
from outrider.telemetry.counters import Counters
from outrider.telemetry.otel import exporters, sending

Received = dict[str, bytes]


@pytest.fixture
def collector() -> Iterator[tuple[str, Received]]:
    """Its address, and the latest body by path."""
    received: Received = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            received[self.path] = gzip.decompress(body) if packed else body
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return None

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


def test_a_collector_gets_both_once_telemetry_ends(
    collector: tuple[str, Received], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_PROTOCOL", raising=False)
    address, received = collector
    counters = Counters(["suffix"])
    counters._methods["suffix"].add_draft(Draft([1, 2, 3, 4]), [0, 1])
    with sending(counters, "m", *exporters(f"{address}/")) as telemetry:
        call = Call("POST")
        call.end("/v1/chat/completions", 429)
        telemetry(call)
        other = Call("GET")
        other.end("/health", 200)
        telemetry(other)
    (resource,) = ExportTraceServiceRequest.FromString(received["/v1/traces"]).resource_spans
    assert [span.name for span in resource.scope_spans[0].spans] == ["chat m"]
    names = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert names["service.name"] == "outrider"
    sent = ExportMetricsServiceRequest.FromString(received["/v1/metrics"]).resource_metrics[0].scope_metrics[0].metrics
    metrics = {metric.name: metric for metric in sent}
    assert metrics["gen_ai.speculative.acceptance_rate"].gauge.data_points[0].as_double == 0.5
    assert metrics["gen_ai.speculative.accepted_tokens_per_step"].gauge.data_points[0].as_double == 3.0
    assert metrics["gen_ai.server.request.duration"].histogram.data_points[0].count == 1
    assert "gen_ai.server.time_to_first_token" not in metrics  # no token came
