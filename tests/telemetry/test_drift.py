"""The drift monitor: alarms after a fall, soon, and hardly ever without one."""

from __future__ import annotations

import random

import pytest

from outrider.telemetry.drift import DriftMonitor, cause_of


def steps_to_alarm(monitor: DriftMonitor, chance: float, steps: int, rng: random.Random) -> int | None:
    """Steps of up to four positions each until the alarm; None where there is none."""
    for step in range(steps):
        accepted, tested = 0, 0
        for _ in range(4):
            tested += 1
            if rng.random() >= chance:
                break
            accepted += 1
        if monitor.observe(accepted, tested):
            return step
    return None


@pytest.mark.parametrize("chance", [0.3, 0.5, 0.8])
def test_a_fall_is_noticed_soon_and_nothing_before(chance: float) -> None:
    late, false = [], 0
    for seed in range(60):
        rng, monitor = random.Random(seed), DriftMonitor()
        assert steps_to_alarm(monitor, chance, 400, rng) is None or monitor.reference is not None
        if monitor.level > 1.0:
            false += 1
            continue
        found = steps_to_alarm(monitor, 0.5 * chance, 2000, rng)
        assert found is not None
        late.append(found)
    assert false <= 3
    assert sorted(late)[len(late) // 2] < 200


def test_a_rise_is_no_alarm() -> None:
    rng, monitor = random.Random(1), DriftMonitor()
    steps_to_alarm(monitor, 0.4, 400, rng)
    assert steps_to_alarm(monitor, 0.6, 4000, rng) is None


def test_a_changed_drafter_is_learnt_anew() -> None:
    rng, monitor = random.Random(2), DriftMonitor()
    steps_to_alarm(monitor, 0.6, 400, rng)
    steps_to_alarm(monitor, 0.2, 400, rng)
    assert monitor.level > 1.0
    monitor.reset()
    assert monitor.reference is None
    assert steps_to_alarm(monitor, 0.2, 800, rng) is None


def test_a_fixed_text_tells_what_changed() -> None:
    assert cause_of(0.55, 0.53) == "prompts"
    assert cause_of(0.55, 0.3) == "target"


def test_the_alarm_ends_when_acceptance_is_back() -> None:
    rng, monitor = random.Random(3), DriftMonitor()
    steps_to_alarm(monitor, 0.6, 400, rng)
    for _ in range(5000):
        monitor.observe(0, 1)
    assert monitor.level == 2.0
    for step in range(300):
        if not monitor.observe(*((2, 3) if step % 2 else (3, 3))):
            break
    assert monitor.level < 1.0
