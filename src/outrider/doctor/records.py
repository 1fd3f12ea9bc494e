"""Records of requests: our request log, answers with vLLM's `metrics.speculative_decoding`, SGLang's `meta_info`.

A line of JSON each. Keys of one kind only are read; a line without any acceptance is counted and left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.doctor.figures import Figures, ratio
from outrider.errors import ConfigError, why_unread

_OWN = {"num_drafts": "drafts", "num_draft_tokens": "draft_tokens", "num_accepted_tokens": "accepted_tokens"}
_VLLM = {
    "num_drafts": "num_spec_steps",
    "num_draft_tokens": "num_draft_tokens",
    "num_accepted_tokens": "num_accepted_draft_tokens",
}
_SGLANG = {
    "num_drafts": "spec_verify_ct",
    "num_draft_tokens": "spec_num_proposed_drafts",
    "num_accepted_tokens": "spec_num_correct_drafts",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One request. ``outcomes``: (verified, accepted) tokens -> how many drafts had them, where the record says."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    temperature: float | None = None
    method: str | None = None
    outcomes: tuple[tuple[tuple[int, int], int], ...] = ()

    @property
    def rate(self) -> float | None:
        """Its own acceptance rate."""
        return ratio(self.num_accepted_tokens, self.num_draft_tokens)


@dataclass(frozen=True, slots=True)
class Records:
    """In the order of their file. ``left_out``: lines that say nothing of drafts."""

    source: str
    rows: Sequence[Record]
    left_out: int

    @property
    def drafted(self) -> list[Record]:
        """Those that drafted."""
        return [row for row in self.rows if row.num_draft_tokens]

    def figures(self) -> Figures:
        """Their sums."""
        pairs = [pair for row in self.rows for pair in row.outcomes]
        longest = max((length for (length, _), _ in pairs), default=0)
        tested = [sum(n for (length, took), n in pairs if length > at and took >= at) for at in range(longest)]
        accepted = [sum(n for (_, took), n in pairs if took > at) for at in range(longest)]
        methods = {row.method for row in self.drafted}
        tokens = [row.completion_tokens for row in self.rows if row.completion_tokens is not None]
        return Figures(
            engine="records",
            source=self.source,
            method=methods.pop() if len(methods) == 1 else None,
            num_drafts=sum(row.num_drafts for row in self.rows),
            num_draft_tokens=sum(row.num_draft_tokens for row in self.rows),
            num_accepted_tokens=sum(row.num_accepted_tokens for row in self.rows),
            num_tokens=sum(tokens) if tokens else None,
            num_requests=len(self.rows),
            accepted_per_position=tuple(map(float, accepted)),
            tested_per_position=tuple(map(float, tested)),
        )


def read(path: Path) -> Records:
    """Raises ConfigError for a file that cannot be read, is no JSONL, or says nothing of drafts."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--records {path}: cannot be read ({why_unread(error)})") from None
    values = [_value(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    rows = [row for value in values if isinstance(value, dict) and (row := _record(value)) is not None]
    if not rows:
        raise ConfigError(
            f"--records {path}: none of {len(values)} lines says what was drafted; give a file of `outrider serve "
            "--request-log`, or answers to requests that asked for detailed metrics"
        )
    return Records(str(path), rows, len(values) - len(rows))


def _value(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        raise ConfigError(f"--records {path}, line {number}: no JSON; give a file of JSON lines") from None


def _record(value: Mapping[str, Any]) -> Record | None:
    spec = _within(value, "metrics", "speculative_decoding")
    for found, names in ((value, _OWN), (spec, _VLLM), (value, _VLLM), (_within(value, "meta_info"), _SGLANG)):
        if all(isinstance(found.get(name), int) for name in names.values()):
            return _made(value, found, {field: int(found[name]) for field, name in names.items()})
    return None


def _made(value: Mapping[str, Any], spec: Mapping[str, Any], counts: Mapping[str, int]) -> Record:
    usage = _within(value, "usage") or _within(value, "meta_info") or value
    cached = usage.get("cached_tokens", _within(usage, "prompt_tokens_details").get("cached_tokens"))
    return Record(
        **counts,
        prompt_tokens=usage.get("prompt_tokens"),
        cached_tokens=cached,
        completion_tokens=usage.get("completion_tokens"),
        temperature=value.get("temperature"),
        method=value.get("method"),
        outcomes=tuple(_outcomes(spec)),
    )


def _outcomes(spec: Mapping[str, Any]) -> list[tuple[tuple[int, int], int]]:
    accepted, drafted = spec.get("per_step_accepted"), spec.get("per_step_drafted")
    if accepted and drafted:
        return [((int(length), int(took)), 1) for length, took in zip(drafted, accepted, strict=True)]
    table = spec.get("acceptance_histogram_by_draft_length") or {}
    return [((int(length), int(took)), int(n)) for length, row in table.items() for took, n in row.items()]


def _within(value: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        inner = value.get(key)
        if not isinstance(inner, dict):
            return {}
        value = inner
    return value
