"""``outrider serve`` that writes a line of JSON a step: ``python logged.py LOG MODEL [OPTIONS]``.

A line is [end, draft, verify, overhead, begin, decode sequences, decode rows, chunk rows, context tokens of those that
decode, committed tokens, sequences asked for a draft, levels of the deepest draft, levels of all drafts, prompt tokens
of sequences that got their first token, sequences that ended], times in seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TextIO

from outrider.cli.main import run
from outrider.engine.step import StepTimes, Work
from outrider.server import runner
from outrider.telemetry.counters import Counters

FIELDS = (
    *("end", "draft", "verify", "overhead", "begin", "sequences", "rows", "chunk", "context", "tokens"),
    *("asked", "deepest", "levels", "prompt", "ended"),
)


def line_of(work: Sequence[Work], times: StepTimes) -> list[float]:
    """One step."""
    decoding = [item for item in work if item.decoding and item.part.num_rows == 1]
    rows = sum(item.num_rows for item in decoding)
    depths = [max(item.proposed.depths(), default=0) for item in work if item.num_asked]
    first = [item.seq.num_prompt_tokens for item in work if item.samples and not item.decoding]
    return [
        *(times.end, times.draft, times.verify, times.overhead, times.begin, len(decoding), rows),
        times.num_rows - rows,
        sum(len(item.seq.token_ids) - item.num_committed for item in decoding),
        sum(item.num_committed for item in work),
        *(len(depths), max(depths, default=0), sum(depths), sum(first), sum(item.seq.finished for item in work)),
    ]


def logging_to(file: TextIO) -> type[Counters]:
    """Counters that also write."""

    class Logging(Counters):
        def step(self, work: Sequence[Work], times: StepTimes) -> None:
            super().step(work, times)
            file.write(json.dumps(line_of(work, times)) + "\n")

    return Logging


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8", buffering=1) as log:
        runner.Counters = logging_to(log)  # type: ignore[misc]
        raise SystemExit(run(["serve", *sys.argv[2:]]))
