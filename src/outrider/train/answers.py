"""What the target answered to the training prompts: a JSON line a prompt, appended as they come.

A file holds the answers in the order of its prompts, so that the number of whole lines says where to go on after a
stop at any moment; a line that was cut short is cut off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.train.facts import agree


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: ``token_ids`` are prompt and answer as the target saw them; the first ``num_prompt_tokens`` are the
    prompt's. ``temperature``: how it was drawn."""

    token_ids: Sequence[int]
    num_prompt_tokens: int
    temperature: float

    @property
    def prompt(self) -> Sequence[int]:
        """The prompt's tokens."""
        return self.token_ids[: self.num_prompt_tokens]

    @property
    def num_answer_tokens(self) -> int:
        """Tokens that the target wrote, its end token included where it ended by itself."""
        return len(self.token_ids) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class Answered:
    """One prompt's answers, a sample for each turn of its conversation."""

    prompt_id: str
    task: str
    samples: Sequence[Sample]

    def line(self) -> str:
        """As a line of the file."""
        return json.dumps(asdict(self), separators=(",", ":")) + "\n"


class AnswerFile:
    """The answers of one run of `regenerate`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        """Prompts that are answered."""
        return sum(1 for _ in self._lines())

    def __iter__(self) -> Iterator[Answered]:
        """The answers in order. Raises ConfigError for a line that is none."""
        for number, line in enumerate(self._lines(), start=1):
            try:
                row = json.loads(line)
                samples = [Sample(**sample) for sample in row.pop("samples")]
                yield Answered(samples=samples, **row)
            except (ValueError, TypeError, KeyError) as error:
                raise ConfigError(f"{self.path}, line {number}: holds no answer ({error}); delete the file") from None

    def describe(self, **facts: Any) -> None:
        """Say what the answers are of. Raises ConfigError when the file holds those of something else."""
        agree(self.path.with_suffix(".json"), "answers", facts)

    def repair(self) -> int:
        """Cut off a line that was cut short, and say how many prompts are answered."""
        if not self.path.exists():
            return 0
        whole = 0
        count = 0
        with self.path.open("r+b") as file:
            for line in file:
                if line.endswith(b"\n"):
                    whole += len(line)
                    count += 1
            file.truncate(whole)
        return count

    def append(self, answers: Sequence[Answered]) -> None:
        """Add ``answers`` and see that they are on the disk."""
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(answered.line() for answered in answers)
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> Iterator[str]:
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8") as file:
            yield from (line for line in file if line.endswith("\n"))
