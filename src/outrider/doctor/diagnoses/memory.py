"""The draft's cache or the whole pool is full, so that drafts stop or requests are thrown out."""

from __future__ import annotations

from collections.abc import Iterable

from outrider.doctor.case import Case
from outrider.doctor.diagnoses.base import Diagnosis, finding
from outrider.doctor.finding import Certainty, Evidence, Finding, Lacking, percent

_NAME = "draft_starved"
_FULL = 0.97
_SHARE = 0.02  # preemptions a request
_FEWEST = 3


def _check(case: Case) -> Iterable[Finding]:
    figures = case.metrics
    usage, preemptions = figures.cache_usage, figures.num_preemptions
    if not usage and preemptions is None:
        raise Lacking(f"use of the cache, or preemptions ({figures.engine} does not say)")
    source = figures.origin("cache_usage")
    evidence = [
        Evidence(f"blocks in use, {pool}", percent(share), f"below {percent(_FULL)}", source)
        for pool, share in usage.items()
    ]
    starved = [pool for pool, share in usage.items() if pool != "target" and share >= _FULL]
    if preemptions is not None:
        done = figures.num_requests or 0.0
        many = preemptions >= max(_FEWEST, _SHARE * (done + (figures.num_running or 0.0)))
        ended = f"{done:.0f} requests ended"
        evidence.append(Evidence("preemptions", f"{preemptions:.0f}", ended, figures.origin("num_preemptions")))
        if many:
            fault = "requests lose their blocks and are computed again: target and draft want more memory than there is"
            yield finding(_NAME, fault, Certainty.CERTAIN, evidence, 0.6)
            return
    if starved:
        fault = f"the cache of the drafter ({', '.join(starved)}) is full: its sequences get no drafts"
        yield finding(_NAME, fault, Certainty.CERTAIN, evidence, 0.6)


DIAGNOSIS = Diagnosis(
    _NAME,
    "the draft is starved of memory",
    "preemptions for each request, and the blocks in use of every pool",
    "give the caches more memory, run fewer requests at a time (max_num_seqs), shorten contexts, or take a draft that "
    "needs no cache (a head, or n-grams)",
    _check,
    ("prefix_hits_lost", "load_too_high"),
)
