"""Prompts are no longer found in the prefix cache."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, percent

_NAME = "prefix_hits_lost"
_USUAL = 0.1  # a hit rate below which nothing can be lost
_LEFT = 0.5  # of it
_TOKENS = 1000  # looked up


def _check(case: Case) -> Iterable[Finding]:
    if off := _off(case):
        yield finding(_NAME, "the prefix cache is switched off", Certainty.CERTAIN, off, 0.4)
        return
    figures = case.metrics
    if figures.hit_rate is None:
        raise Lacking(f"hits of the prefix cache ({figures.engine} does not count them, or nothing was looked up)")
    if figures.before is None:
        raise Lacking("two scrapes, to see whether hits were lost (--window SECONDS, or two files)")
    before, now = figures.before.hit_rate, figures.hit_rate
    if before is None or before < _USUAL or now > _LEFT * before or (figures.num_query_tokens or _TOKENS) < _TOKENS:
        return
    source = figures.origin("num_hit_tokens", "stated_hit_rate")
    evidence = [Evidence("prompt tokens found in the cache", percent(now), f"{percent(before)} before", source)]
    if figures.num_preemptions:
        count = f"{figures.num_preemptions:.0f}"
        evidence.append(Evidence("preemptions meanwhile", count, source=figures.origin("num_preemptions")))
    fault = "prompts that used to be found in the prefix cache are computed anew"
    yield finding(_NAME, fault, Certainty.LIKELY, evidence, 1.0 - now / before)


def _off(case: Case) -> list[Evidence]:
    """That the cache is switched off; empty where it is not."""
    labels = case.figures[0].labels if case.figures else {}
    given = case.settings.target.get("enable_prefix_caching") if case.settings else None
    off = [
        Evidence("enable_prefix_caching", str(value), "True", source)
        for value, source in ((labels.get("enable_prefix_caching"), "cache_config_info"), (given, "--engine-config"))
        if value is not None and str(value).lower() == "false"
    ]
    if case.settings is not None and case.settings.target.get("disable_radix_cache"):
        off.append(Evidence("disable_radix_cache", "True", "not set", case.settings.source))
    return off


DIAGNOSIS = Diagnosis(
    _NAME,
    "prefix hits are lost",
    "tokens found in the prefix cache within the window against those before; settings that switch it off",
    "keep the same text in front (system prompt, tools, then what changes; no date or id in the first block), send a "
    "conversation to the replica that has it, give the cache memory, and switch it on",
    _check,
)
