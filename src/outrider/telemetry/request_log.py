"""A log of calls: a line of JSON each, without what was asked and answered unless that is wanted.

Calls that only read (health checks, scrapes, pages that look at the counts every second) are left out.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outrider.closing import Closing
from outrider.errors import ConfigError
from outrider.telemetry.calls import Call

_READING = ("GET", "HEAD", "OPTIONS")


class RequestLog(Closing):
    """Appends to a file; every line is there as soon as its call has ended. ``with_text``: prompts and answers too.
    Raises ConfigError for a file that cannot be written."""

    def __init__(self, path: Path, with_text: bool = False) -> None:
        self._with_text = with_text
        try:
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(f"--request-log {path}: {error.strerror}; name a file that can be written") from None

    def __call__(self, call: Call) -> None:
        """Write one line, or none for a call that only reads."""
        if call.method in _READING:
            return
        self._file.write(json.dumps(line(call, self._with_text), ensure_ascii=False, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def line(call: Call, with_text: bool = False) -> dict[str, Any]:
    """What is written of a call; times are seconds, ``time`` is that of its arrival."""
    out: dict[str, Any] = {
        "time": datetime.fromtimestamp(call.arrived, UTC).isoformat(timespec="milliseconds"),
        "id": call.answer_id,
        "route": call.route,
        "status": call.status,
        "seconds": round(call.seconds, 6),
    }
    if not call.requests:
        return out
    out |= {
        "queue_seconds": _rounded(call.queue_seconds),
        "time_to_first_token": _rounded(call.time_to_first_token),
        "prompt_tokens": call.num_prompt_tokens,
        "cached_tokens": call.num_cached_tokens,
        "completion_tokens": call.num_tokens,
        "finish_reasons": call.finish_reasons,
        "temperature": call.temperature,
        "method": call.speculation,
        "drafts": call.num_drafts,
        "draft_tokens": call.num_draft_tokens,
        "accepted_tokens": call.num_accepted_tokens,
        "acceptance": _rounded(call.acceptance),
    }
    if with_text:
        out["prompts"] = [request.prompt or request.prompt_token_ids for request in call.requests]
        out["answers"] = [seq.text.text for seq in call.samples]
    return out


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
