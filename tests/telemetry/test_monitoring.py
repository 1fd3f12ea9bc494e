"""Dashboard and alerts: every expression is PromQL, and asks for metrics that /metrics has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

from outrider.cli.main import run
from outrider.core.draft import Draft
from outrider.engine.load import EngineLoad, PoolLoad
from outrider.telemetry.alerts import Limits, rules
from outrider.telemetry.counters import Counters, MethodCounts
from outrider.telemetry.dashboard import dashboard
from outrider.telemetry.prometheus import EngineCollector


def exported(prefix: str) -> set[str]:
    """The names of all samples that a server of one method exports."""
    counters = Counters(["suffix"])
    counters._methods["suffix"].add_draft(Draft([1, 2]), [0])
    counters._calls["/v1/completions", 200] = 1
    load = EngineLoad(1, 0, 0, 4, 4, 1.5, {"target": PoolLoad(8, 2, 16)}, 0.25)
    registry = CollectorRegistry()
    registry.register(EngineCollector(counters, lambda: load, "tiny", prefix))
    return {sample.name for family in registry.collect() for sample in family.samples}


def selectors(node: Any) -> Iterator[Any]:
    """The vector selectors of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "args", "param"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [below]:
            if each is not None and type(each).__module__.startswith("promql_parser"):
                yield from selectors(each)


def asked(expression: str) -> list[str]:
    """Names of metrics that an expression reads. Raises ValueError for what is no PromQL."""
    plain = expression.replace("$__rate_interval", "5m").replace("$model", ".*")
    return [selector.name for selector in selectors(promql_parser.parse(plain))]


def of_rules(prefix: str) -> list[str]:
    """Expressions of the alerts."""
    return [rule["expr"] for group in rules(prefix, Limits())["groups"] for rule in group["rules"]]


def of_dashboard(prefix: str) -> list[str]:
    """Expressions of the panels."""
    return [target["expr"] for panel in dashboard(prefix)["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("prefix", ["outrider:", "vllm:"])
@pytest.mark.parametrize("of", [of_rules, of_dashboard])
def test_expressions_parse_and_their_metrics_exist(of: Callable[[str], list[str]], prefix: str) -> None:
    known, expressions = exported(prefix), of(prefix)
    assert len(expressions) >= 4
    for expression in expressions:
        names = asked(expression)
        assert names
        assert set(names) <= known, expression


def test_what_is_wrong_would_be_found() -> None:
    assert asked("1 + sum by (a) (rate(x_total[5m])) / y > 2") == ["x_total", "y"]
    with pytest.raises(ValueError, match=r".+"):
        asked("sum by (rate(x_total[5m]")
    assert "outrider:spec_decode_num_accepted_total" not in exported("outrider:")


def test_the_variable_of_the_dashboard_asks_for_a_metric_that_exists() -> None:
    variable = dashboard("vllm:")["templating"]["list"][1]["query"]
    (name,) = re.findall(r"label_values\(([^,]+), model_name\)", variable)
    assert name in exported("vllm:")


def test_the_page_names_all_metrics_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    table = page.partition("| metric (behind")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`([a-z0-9_]+)`", row.split("|")[1])}
    samples = {name.removeprefix("outrider:") for name in exported("outrider:")}
    found = {re.sub(r"_(bucket|sum|count)$", "", name) if "_seconds_" in name else name for name in samples}
    assert named == found


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard("outrider:")["panels"]]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in dashboard("outrider:")["panels"]}) == len(places)


def test_the_command_writes_what_prometheus_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "monitoring"
    options = ["--metrics-prefix", "vllm:", "--min-acceptance", "0.4", "--max-draft-ms", "10", "--target", "host:9"]
    assert run(["export", "monitoring", "--out", str(out), *options]) == 0
    assert set(capsys.readouterr().out.split()) == {str(path) for path in out.iterdir()}
    found = yaml.safe_load((out / "outrider-alerts.yml").read_text())
    assert found == rules("vllm:", Limits(0.4, 2.0, 0.01))
    assert json.loads((out / "outrider-dashboard.json").read_text()) == dashboard("vllm:")
    promtool = shutil.which("promtool")
    if promtool is not None:
        for what in (["rules", "outrider-alerts.yml"], ["config", "prometheus.yml"]):
            checked = subprocess.run([promtool, "check", *what], cwd=out, capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stderr


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["export", "monitoring", "--out", str(tmp_path / "file")]) == 2
    assert "--out" in capsys.readouterr().err
    assert run(["export", "monitoring", "--out", str(tmp_path / "x"), "--metrics-prefix", "9"]) == 2


def test_rates_of_nothing_are_none() -> None:
    counts = MethodCounts()
    assert counts.draft_acceptance_rate is counts.mean_acceptance_length is None
    assert counts.conditional_acceptance == []


SERIES = {  # a server at fault; a minute between values
    "spec_decode_num_drafts_total": "0+60x30",
    "spec_decode_num_draft_tokens_total": "0+240x30",
    "spec_decode_num_accepted_tokens_total": "0+30x30",
    'spec_decode_num_accepted_tokens_per_pos_total{position="0"}': "0+30x30",
    'spec_decode_num_tested_tokens_per_pos_total{position="0"}': "0+60x30",
    'spec_decode_num_tested_tokens_per_pos_total{position="1"}': "0+30x30",
    'draft_latency_seconds_bucket{le="0.025"}': "0+90x30",
    'draft_latency_seconds_bucket{le="0.05"}': "0+100x30",
    'draft_latency_seconds_bucket{le="+Inf"}': "0+100x30",
    "spec_decode_acceptance_drift": "1.5x30",
}
ALERTS = ("OutriderLowAcceptance", "OutriderFewTokensPerStep", "OutriderSlowDrafts", "OutriderAcceptanceDrift")


def cases(series: dict[str, str], fires: bool) -> dict[str, Any]:
    """Of `promtool test rules`: every alert fires after a quarter of an hour, or none."""
    labels = {"model_name": "m", "method": "suffix", "severity": "warning"}
    summaries = {rule["alert"]: rule["annotations"] for rule in rules("outrider:", Limits())["groups"][0]["rules"]}
    values = {"OutriderLowAcceptance": "33.33%", "OutriderFewTokensPerStep": "1.5", "OutriderSlowDrafts": "47.5ms"}

    def annotations(alert: str) -> dict[str, str]:
        text = summaries[alert]["summary"].replace("{{ $labels.method }} on {{ $labels.model_name }}", "suffix on m")
        return {**summaries[alert], "summary": re.sub(r"\{\{ \$value .*?\}\}", values.get(alert, ""), text)}

    tests = [
        {
            "eval_time": "15m",
            "alertname": alert,
            "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations(alert)}] if fires else [],
        }
        for alert in ALERTS
    ]
    named = []
    for key, text in series.items():
        name, _, more = key.partition("{")
        inside = ", ".join(filter(None, ('model_name="m", method="suffix"', more.rstrip("}"))))
        named.append({"series": f"outrider:{name}{{{inside}}}", "values": text})
    return {"interval": "1m", "input_series": named, "alert_rule_test": tests}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Prometheus")
def test_alerts_fire_for_a_server_at_fault_and_for_no_other(tmp_path: Path) -> None:
    idle = dict.fromkeys(SERIES, "0x30")
    good = {
        **SERIES,
        "spec_decode_num_accepted_tokens_total": "0+90x30",
        'spec_decode_num_accepted_tokens_per_pos_total{position="0"}': "0+55x30",
        'draft_latency_seconds_bucket{le="0.025"}': "0+100x30",
        "spec_decode_acceptance_drift": "0.3x30",
    }
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules("outrider:", Limits())))
    tests = [cases(SERIES, True), cases(idle, False), cases(good, False)]
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(whole))
    command = ["promtool", "test", "rules", "tests.yml"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
