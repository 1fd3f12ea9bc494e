"""What is kept of calls: the log, and spans and metrics for OpenTelemetry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from outrider.errors import ConfigError
from outrider.telemetry.calls import Call
from outrider.telemetry.counters import Counters
from outrider.telemetry.otel import Telemetry, exporters
from outrider.telemetry.request_log import RequestLog
from server.conftest import serving, tiny
from server.test_metrics import ASK, SUFFIX, scrape
from server.test_runner import slow, until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def lines(path: Path) -> list[dict[str, Any]]:
    """Of a log."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def test_every_call_is_a_line_without_its_text(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with (
        RequestLog(path) as log,
        serving(tiny(folder, speculative_config=SUFFIX), watchers=[log]) as (address, _),
    ):
        url = f"{address}/v1/completions"
        whole = httpx.post(url, json=ASK).json()
        streamed = httpx.post(url, json={**ASK, "stream": True, "n": 2, "temperature": 1.0, "ignore_eos": True})
        httpx.post(url, json={**ASK, "temperature": -1})
        httpx.post(f"{address}/nowhere/{'x' * 40}")
        httpx.get(f"{address}/health")
        until(lambda: len(lines(path)) == 4)  # the last byte comes before the line
        got, counts = lines(path), scrape(address)
    assert [(line["route"], line["status"]) for line in got] == [
        ("/v1/completions", 200), ("/v1/completions", 200), ("/v1/completions", 400), ("unknown", 404)
    ]  # fmt: skip
    first, second, refused, _ = got
    assert first["id"] == whole["id"]
    usage = whole["usage"]
    assert (first["prompt_tokens"], first["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (first["method"], first["finish_reasons"]) == ("suffix", ["length"])
    assert first["acceptance"] == pytest.approx(first["accepted_tokens"] / first["draft_tokens"], abs=1e-6)
    assert 0 <= first["queue_seconds"] <= first["time_to_first_token"] <= first["seconds"]
    assert second["finish_reasons"] == ["length", "length"]
    assert second["completion_tokens"] == 48
    assert (first["temperature"], second["temperature"]) == (0.0, 1.0)
    assert second["id"] in streamed.text
    assert set(refused) == {"time", "id", "route", "status", "seconds"}
    assert "the ab" not in path.read_text(encoding="utf-8")
    assert counts["outrider:http_requests_total", "/v1/completions", "200"] == 2
    assert counts["outrider:http_requests_total", "unknown", "404"] == 1


def test_texts_are_kept_where_that_is_wanted(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with RequestLog(path, with_text=True) as log, serving(tiny(folder), watchers=[log]) as (address, _):
        text = httpx.post(f"{address}/v1/completions", json=ASK).json()["choices"][0]["text"]
        until(lambda: bool(path.read_text(encoding="utf-8")))
    assert lines(path)[0]["prompts"] == [ASK["prompt"]]
    assert lines(path)[0]["answers"] == [text]


def test_a_watcher_that_fails_ends_no_call(folder: str) -> None:
    def full(call: Call) -> None:
        raise OSError("no space left")

    with serving(tiny(folder), watchers=[full]) as (address, _):
        assert httpx.post(f"{address}/v1/completions", json=ASK).status_code == 200


def test_a_log_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--request-log"):
        RequestLog(tmp_path / "missing" / "calls.jsonl")


def measured(reader: InMemoryMetricReader) -> dict[str, Any]:
    """The data points of every metric by name."""
    data = reader.get_metrics_data()
    assert data is not None
    scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
    return {metric.name: metric.data.data_points for scope in scopes for metric in scope.metrics}


def observed(folder: str) -> tuple[list[Any], dict[str, Any], dict[str, Any], Counters]:
    """Spans, metrics, metrics asked for once more, and counters, of one call that goes well and one that is refused."""
    spans, reader, told = InMemorySpanExporter(), InMemoryMetricReader(), list[Telemetry]()
    with serving(tiny(folder, speculative_config=SUFFIX), watchers=[lambda call: told[0](call)]) as (address, runner):
        told.append(Telemetry(runner.counters, "tiny", reader, SimpleSpanProcessor(spans)))
        url, parent = f"{address}/v1/completions", {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
        httpx.post(url, json=ASK, headers=parent).raise_for_status()
        httpx.post(url, json={**ASK, "temperature": -1})
        httpx.get(f"{address}/health")
        until(lambda: len(spans.get_finished_spans()) == 2)
    found = measured(reader), measured(reader)
    told[0].close()
    return list(spans.get_finished_spans()), *found, runner.counters


def test_opentelemetry_gets_spans_and_pooled_rates(folder: str) -> None:
    (good, refused), metrics, later, counters = observed(folder)
    assert (good.name, good.kind) == ("text_completion tiny", SpanKind.SERVER)
    assert f"{good.context.trace_id:032x}" == TRACE
    facts, counts = good.attributes, counters.snapshot().methods["suffix"]
    assert facts["gen_ai.usage.output_tokens"] == 24
    assert list(facts["gen_ai.response.finish_reasons"]) == ["length"]
    assert facts["gen_ai.speculative.acceptance_rate"] == counts.draft_acceptance_rate
    assert facts["gen_ai.speculative.accepted_tokens_per_step"] == counts.mean_acceptance_length
    assert facts["gen_ai.request.e2e_latency_ms"] == pytest.approx((good.end_time - good.start_time) / 1e6, abs=1e-3)
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.attributes["error.type"] == "400"
    durations = metrics["gen_ai.server.request.duration"]
    assert sorted(point.attributes.get("error.type", "") for point in durations) == ["", "400"]
    for name in ("gen_ai.server.time_to_first_token", "gen_ai.server.time_per_output_token"):
        assert [point.count for point in metrics[name]] == [1]
    assert sum(point.count for point in metrics["gen_ai.request.e2e_latency_ms"]) == 2
    (rate,) = metrics["gen_ai.speculative.acceptance_rate"]
    assert rate.value == counts.draft_acceptance_rate
    assert rate.attributes["gen_ai.speculative.method"] == "suffix"
    (length,) = metrics["gen_ai.speculative.accepted_tokens_per_step"]
    assert length.value == counts.mean_acceptance_length
    assert metrics["gen_ai.speculative.draft_latency_ms"][0].value > 0
    assert "gen_ai.speculative.acceptance_rate" not in later  # nothing was drafted since


def test_what_a_collector_cannot_be_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="give a URL"):
        exporters("localhost:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="http/protobuf"):
        exporters("http://localhost:4317")


def test_a_client_that_leaves_is_an_abort(folder: str, tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with RequestLog(path) as log, serving(slow(tiny(folder)), watchers=[log]) as (address, runner):
        long = {**ASK, "max_tokens": 400, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", f"{address}/v1/completions", json=long) as answer:
            next(answer.iter_lines())
        assert runner.drain(20.0)
        until(lambda: bool(path.read_text(encoding="utf-8")))
    (line,) = lines(path)
    assert line["status"] == 200
    assert line["finish_reasons"] == ["abort"]
    assert runner.counters.snapshot().requests.finished["abort"] == 1
