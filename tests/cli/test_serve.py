"""What `outrider serve` refuses before it loads anything."""

from __future__ import annotations

import sys

import pytest

from outrider.cli.main import run


@pytest.mark.parametrize("option", [["-k", "4"], ["--draft", "x"], ["--speculative-config", '{"method": "ngram"}']])
def test_plain_takes_no_other_speculation(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "nowhere", "--method", "plain", *option]) == 2
    assert "--method plain takes no" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--request-log-text"], "--request-log-text needs --request-log"),
        (["--request-log", "/nowhere/calls.jsonl"], "--request-log /nowhere/calls.jsonl"),
        (["--otlp-endpoint", "localhost:4318"], "give a URL"),
        (["--metrics-prefix", "a b"], "--metrics-prefix"),
        (["--api-key", "a", "--api-key", ""], "--api-key (or OUTRIDER_API_KEY) is empty"),
    ],
)
def test_records_are_checked_before_the_model(
    options: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "nowhere", *options]) == 2
    assert part in capsys.readouterr().err


def test_a_missing_opentelemetry_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    assert run(["serve", "nowhere", "--otlp-endpoint", "http://localhost:4318"]) == 2
    assert "pip install 'outrider[otel]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--replicas", "2", "--autoscale", "1:2"], "--replicas and --autoscale: give one"),
        (["--autoscale", "2"], "--autoscale '2': give the fewest and the most replicas, such as 1:4"),
        (["--autoscale", "3:2"], "such as 1:4"),
        (["--autoscale", "0:0"], "such as 1:4"),
        (["--replicas", "2", "--explain"], "--explain tells of one engine"),
        (["--replicas", "2", "--distill", "x"], "--distill trains one engine's head"),
        (["--replicas", "2", "--tensor-parallel-size", "2"], "--tensor-parallel-size spreads one engine"),
    ],
)
def test_numbers_of_replicas_must_make_sense(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "nowhere", *given]) == 2
    assert said in capsys.readouterr().err


def test_replicas_without_ray_say_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "outrider.server.replicas.app", None)
    assert run(["serve", "nowhere", "--replicas", "2"]) == 2
    assert "pip install 'outrider[ray]'" in capsys.readouterr().err
