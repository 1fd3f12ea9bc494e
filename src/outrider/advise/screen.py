"""The screen: the target answers every prompt once, by plain decoding, and every candidate drafts along.

Nothing is verified. Prompts come in batches, tasks in turn, until all are answered or the time is up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outrider.advise.agreement import Agreement
from outrider.advise.panel import METHOD
from outrider.advise.rig import Rig
from outrider.advise.walks import NEVER, Shadow, Tally, shadow, walk
from outrider.bench.data import Prompt
from outrider.bench.runner import encode
from outrider.config import SamplingParams, SpeculationParams
from outrider.core.draft import EMPTY

if TYPE_CHECKING:
    from outrider.outputs import RequestOutput

BATCH = 16
Progress = Callable[[float, float], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """How prompts are answered, as ``outrider bench`` does it: prompt number i has the seed ``seed`` + i."""

    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    raw: bool = False
    seconds: float = 120.0  # after which no further batch begins


@dataclass(slots=True)
class Text:
    """One answer, and by label the candidates' drafts behind each of its tokens but the last."""

    prompt_id: str
    task: str
    turn: int
    prompt_ids: list[int]
    answer_ids: list[int]
    shadows: dict[str, list[Shadow]]
    agreement: dict[str, Agreement]

    def tally(self, label: str | None, budget: int, max_tokens: int, *, chain: bool) -> Tally:
        """The engine's steps over it with a candidate; ``label`` None: plain decoding."""
        shadows = [Shadow(0, (), (NEVER,))] * (len(self.answer_ids) - 1) if label is None else self.shadows[label]
        return walk(shadows, budget if label else 0, len(self.prompt_ids), max_tokens, chain=chain)


@dataclass(slots=True)
class Screen:
    """All texts, and what was left out when the time was up."""

    plan: Plan
    texts: list[Text] = field(default_factory=list)
    num_prompts: int = 0
    num_left_out: int = 0
    seconds: float = 0.0

    @property
    def tasks(self) -> list[str]:
        """In order of first appearance."""
        return list(dict.fromkeys(text.task for text in self.texts))


def run(rig: Rig, prompts: Sequence[Prompt], plan: Plan, progress: Progress) -> Screen:
    """Answer ``prompts``, every turn of them, and take down what all candidates draft."""
    out, began = Screen(plan), time.monotonic()
    rig.engine.recorder = rig.panel
    try:
        for group in _groups(prompts):
            if out.texts and time.monotonic() - began > plan.seconds:
                break
            _answer(rig, group, plan, out)
            out.num_prompts += len(group)
            progress(out.num_prompts, len(prompts))
    finally:
        rig.engine.recorder = None
    out.num_left_out = len(prompts) - out.num_prompts
    out.seconds = time.monotonic() - began
    return out


def _groups(prompts: Sequence[Prompt]) -> Iterator[list[tuple[int, Prompt]]]:
    """Batches of prompts with their numbers; tasks take turns, so that the first batches have all of them."""
    tasks: dict[str, list[tuple[int, Prompt]]] = {}
    for number, prompt in enumerate(prompts):
        tasks.setdefault(prompt.task, []).append((number, prompt))
    mixed = [rows[at] for at in range(max(map(len, tasks.values()))) for rows in tasks.values() if at < len(rows)]
    for start in range(0, len(mixed), BATCH):
        yield mixed[start : start + BATCH]


def _answer(rig: Rig, group: Sequence[tuple[int, Prompt]], plan: Plan, out: Screen) -> None:
    histories: list[list[dict[str, str]]] = [list(prompt.before) for _, prompt in group]
    for turn in range(max(len(prompt.turns) for _, prompt in group)):
        live = [slot for slot, (_, prompt) in enumerate(group) if turn < len(prompt.turns)]
        for slot in live:
            histories[slot].append({"role": "user", "content": group[slot][1].turns[turn]})
        inputs = [encode(rig.llm, histories[slot], plan.raw, group[slot][1].rendered) for slot in live]
        params = [_sampling(plan, *group[slot]) for slot in live]
        answers = rig.llm.generate(
            [{"prompt_token_ids": row, "cache_salt": METHOD} for row in inputs], params, use_tqdm=False
        )
        for slot, answer in zip(live, answers, strict=True):
            histories[slot].append({"role": "assistant", "content": answer.outputs[0].text})
            if len(answer.outputs[0].token_ids) > 1:
                out.texts.append(_text(rig, group[slot][1], turn, answer))
        rig.panel.notes.clear()


def _sampling(plan: Plan, number: int, prompt: Prompt) -> SamplingParams:
    return SamplingParams(
        temperature=plan.temperature,
        max_tokens=plan.max_tokens,
        seed=plan.seed + number,
        prediction=prompt.prediction,
        speculation=SpeculationParams(method=METHOD, num_speculative_tokens=1),
    )


def _text(rig: Rig, prompt: Prompt, turn: int, answer: RequestOutput) -> Text:
    tokens = list(answer.outputs[0].token_ids)
    notes = rig.panel.notes.get(answer.request_id)
    drafts = [] if notes is None else notes.drafts
    shadows = {
        each.label: [
            shadow(drafts[at].get(each.label, EMPTY) if at < len(drafts) else EMPTY, tokens[at + 1 :])
            for at in range(len(tokens) - 1)
        ]
        for each in rig.candidates
    }
    agreement = {} if notes is None else notes.agreement
    return Text(prompt.prompt_id, prompt.task, turn, list(answer.prompt_token_ids), tokens, shadows, agreement)
