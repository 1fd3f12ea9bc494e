"""The fit of a machine to the steps that a server logged."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "serving"))

import fit

from outrider.simulate.costs import MeasuredCosts, StepShape, parse
from outrider.target.costs import CostCurve

CURVE = CostCurve((1, 2, 4, 8, 16, 32), (0.01, 0.011, 0.013, 0.017, 0.025, 0.041), context=256, per_read=1e-6)


def log(clients: int, drafts: bool) -> list[list[float]]:
    """Steps of a machine with known constants: pace 1.2, 1 ms a prompt row after 8 ms, 0.3 ms a step, 0.1 ms a
    sequence, 0.05 ms a token, 2 ms for an ended answer in the step after it; drafting 1 ms a level and 0.2 a row."""
    draw, lines, now, ended = random.Random(clients), [], 0.0, 0
    for number in range(200):
        chunk = 64 if number % 20 == 0 else 0
        sequences = 0 if number == 0 else clients
        levels = draw.randint(1, 4) if drafts and sequences else 0
        rows = sequences * (1 + levels)
        context = 200 * sequences
        verify = 0.008 if not sequences else 1.2 * CURVE.behind(200, sequences)(rows)
        verify += 0.001 * chunk
        draft = 0.001 * levels + 0.0002 * levels * sequences
        tokens = sequences + draw.randint(0, levels * sequences)
        gap = 0.0003 + 0.0001 * sequences + 0.00005 * tokens + 0.002 * ended
        now += verify + draft + gap
        ended = int(draw.random() < 0.1)
        asked = sequences if levels else 0
        first = [levels, levels * sequences, 64 if chunk else 0, ended]
        lines.append([now, draft, verify, 0.0, 0.0, sequences, rows, chunk, context, tokens, asked, *first])
    return lines


def test_known_constants_are_found_again() -> None:
    runs = {
        "plain": [fit.columns(log(clients, False)) for clients in (2, 12)],
        "eagle3": [fit.columns(log(clients, True)) for clients in (2, 12)],
    }
    found = fit.fit(runs, fit.columns(log(1, False)), CURVE, {})
    assert found["pace"] == pytest.approx([1.2] * len(found["pace"]), rel=0.01)
    assert found["chunk"] == pytest.approx({"step": 0.008, "row": 0.001}, rel=0.1)
    wanted = {"step": 0.0003, "sequence": 0.0001, "token": 0.00005, "request": 0.002}
    assert {name: found["overhead"][name] for name in wanted} == pytest.approx(wanted, rel=0.1)
    machine = MeasuredCosts(parse(found))
    assert machine.level("eagle3", 10) == pytest.approx(0.003, rel=0.05)
    assert machine.level("suffix", 10) == 0.0
    assert machine.forward(StepShape(12, 64, 12, 200.0)) == pytest.approx(
        1.2 * CURVE.behind(200, 12)(12) + 0.064, rel=0.03
    )


def test_no_constant_is_negative() -> None:
    import numpy as np

    inputs = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert fit.positive(inputs, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])
