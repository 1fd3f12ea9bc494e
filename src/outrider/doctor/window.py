"""Two scrapes as the figures of the time between them.

A counter only grows while its process lives. One that fell was reset: what it says then was counted since the restart,
and rates over the window would be nonsense, so that the sums since the restart take their place.
"""

from __future__ import annotations

from dataclasses import replace

from outrider.doctor.figures import Figures
from outrider.doctor.scrape import Key, Scrape, figures
from outrider.errors import ConfigError


def between(first: Scrape, second: Scrape, seconds: float | None) -> list[Figures]:
    """Figures of the window, each with those ``before`` it. ``seconds``: its length, where it is known.

    Raises ConfigError for scrapes of two engines.
    """
    if (first.engine.name, first.prefix) != (second.engine.name, second.prefix):
        raise ConfigError(
            f"{first.source} is of {first.engine.name} and {second.source} of {second.engine.name}: give two scrapes "
            "of one server, the earlier one first"
        )
    counters = _counters(second)
    fallen = {key for key in counters if second.values[key] < first.values.get(key, 0.0)}
    restarted = None not in (first.started, second.started) and first.started != second.started
    moved = any(second.values[key] != first.values.get(key, 0.0) for key in counters)
    if fallen or restarted:
        resets = tuple(sorted({second.prefix + name for name, _ in fallen})) or ("process_start_time_seconds",)
        return [replace(each, resets=resets, moved=moved) for each in figures(second)]
    change = {
        key: value - first.values.get(key, 0.0) if key in counters else value for key, value in second.values.items()
    }
    whole, *methods = figures(first)
    earlier = {each.method: each for each in methods}
    return [
        replace(each, seconds=seconds, before=earlier.get(each.method) if number else whole, moved=moved)
        for number, each in enumerate(figures(replace(second, values=change)))
    ]


def _counters(scrape: Scrape) -> set[Key]:
    engine = scrape.engine
    names = {*engine.counters.values(), engine.accepted, engine.tested}
    return {key for key in scrape.values if key[0] in names}
