"""Two scrapes: what happened between them, what was lost since, and windows that say nothing."""

from __future__ import annotations

from doctor import prometheus as pages
from doctor.conftest import Doctor

LATER = (0.30, 0.15, 0.06, 0.03)


def total(*parts: tuple[tuple[float, ...], float]) -> tuple[tuple[float, ...], float]:
    """The counts of several times, one after the other."""
    drafts = sum(count for _, count in parts)
    shares = zip(*(tuple(share * count for share in shares) for shares, count in parts), strict=True)
    return tuple(sum(column) / drafts for column in shares), drafts


def test_acceptance_that_falls_is_drift(doctor: Doctor) -> None:
    shares, drafts = total((pages.HEALTHY, 10_000), (LATER, 2_000))
    answer = doctor(pages=(pages.vllm(pages.HEALTHY, 10_000), pages.vllm(shares, drafts)))
    assert answer.first == "drift"
    evidence = answer.report["findings"][0]["evidence"][0]
    assert (evidence["value"], evidence["limit"]) == ("13.5 %", "56.8 % before it")
    seen = {line["what"]: line["value"] for line in answer.report["seen"]}
    assert seen["drafts"] == "2,000"  # of the window alone


def test_acceptance_that_stays_is_none(doctor: Doctor) -> None:
    answer = doctor(pages=(pages.vllm(drafts=10_000), pages.vllm(drafts=12_000)))
    assert answer.status == 0
    assert "drift" in answer.report["checked"]
    assert "stale_window" in answer.report["checked"]


def test_chance_is_no_drift(doctor: Doctor) -> None:
    shares, drafts = total((pages.HEALTHY, 10_000), ((0.5, 0.3, 0.2, 0.1), 10))
    answer = doctor(pages=(pages.vllm(pages.HEALTHY, 10_000), pages.vllm(shares, drafts)))
    assert "drift" not in [found["diagnosis"] for found in answer.report["findings"]]


def test_lost_prefix_hits_are_named(doctor: Doctor) -> None:
    first = pages.vllm(prefix_cache_queries=400_000, prefix_cache_hits=240_000)
    second = pages.vllm(drafts=12_000, prefix_cache_queries=500_000, prefix_cache_hits=242_000)
    answer = doctor(pages=(first, second))
    assert answer.first == "prefix_hits_lost"
    assert "2.0 %" in answer.report["findings"][0]["evidence"][0]["value"]


def test_lost_prefix_hits_of_a_gauge(doctor: Doctor) -> None:
    answer = doctor(
        pages=(pages.sglang(cache_hit_rate=0.6), pages.sglang(cache_hit_rate=0.02, generation_tokens=60_000))
    )
    assert answer.first == "prefix_hits_lost"


def test_a_restart_within_the_window_is_named_and_its_sums_are_those_since(doctor: Doctor) -> None:
    answer = doctor(pages=(pages.vllm(drafts=10_000), pages.vllm(drafts=3_000)))
    assert answer.first == "stale_window"
    seen = {line["what"]: line["value"] for line in answer.report["seen"]}
    assert seen["drafts"] == "3,000"
    assert seen["draft acceptance rate"] == "56.8 %"


def test_another_process_is_a_restart_though_its_counters_are_higher(doctor: Doctor) -> None:
    start = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {}\n"
    answer = doctor(pages=(pages.vllm(drafts=100) + start.format(1000), pages.vllm() + start.format(2000)))
    assert answer.first == "stale_window"


def test_counters_that_stand_still_while_requests_run_are_stale(doctor: Doctor) -> None:
    assert doctor(pages=(pages.vllm(), pages.vllm())).first == "stale_window"
    idle = pages.vllm(num_requests_running=0)
    assert doctor(pages=(idle, idle)).status == 0


def test_two_engines_are_no_window(doctor: Doctor) -> None:
    answer = doctor(pages=(pages.vllm(), pages.sglang()))
    assert answer.status == 2
    assert "give two scrapes of one server" in answer.err


def test_what_is_no_metrics_is_refused(doctor: Doctor) -> None:
    assert "none of an engine that is known" in doctor(pages=("python_info 1\n",)).err
    assert "not in Prometheus' text format" in doctor(pages=("<html>{{</html>\n",)).err
    assert doctor(pages=("python_info 1\n",)).status == 2
    assert doctor("nowhere.txt").status == 2
    assert "does not answer" in doctor("http://127.0.0.1:9").err
    assert "--window reads one address twice" in doctor("--window", "1", pages=(pages.vllm(),)).err
    assert "nothing to look at" in doctor().err
    assert "add --target" in doctor("--draft", "x").err
