"""From the steps that a server logged to the constants of a cost model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from logged import FIELDS

from outrider.simulate.costs import FORMAT
from outrider.target.costs import CostCurve

Steps = dict[str, Any]  # a column an array
_ENOUGH = 8  # steps behind a factor


def read(log: Path, since: int = 0) -> list[list[float]]:
    """The lines from number ``since`` on."""
    return [json.loads(line) for line in log.read_text().splitlines()[since:]]


def columns(lines: Sequence[Sequence[float]]) -> Steps:
    """By name; ``gap``: seconds between the end of the step before and the begin of this one."""
    steps: Steps = {name: np.array(values) for name, values in zip(FIELDS, zip(*lines, strict=True), strict=True)}
    begins = steps["end"] - steps["draft"] - steps["verify"] - steps["overhead"] - steps["begin"]
    steps["gap"] = np.concatenate([[0.0], begins[1:] - steps["end"][:-1]])
    steps["after_end"] = np.concatenate([[1.0], steps["ended"][:-1]])
    return steps


def fit(runs: Mapping[str, Sequence[Steps]], alone: Steps, curve: CostCurve, more: Mapping[str, Any]) -> dict[str, Any]:
    """The document of ``outrider simulate --costs``. ``runs``: by method; ``alone``: of one client."""
    every = [steps for group in runs.values() for steps in group]
    pace_rows, pace = _pace(every, curve)
    chunk = _chunks(every, curve, pace_rows, pace)
    overhead = _overhead(every)
    return {
        "format": FORMAT,
        "target": {
            **{"rows": list(curve.rows), "seconds": list(curve.seconds), "context": curve.context},
            **{"per_token": curve.per_token, "per_read": curve.per_read},
        },
        **{"pace_rows": pace_rows, "pace": pace, "chunk": chunk},
        "overhead": overhead | {"front": _front(alone, overhead["request"])},
        "drafts": {method: _drafting(group) for method, group in runs.items() if method != "plain"},
        **more,
    }


def _expected(curve: CostCurve, steps: Steps, at: int) -> float:
    count = int(steps["sequences"][at])
    return curve.behind(steps["context"][at] / count, count)(int(steps["rows"][at]))


def _pace(every: Sequence[Steps], curve: CostCurve) -> tuple[list[int], list[float]]:
    """Factors by doublings of the rows: all seconds of such steps, over those that the curve expects."""
    found: dict[int, list[tuple[float, float]]] = {}
    for steps in every:
        for at in np.flatnonzero((steps["chunk"] == 0) & (steps["sequences"] > 0)):
            place = round(float(np.log2(steps["rows"][at])))
            found.setdefault(place, []).append((float(steps["verify"][at]), _expected(curve, steps, at)))
    places = sorted(place for place, pairs in found.items() if len(pairs) >= _ENOUGH)
    factors = [sum(taken for taken, _ in found[p]) / sum(expected for _, expected in found[p]) for p in places]
    return [2**place for place in places], factors


def _chunks(every: Sequence[Steps], curve: CostCurve, rows: Sequence[int], pace: Sequence[float]) -> dict[str, float]:
    """Seconds of a prompt row, and of a step that has nothing else."""
    inputs, seconds = [], []
    for steps in every:
        for at in np.flatnonzero(steps["chunk"] > 0):
            decode = 0.0
            if steps["sequences"][at]:
                factor = float(np.interp(np.log2(steps["rows"][at]), np.log2(rows), pace))
                decode = _expected(curve, steps, at) * factor
            inputs.append([float(decode == 0.0), float(steps["chunk"][at])])
            seconds.append(float(steps["verify"][at]) - decode)
    step, row = positive(np.array(inputs), np.array(seconds))
    return {"step": step, "row": row}


def _overhead(every: Sequence[Steps]) -> dict[str, float]:
    """What is neither forward nor drafting, with the time between steps, which an ended answer and the request that
    follows it prolong. Only steps in which somebody decodes: before others the engine may have waited for requests."""
    inputs, seconds = [], []
    for steps in every:
        for at in np.flatnonzero(steps["sequences"] > 0):
            inputs.append([1.0, steps["sequences"][at], steps["tokens"][at], steps["after_end"][at]])
            seconds.append(steps["overhead"][at] + steps["gap"][at])
    step, sequence, token, request = positive(np.array(inputs), np.array(seconds))
    return {"step": step, "sequence": sequence, "token": token, "request": request}


def _front(alone: Steps, request: float) -> float:
    """Seconds from the end of a lone client's answer to the step that takes up its next request, less ``request``."""
    gaps = alone["gap"][1:][alone["after_end"][1:] > 0]
    return max(0.0, float(np.median(gaps)) - request) if len(gaps) else 0.0


def _drafting(group: Sequence[Steps]) -> dict[str, Any]:
    """Of asking, of levels (a draft without them is a lookup's), and of meeting a sequence."""
    joined = {name: np.concatenate([steps[name] for steps in group]) for name in (*FIELDS,)}
    asked = joined["asked"] > 0
    met = joined["prompt"].sum()
    out: dict[str, Any] = {"begin_token": float(joined["begin"].sum() / met) if met else 0.0}
    if asked.sum() < _ENOUGH:
        return out
    seconds, sequences = joined["draft"][asked], joined["asked"][asked]
    if seconds.mean() < 0.001:
        step, sequence = positive(np.stack([np.ones_like(sequences), sequences], 1), seconds)
        return out | {"step": step, "sequence": sequence}
    deepest, levels = np.maximum(joined["deepest"][asked], 1), np.maximum(joined["levels"][asked], sequences)
    one, row, sequence = positive(np.stack([deepest, levels, sequences], 1), seconds)
    rows = (1, 64)
    return out | {"rows": rows, "seconds": [one + row * count for count in rows], "sequence": sequence}


def positive(inputs: Any, seconds: Any) -> list[float]:
    """Least squares with no negative coefficient: those that would be are left out, the worst first."""
    used = list(range(inputs.shape[1]))
    while used:
        found = np.linalg.lstsq(inputs[:, used], seconds, rcond=None)[0]
        if (found >= 0).all():
            break
        used.pop(int(np.argmin(found)))
    out = [0.0] * inputs.shape[1]
    for place, value in zip(used, found if used else (), strict=True):
        out[place] = float(value)
    return out
