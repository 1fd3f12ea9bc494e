"""Why, in plain words: what decided, and what prompt length, prefix reuse, load, temperature and memory have to do
with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from outrider.advise.answer import LEAST, LOADS, Limits, Ranked, Recommendation, shared_prefixes
from outrider.advise.costs import Costs
from outrider.advise.memory import Memory
from outrider.advise.predict import Prediction, Predictor
from outrider.advise.screen import Screen
from outrider.advise.walks import pooled

FEWEST = 8  # answers, below which resampling them tells no spread
_ENOUGH = 0.05  # half width of the interval of a speed-up, relative


@dataclass(frozen=True, slots=True)
class Case:
    """All that the words are about."""

    ranked: Sequence[Ranked]
    recommendation: Recommendation
    predictor: Predictor
    screen: Screen
    costs: Costs
    memory: Memory
    limits: Limits

    @property
    def batch(self) -> int:
        """The lowest load that was asked about."""
        return min(self.limits.concurrency)

    @property
    def first(self) -> Ranked:
        """The recommended candidate, or the best one where none is."""
        label = self.recommendation.label
        return next((each for each in self.ranked if each.candidate.label == label), self.ranked[0])

    @property
    def best(self) -> Prediction:
        """Its best K at the lowest load."""
        return self.first.best[self.batch]


def reasons(case: Case) -> list[str]:
    """Sentences, the most important ones first."""
    return [
        *_choice(case),
        *_enough(case),
        *_length(case),
        *_prefixes(case),
        *_load(case),
        *_temperature(case),
        *_memory(case),
    ]


def needed_prompts(best: Prediction, count: int) -> int:
    """Texts at which the interval of the speed-up is within 5 % on both sides, as its width now tells."""
    half = (best.high - best.low) / 2 / best.speedup
    return max(2, math.ceil(count * (half / _ENOUGH) ** 2))


def _choice(case: Case) -> Iterator[str]:
    best, first = case.best, case.first
    name = f"{best.label} with {best.num_speculative_tokens} draft tokens"
    if case.recommendation.method is None:
        yield (
            f"Serve without speculation: the best candidate, {name}, is expected at {first.speedup(case.batch):.2f} "
            f"times plain decoding, and under {LEAST:g} it is not worth a drafter."
        )
        return
    low, high = first.interval(case.batch)
    yield (
        f"{name}: {first.speedup(case.batch):.2f} times plain decoding at {case.batch} at a time (95 %: {low:.2f} "
        f"to {high:.2f} over prompts), {best.tokens_per_step:.2f} tokens a step of {best.step_ms:.1f} ms."
    )
    second = next((each for each in case.ranked if each is not first and not each.out), None)
    if second is not None:
        other = second.best[case.batch]
        close = second.interval(case.batch)[1] > low
        yield (
            f"Next is {other.label} with {other.num_speculative_tokens}: {second.speedup(case.batch):.2f}"
            + ("; the intervals overlap, so that other prompts may turn the order." if close else ".")
        )


def _enough(case: Case) -> Iterator[str]:
    count, needed = len(case.screen.texts), needed_prompts(case.best, len(case.screen.texts))
    if count < FEWEST:
        answers = "1 answer is" if count == 1 else f"{count} answers are"
        yield f"{answers} too few to judge by, whatever the interval: give 20 to 50 prompts of each kind."
    elif needed <= count:
        yield f"{count} answers are enough: the speed-up is known within 5 % (about {needed} would do)."
    else:
        yield f"{count} answers leave the speed-up uncertain by more than 5 %: about {needed} would be enough."
    if case.screen.num_left_out:
        yield f"{case.screen.num_left_out} prompts were left out when the time for the screen was up."


def _length(case: Case) -> Iterator[str]:
    texts = case.screen.texts
    prompt = sum(len(text.prompt_ids) for text in texts) / len(texts)
    answer = sum(len(text.answer_ids) for text in texts) / len(texts)
    plain = case.predictor.plain_tpot_ms(1) / 1e3 * answer
    prefill = case.costs.prefill_token * prompt
    share = prefill / (prefill + plain)
    speedup = case.first.speedup(min(case.first.best))
    whole = (prefill + plain) / (prefill + plain / speedup)
    yield (
        f"Prompts have {prompt:.0f} tokens and answers {answer:.0f}: {share:.0%} of a request's time is its prompt, "
        f"which no drafter shortens, so that {speedup:.2f} behind the first token is {whole:.2f} for the whole request."
    )


def _prefixes(case: Case) -> Iterator[str]:
    shared = shared_prefixes([text.prompt_ids for text in case.screen.texts])
    if shared >= 0.05:
        yield (
            f"{shared:.0%} of the prompts' tokens repeat the beginning of an earlier prompt: the prefix cache saves "
            "their time; leave it on, drafters keep what they need of a cached prefix."
        )
    else:
        yield f"Prompts share next to no beginnings ({shared:.0%} of their tokens): the prefix cache changes little."


def _load(case: Case) -> Iterator[str]:
    for first, last, k in case.recommendation.load_schedule:
        span = f"{first}" if first == last else f"{first} to {last}"
        tokens = f"{k} draft {'token' if k == 1 else 'tokens'}" if k else "none, plain decoding is as fast"
        yield f"Load, {span} at a time: {tokens}."
    if case.limits.tpot_ms is not None:
        yield _latency(case, case.limits.tpot_ms)


def _latency(case: Case, limit: float) -> str:
    loads = [load for load in LOADS if load <= max(case.limits.concurrency)]
    k = case.best.num_speculative_tokens
    mine = [load for load in loads if case.predictor.predict(case.first.candidate, k, load).tpot_ms <= limit]
    plain = [load for load in loads if case.predictor.plain_tpot_ms(load) <= limit]
    return (
        f"{limit:g} ms a token hold up to {max(mine, default=0)} at a time with {case.first.candidate.label}, and up "
        f"to {max(plain, default=0)} without."
    )


def _temperature(case: Case) -> Iterator[str]:
    temperature = case.screen.plan.temperature
    total = pooled(case.predictor.tallies(case.first.candidate, case.best.num_speculative_tokens))
    rate = total.conditional[0]
    if rate is not None:
        yield (
            f"At temperature {temperature:g} the first draft token is accepted {rate:.0%} of the time"
            + (", with noise that draft and target share." if temperature > 0 else ".")
        )


def _memory(case: Case) -> Iterator[str]:
    label, most = case.first.candidate.label, max(case.limits.concurrency)
    part = case.memory.drafts[label]
    needed = case.memory.needed(label, most)
    yield (
        f"Memory: {part.weights / 1e6:.0f} MB of draft weights and {part.token:,} bytes a cached token, beside the "
        f"target's {case.memory.target.weights / 1e6:.0f} MB and {case.memory.target.token:,} bytes; "
        f"{needed / 1e9:.2f} GB in all for {most} sequences."
    )
    if case.limits.memory is not None:
        with_draft = case.memory.most(label, case.limits.memory)
        without = case.memory.most("", case.limits.memory)
        yield f"{case.limits.memory / 1e9:.2f} GB hold {with_draft} sequences with it and {without} without."
