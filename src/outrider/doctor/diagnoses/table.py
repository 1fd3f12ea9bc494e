"""The table of diagnoses."""

from __future__ import annotations

from outrider.doctor.diagnoses import (
    context,
    counting,
    drift,
    layers,
    length,
    load,
    low,
    mapping,
    memory,
    numbers,
    off,
    other_target,
    prefix,
    speed,
    stale,
    temperature,
    template,
    vocabulary,
    weights,
)
from outrider.doctor.diagnoses.base import Diagnosis

DIAGNOSES: dict[str, Diagnosis] = {
    row.name: row
    for row in (
        vocabulary.MISMATCH,
        vocabulary.OTHER_IDS,
        other_target.DIAGNOSIS,
        mapping.DIAGNOSIS,
        layers.DIAGNOSIS,
        weights.DIAGNOSIS,
        template.DIAGNOSIS,
        context.DIAGNOSIS,
        numbers.DIAGNOSIS,
        off.DIAGNOSIS,
        stale.DIAGNOSIS,
        counting.DIAGNOSIS,
        length.DIAGNOSIS,
        speed.DIAGNOSIS,
        load.DIAGNOSIS,
        memory.DIAGNOSIS,
        prefix.DIAGNOSIS,
        drift.DIAGNOSIS,
        temperature.DIAGNOSIS,
        low.DIAGNOSIS,
    )
}
