"""Metrics in Prometheus' text format, from a server or a file, as figures of an engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from outrider.doctor.figures import Figures
from outrider.doctor.names import ENGINES, Engine
from outrider.errors import ConfigError, why_unread

TIMEOUT = 10.0  # seconds
_PLAIN = "plain"  # our label of sequences without a method
_START = "process_start_time_seconds"
_OF_ALL = ("num_tokens", "num_prompt_tokens")  # counted of sequences without a method too
_SUMMED = ("num_running", "num_waiting")

Key = tuple[str, tuple[tuple[str, str], ...]]  # name behind the prefix, labels


@dataclass(frozen=True, slots=True)
class Scrape:
    """``values``: by name behind the prefix, without `_total`, and labels. ``started``: of the process, in seconds
    since the epoch, where it says."""

    engine: Engine
    prefix: str
    source: str
    values: Mapping[Key, float]
    started: float | None


def is_address(source: str) -> bool:
    """Whether ``source`` is a URL."""
    return source.startswith(("http://", "https://"))


def fetch(source: str) -> str:
    """The text at a URL (`/metrics` where it has no path) or in a file. Raises ConfigError that says what is wrong."""
    if not is_address(source):
        try:
            return Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{source}: cannot be read ({why_unread(error)}); give a URL or a file of metrics"
            ) from None
    address = source if urlsplit(source).path.strip("/") else source.rstrip("/") + "/metrics"
    try:
        return _get(address)
    except HTTPError as error:
        hint = "switch its metrics on (SGLang: --enable-metrics, llama.cpp: --metrics)" if error.code == 404 else ""
        raise ConfigError(f"{address} answers {error.code}: {hint or error.reason}") from None
    except (URLError, OSError, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
        raise ConfigError(
            f"{address} does not answer ({why_unread(cause)}): check that the server runs there"
        ) from None


def stats(source: str) -> dict[str, Any]:
    """What our own server says at `/stats` beside its metrics; empty for a file, or where it does not answer."""
    if not is_address(source):
        return {}
    parts = urlsplit(source)
    try:
        value = json.loads(_get(f"{parts.scheme}://{parts.netloc}/stats"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _get(address: str) -> str:
    with urlopen(Request(address), timeout=TIMEOUT) as answer:
        text: bytes = answer.read()
    return text.decode("utf-8")


def parse(text: str, source: str) -> Scrape:
    """Raises ConfigError for text that is no metrics, or those of no engine that is known."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError:
        raise ConfigError("reading metrics needs prometheus_client: pip install 'outrider[serve]'") from None
    try:
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except (ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{source} is not in Prometheus' text format ({error})") from None
    engine, prefix = _engine([sample.name for sample in samples], source)
    values: dict[Key, float] = {}
    started = None
    for sample in samples:
        if sample.name == _START:
            started = sample.value
        if sample.name.startswith(prefix):
            name = sample.name[len(prefix) :].removesuffix("_total")
            values[name, tuple(sorted(sample.labels.items()))] = sample.value
    return Scrape(engine, prefix, source, values, started)


def _engine(names: list[str], source: str) -> tuple[Engine, str]:
    for engine in ENGINES:
        if engine.mark:
            marked = [name for name in names if name.removesuffix("_total").endswith(engine.mark)]
            if marked:
                return engine, marked[0].removesuffix("_total").removesuffix(engine.mark)
    for engine in ENGINES:
        if any(name.startswith(engine.prefix) for name in names):
            return engine, engine.prefix
    known = ", ".join(engine.name for engine in ENGINES)
    raise ConfigError(f"{source} has {len(names)} samples, and none of an engine that is known ({known})")


def figures(scrape: Scrape) -> list[Figures]:
    """Sums since the start: of all methods together, and of each where several have drafted."""
    methods = sorted({dict(labels)["method"] for _, labels in scrape.values if "method" in dict(labels)} - {_PLAIN})
    each = [_figures(scrape, method) for method in methods]
    drafted = [own for own in each if own.num_drafts] or each
    if len(drafted) == 1:
        return [replace(_figures(scrape, None), method=drafted[0].method)]
    return [_figures(scrape, None), *(own for own in each if own.num_drafts)]


def _figures(scrape: Scrape, method: str | None) -> Figures:
    engine = scrape.engine
    out: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for field, name in engine.counters.items():
        if found := _values(scrape, name, method, plain=field in _OF_ALL and method is None):
            out[field], sources[field] = sum(found), f"{scrape.prefix}{name}_total"
    for field, name in engine.gauges.items():
        if found := _values(scrape, name, method):
            out[field] = sum(found) if field in _SUMMED else max(found) if field == "drift" else sum(found) / len(found)
            sources[field] = scrape.prefix + name
    for field, name in (("accepted_per_position", engine.accepted), ("tested_per_position", engine.tested)):
        if name and (positions := _positions(scrape, name, method)):
            out[field], sources[field] = positions, f"{scrape.prefix}{name}_total"
    if engine.mark:
        plain = [value for (name, labels), value in scrape.values.items() if name == engine.mark and _is_plain(labels)]
        out["num_plain_steps"] = sum(plain)
    for name in engine.usage:
        if usage := _usage(scrape, name):
            out["cache_usage"], sources["cache_usage"] = usage, scrape.prefix + name
    infos = [dict(pairs) for (name, pairs) in scrape.values if name in engine.infos]
    labels = {key: value for pairs in infos for key, value in pairs.items()}
    return Figures(engine.name, scrape.source, method, labels=labels, sources=sources, **out)


def _is_plain(labels: tuple[tuple[str, str], ...]) -> bool:
    return ("method", _PLAIN) in labels


def _values(scrape: Scrape, name: str, method: str | None, plain: bool = False) -> list[float]:
    """The samples called ``name``: of ``method`` or of all, those that no method is named for included."""
    out = []
    for (own, labels), value in scrape.values.items():
        of = dict(labels).get("method")
        if own == name and (of is None or (of == method if method else plain or of != _PLAIN)) and value == value:
            out.append(value)
    return out


def _positions(scrape: Scrape, name: str, method: str | None) -> tuple[float, ...]:
    sums: dict[int, float] = {}
    for (own, pairs), value in scrape.values.items():
        labels = dict(pairs)
        if own == name and labels.get("position", "").isdigit() and (method is None or labels.get("method") == method):
            position = int(labels["position"])
            sums[position] = sums.get(position, 0.0) + value
    return tuple(sums.get(position, 0.0) for position in range(max(sums, default=-1) + 1))


def _usage(scrape: Scrape, name: str) -> dict[str, float]:
    """By pool; of several engines the fullest."""
    out: dict[str, float] = {}
    for (own, labels), value in scrape.values.items():
        if own == name:
            pool = dict(labels).get("pool", "target")
            out[pool] = max(out.get(pool, 0.0), value)
    return out
