"""Prompts that the target writes itself, where there are none: it goes on where its chat template has just opened a
user's turn (Magpie, arXiv 2406.08464). What it writes is the kind of thing it was tuned to answer, and nobody's data.

Some turns are given an opening, so that tasks that users have and a model seldom thinks of are among them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.config import SamplingParams
from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.paths import write_whole
from outrider.target.tokenizer import Tokenizer

Progress = Callable[[int, int], None]  # done, total
GROUP = 192  # turns between two writes
_LONGEST, _SHORTEST = 320, 4  # tokens of a turn
_BARREN = 3  # groups without a prompt, after which there will be none
_MARK = "\ue000"  # where the user's words stand; a private-use character


@dataclass(frozen=True, slots=True)
class Opening:
    """How a turn begins, how often, and whether a text follows that may be cut anywhere."""

    text: str
    weight: int
    document: bool = False


OPENINGS = (
    Opening("", 55),
    Opening("Please summarize this article:\n\n", 8, True),
    Opening("Summarize the text below in a few sentences.\n\n", 5, True),
    Opening("Give me a short summary of this report: ", 3, True),
    Opening("Translate this sentence from German into English: ", 4, True),
    Opening("What does this German text mean in English? ", 2, True),
    Opening("Translate into English: Der ", 1, True),
    Opening("Translate into English: Die ", 1, True),
    Opening("Translate the following into Spanish: ", 1, True),
    Opening("Who ", 2),
    Opening("When did ", 2),
    Opening("Where ", 2),
    Opening("What is ", 2),
    Opening("How many ", 2),
    Opening("Which ", 1),
    Opening("Read the passage and answer the question at its end.\n\nPassage: ", 6, True),
    Opening("Context: ", 3, True),
    Opening("Write a Python function that ", 3),
    Opening("Complete this Python function:\n\ndef ", 5, True),
    Opening("Explain this code:\n\n", 1, True),
    Opening("Solve this problem step by step: ", 2),
    Opening("Rewrite this email to be more formal:\n\n", 1, True),
    Opening("Write a short story about ", 1),
    Opening("Extract ", 1),
)


def ask(llm: LLM, count: int, seed: int, path: Path, progress: Progress) -> None:
    """Write ``count`` prompts to ``path``, JSON lines, from where it was left.

    Raises ConfigError when the model writes none.
    """
    rows = _written(path)
    seen = {row["prompt"] for row in rows}
    group = rows[-1]["group"] + 1 if rows else 0
    barren = 0
    while len(rows) < count:
        progress(len(rows), count)
        found = [text for text in dict.fromkeys(_turns(llm, seed, group)) if text not in seen]
        barren = 0 if found else barren + 1
        if barren == _BARREN:
            raise ConfigError("--self-prompts: the target writes no user turns of its own; give --prompts")
        seen.update(found)
        rows += [{"prompt": text, "group": group} for text in found[: count - len(rows)]]
        write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        group += 1
    progress(count, count)


def _written(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _turns(llm: LLM, seed: int, group: int) -> list[str]:
    """The user's turns of a group that are fit to be answered."""
    rng = random.Random(f"{seed}:{group}")
    openings = rng.choices(OPENINGS, [each.weight for each in OPENINGS], k=GROUP)
    tokenizer = llm.get_tokenizer()
    before = _before_the_user(tokenizer)
    ids = [tokenizer.encode(before + each.text.rstrip(" "), add_special_tokens=False) for each in openings]
    first = seed * 1_000_003 + group * GROUP
    longest = min(_LONGEST, llm.max_model_len // 2)
    params = [_sampling(each, longest, first + place) for place, each in enumerate(openings)]
    outputs = llm.generate(ids, params, False)
    turns = []
    for opening, output in zip(openings, outputs, strict=True):
        turn = output.outputs[0]
        whole = turn.finish_reason == "stop" or opening.document
        if whole and len(turn.token_ids) >= _SHORTEST:
            turns.append((opening.text.rstrip(" ") + turn.text).strip())
    return turns


def _sampling(opening: Opening, longest: int, seed: int) -> SamplingParams:
    """A small model's texts fall apart at temperature one; its questions do not."""
    return SamplingParams(temperature=0.85 if opening.text else 1.0, top_p=0.95, max_tokens=longest, seed=seed)


def _before_the_user(tokenizer: Tokenizer) -> str:
    """What the chat template writes before the first words of a user."""
    before, mark, _ = tokenizer.render_chat([{"role": "user", "content": _MARK}]).partition(_MARK)
    if not (before and mark):
        raise ConfigError("--self-prompts: the chat template opens no user's turn to go on from; give --prompts")
    return before
