"""The alternating runner: every prompt is answered by plain decoding and by every variant before the next one starts.

Plain decoding and the variants share one engine and one set of weights, and the order rotates from prompt to prompt, so
that drift of the machine falls on all of them alike. Later turns of a conversation continue the plain run's own
answer, for all variants: they all see the same prompt.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from outrider.bench.data import Prompt
from outrider.config import SamplingParams, SpeculationParams

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.outputs import RequestOutput, RequestStats

WARM_UP_TOKENS = 24
_TIMES = (
    "prefill_seconds",
    "draft_seconds",
    "verify_seconds",
    "overhead_seconds",
    "queue_seconds",
    "time_to_first_token",
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to decode. ``method`` None: without speculation. ``num_tokens`` None: the planner decides."""

    label: str
    method: str | None = None
    num_tokens: int | None = None

    @property
    def speculation(self) -> SpeculationParams:
        """The per-request switch that selects this variant."""
        if self.method is None:
            return SpeculationParams(enabled=False)
        return SpeculationParams(method=self.method, num_speculative_tokens=self.num_tokens)


PLAIN = Variant("plain")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. The first variant is the baseline."""

    variants: Sequence[Variant]
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    concurrency: int = 1
    repeats: int = 1
    raw: bool = False

    def arguments(self) -> dict[str, Any]:
        """The plan as plain values, for the manifest."""
        values = asdict(self)
        values["variants"] = [variant.label for variant in self.variants]
        return values

    def sampling(self, variant: Variant, index: int, prompt: Prompt) -> SamplingParams:
        """Settings of ``prompt``, which is number ``index``: same seed for every variant."""
        return SamplingParams(
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            seed=self.seed + index,
            prediction=prompt.prediction,
            speculation=variant.speculation,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One answer: a prompt, a turn, a variant. ``stats`` hold the medians of the repeats' times."""

    prompt_id: str
    task: str
    turn: int
    variant: str
    num_prompt_tokens: int
    token_ids: list[int]
    text: str
    finish_reason: str | None
    equal: bool  # same tokens as the plain run
    stats: RequestStats

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {**values, "stats": {**self.stats.to_dict(), "decode_seconds": self.stats.decode_seconds}}


@dataclass(frozen=True, slots=True)
class Batch:
    """Wall time of one call with the prompts of one group (``seconds``: median of the repeats)."""

    task: str
    variant: str
    num_tokens: int
    seconds: float


@dataclass(slots=True)
class Results:
    """Everything a run measured."""

    rows: list[Row] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Answer:
    output: RequestOutput
    stats: RequestStats


Progress = Callable[[int, int, str], None]  # done, total, what


def run(llm: LLM, prompts: Sequence[Prompt], plan: Plan, progress: Progress | None = None) -> Results:
    """Answer every turn of every prompt with every variant of ``plan``, after a warm-up of each variant."""
    results = Results()
    groups = list(_groups(prompts, plan.concurrency))
    _warm_up(llm, prompts[0], plan)
    done = 0
    for number, group in enumerate(groups):
        histories: list[list[dict[str, str]]] = [list(prompt.before) for _, prompt in group]
        for turn in range(max(len(prompt.turns) for _, prompt in group)):
            live = [slot for slot, (_, prompt) in enumerate(group) if turn < len(prompt.turns)]
            for slot in live:
                histories[slot].append({"role": "user", "content": group[slot][1].turns[turn]})
            tokens = [encode(llm, histories[slot], plan.raw, group[slot][1].rendered) for slot in live]
            answers = _turn(llm, plan, [group[slot] for slot in live], tokens, number + turn, results)
            for slot, plain in zip(live, answers[plan.variants[0].label], strict=True):
                histories[slot].append({"role": "assistant", "content": plain.output.outputs[0].text})
            _record(results, plan, [group[slot][1] for slot in live], turn, answers)
        done += len(group)
        if progress is not None:
            progress(done, len(prompts), group[-1][1].task)
    return results


def encode(llm: LLM, messages: Sequence[dict[str, str]], raw: bool, rendered: bool = False) -> list[int]:
    """Token ids of a conversation: through the model's chat template, or (``raw``, or no template) as bare text;
    ``rendered``: as it is, with all special tokens that it has."""
    tokenizer = llm.get_tokenizer()
    if rendered:
        return list(tokenizer.encode("".join(message["content"] for message in messages), add_special_tokens=False))
    if raw or not tokenizer.has_chat_template:
        return list(tokenizer.encode("\n\n".join(message["content"] for message in messages)))
    return list(tokenizer.encode_chat(messages))


def _groups(prompts: Sequence[Prompt], size: int) -> Iterator[list[tuple[int, Prompt]]]:
    """Up to ``size`` prompts of one task each, with their numbers."""
    tasks: dict[str, list[tuple[int, Prompt]]] = {}
    for number, prompt in enumerate(prompts):
        tasks.setdefault(prompt.task, []).append((number, prompt))
    for rows in tasks.values():
        for start in range(0, len(rows), size):
            yield rows[start : start + size]


def _warm_up(llm: LLM, prompt: Prompt, plan: Plan) -> None:
    messages = [*prompt.before, {"role": "user", "content": prompt.turns[0]}]
    tokens = encode(llm, messages, plan.raw, prompt.rendered)
    for variant in plan.variants:
        sampling = plan.sampling(variant, 0, prompt).model_copy(update={"max_tokens": WARM_UP_TOKENS})
        llm.generate([_prompt(tokens, "warm-up")] * plan.concurrency, sampling, use_tqdm=False)


def _prompt(tokens: list[int], salt: str) -> dict[str, Any]:
    # the salt separates stores that outlive a request: no run may learn an answer from an earlier run of its prompt
    return {"prompt_token_ids": tokens, "cache_salt": salt}


def _turn(
    llm: LLM,
    plan: Plan,
    group: Sequence[tuple[int, Prompt]],
    tokens: Sequence[list[int]],
    rotation: int,
    results: Results,
) -> dict[str, list[_Answer]]:
    """One turn of one group by every variant, in rotated order, ``repeats`` times."""
    runs: dict[str, list[list[RequestOutput]]] = {variant.label: [] for variant in plan.variants}
    seconds: dict[str, list[float]] = {variant.label: [] for variant in plan.variants}
    for repeat in range(plan.repeats):
        for variant in _rotated(plan.variants, rotation + repeat):
            sampling = [plan.sampling(variant, index, prompt) for index, prompt in group]
            inputs = [_prompt(row, f"{variant.label}/{repeat}") for row in tokens]
            began = time.perf_counter()
            runs[variant.label].append(llm.generate(inputs, sampling, use_tqdm=False))
            seconds[variant.label].append(time.perf_counter() - began)
    for label, outputs in runs.items():
        num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs[-1])
        results.batches.append(Batch(group[0][1].task, label, num_tokens, statistics.median(seconds[label])))
    return {label: [_merge(outputs) for outputs in zip(*repeats, strict=True)] for label, repeats in runs.items()}


def _rotated(variants: Sequence[Variant], by: int) -> list[Variant]:
    shift = by % len(variants)
    return [*variants[shift:], *variants[:shift]]


def _merge(outputs: Sequence[RequestOutput]) -> _Answer:
    """Repeats of one request as one: the last one's output and counts, the medians of the times."""
    times = {name: statistics.median(getattr(output.stats, name) for output in outputs) for name in _TIMES}
    return _Answer(outputs[-1], replace(outputs[-1].stats, **times))


def _record(
    results: Results, plan: Plan, group: Sequence[Prompt], turn: int, answers: dict[str, list[_Answer]]
) -> None:
    plain = answers[plan.variants[0].label]
    for variant in plan.variants:
        for prompt, answer, reference in zip(group, answers[variant.label], plain, strict=True):
            first = answer.output.outputs[0]
            results.rows.append(
                Row(
                    prompt_id=prompt.prompt_id,
                    task=prompt.task,
                    turn=turn,
                    variant=variant.label,
                    num_prompt_tokens=len(answer.output.prompt_token_ids),
                    token_ids=list(first.token_ids),
                    text=first.text,
                    finish_reason=first.finish_reason,
                    equal=list(first.token_ids) == list(reference.output.outputs[0].token_ids),
                    stats=answer.stats,
                )
            )
