"""Speculative against plain decoding, token by token; a first divergence is a tie or a bug.

On the exact path nothing may differ: every divergence, and every logprob with other bits, is a bug. On the other paths
the kernels give a row slightly different sums for different row counts. Let e be the largest such difference of a
token's logprob, measured between two *plain* runs (one prompt at a time, and ``NOISE_BATCH`` at a time) on the two best
tokens of every position they share. If scores s and s' differ by at most e per token, s prefers a and s' prefers b,
then s(a) - s(b) <= 2 e: a gap of at most 2 e / T (T = 1 for greedy) is a *tie*, a larger one a *bug*. The gap is taken
from plain decoding alone: both tokens are scored after the common prefix, and at T > 0 the shared noise of each is
added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from outrider.bench.data import Prompt
from outrider.bench.runner import PLAIN, Progress, Variant, encode
from outrider.config import SamplingParams
from outrider.core.noise import gumbel_scalar, noise_key
from outrider.core.verifiers.registry import VERIFIERS
from outrider.errors import ConfigError
from outrider.tables import plain_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from outrider.llm import LLM
    from outrider.outputs import CompletionOutput, RequestOutput

NOISE_BATCH = 8
NUM_LOGPROBS = 5  # top tokens that are compared at every position
WRONG_EVERY = 8
MAX_SHOWN = 5  # divergences in the printed report; the summary holds all


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compare. ``verifiers``: the rule of each method."""

    variants: Sequence[Variant]
    verifiers: Mapping[str, str]
    temperatures: Sequence[float] = (0.0, 1.0)
    concurrencies: Sequence[int] = (1, 8)
    max_tokens: int = 64
    seed: int = 0
    raw: bool = False

    def arguments(self) -> dict[str, Any]:
        """The plan as plain values, for the manifest."""
        values = asdict(self)
        return {**values, "variants": [variant.label for variant in self.variants], "verifiers": dict(self.verifiers)}

    def skip_reason(self, variant: Variant, temperature: float) -> str | None:
        """Why this pair has no equality to check, or None. Raises ConfigError for a lossy rule."""
        rule = self.verifiers.get(variant.method or "", "sample")
        if not VERIFIERS[rule].lossless:
            raise ConfigError(f"verifier {rule!r} is lossy: check has nothing to prove for it; choose a lossless one")
        if temperature > 0 and rule != "sample":
            return f"{rule} equals plain decoding in law, not token by token"
        return None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token that differs. ``gap`` and ``tolerance`` are None where no tie is possible."""

    kind: Literal["tie", "bug"]
    prompt_id: str
    turn: int
    position: int  # index among the output tokens
    plain_token: int | None
    other_token: int | None
    gap: float | None
    tolerance: float | None
    reason: str


@dataclass(slots=True)
class Comparison:
    """One variant at one temperature and batch size against plain decoding, one prompt at a time."""

    variant: str
    temperature: float
    concurrency: int
    num_answers: int = 0
    num_tokens: int = 0
    num_equal: int = 0
    num_draft_tokens: int = 0  # 0: nothing was drafted, so nothing was proved
    num_accepted_draft_tokens: int = 0
    skipped: str | None = None
    divergences: list[Divergence] = field(default_factory=list)

    def count(self, kind: Literal["tie", "bug"]) -> int:
        """Divergences of one kind."""
        return sum(item.kind == kind for item in self.divergences)


@dataclass(slots=True)
class Outcome:
    """All comparisons, whether the path is exact, and the noise that was measured where it is not."""

    exact: bool
    noise: float | None = None
    comparisons: list[Comparison] = field(default_factory=list)

    @property
    def num_bugs(self) -> int:
        """Divergences that no rounding explains."""
        return sum(item.count("bug") for item in self.comparisons)

    def summary(self) -> dict[str, Any]:
        """Plain values for JSON."""
        rows = [{**asdict(c), "num_ties": c.count("tie"), "num_bugs": c.count("bug")} for c in self.comparisons]
        return {"exact": self.exact, "noise": self.noise, "num_bugs": self.num_bugs, "comparisons": rows}


@dataclass(frozen=True, slots=True)
class _Job:
    """One prompt to answer, with the plain answer to compare with."""

    prompt_id: str
    turn: int
    seed: int
    token_ids: list[int]
    plain: CompletionOutput


def run(llm: LLM, prompts: Sequence[Prompt], plan: Plan, progress: Progress | None = None) -> Outcome:
    """Compare every variant with plain decoding at every temperature and batch size of ``plan``."""
    for variant in plan.variants:
        plan.skip_reason(variant, 0.0)  # a lossy rule is refused before anything runs
    outcome = Outcome(exact=bool(llm.describe()["exact"]))
    for temperature in plan.temperatures:
        jobs = _references(llm, prompts, plan, temperature, progress)
        if not outcome.exact:
            measured = _noise(jobs, _answers(llm, jobs, plan, PLAIN, temperature, NOISE_BATCH))
            outcome.noise = max(measured, outcome.noise or 0.0)
        for concurrency in plan.concurrencies:
            for variant in (PLAIN, *plan.variants):
                if variant is PLAIN and concurrency == 1:
                    continue  # the reference itself
                comparison = Comparison(variant.label, temperature, concurrency)
                comparison.skipped = plan.skip_reason(variant, temperature)
                outcome.comparisons.append(comparison)
                if comparison.skipped is None:
                    answers = _answers(llm, jobs, plan, variant, temperature, concurrency)
                    _compare(llm, jobs, answers, comparison, outcome)
                if progress is not None:
                    progress(len(jobs), len(jobs), f"{variant.label}, T = {temperature:g}, batch {concurrency}")
    return outcome


def _sampling(
    plan: Plan, variant: Variant, temperature: float, seed: int, prediction: list[int] | None = None
) -> SamplingParams:
    return SamplingParams(
        temperature=temperature,
        max_tokens=plan.max_tokens,
        seed=seed,
        logprobs=NUM_LOGPROBS,
        prediction=prediction,
        speculation=variant.speculation,
    )


def _references(
    llm: LLM, prompts: Sequence[Prompt], plan: Plan, temperature: float, progress: Progress | None
) -> list[_Job]:
    """Every turn of every prompt, answered by plain decoding one at a time; later turns continue its own answer."""
    jobs = []
    for number, prompt in enumerate(prompts):
        history: list[dict[str, str]] = []
        for turn, text in enumerate(prompt.turns):
            history.append({"role": "user", "content": text})
            tokens, seed = encode(llm, history, plan.raw), plan.seed + number
            sampling = _sampling(plan, PLAIN, temperature, seed)
            (output,) = llm.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)
            history.append({"role": "assistant", "content": output.outputs[0].text})
            jobs.append(_Job(prompt.prompt_id, turn, seed, tokens, output.outputs[0]))
        if progress is not None:
            progress(number + 1, len(prompts), f"plain, T = {temperature:g}")
    return jobs


def _answers(
    llm: LLM, jobs: Sequence[_Job], plan: Plan, variant: Variant, temperature: float, size: int
) -> list[RequestOutput]:
    out: list[RequestOutput] = []
    for group in _chunks(jobs, size):
        sampling = [_sampling(plan, variant, temperature, job.seed, _nearly(job.plain.token_ids)) for job in group]
        out += llm.generate([{"prompt_token_ids": job.token_ids} for job in group], sampling, use_tqdm=False)
    return out


def _nearly(token_ids: Sequence[int]) -> list[int]:
    """An expected output that is wrong at every ``WRONG_EVERY``-th token: what a drafter that follows one is given."""
    out = list(token_ids)
    for index in range(WRONG_EVERY - 1, len(out), WRONG_EVERY):
        out[index] = out[index - 1]
    return out


def _chunks(jobs: Sequence[_Job], size: int) -> Iterator[Sequence[_Job]]:
    for start in range(0, len(jobs), size):
        yield jobs[start : start + size]


def _logprobs(output: CompletionOutput, index: int, best: int | None = None) -> dict[int, float]:
    """Logprobs of the chosen and the top tokens at one position; ``best``: of that many best ones alone."""
    assert output.logprobs is not None
    items = output.logprobs[index].items()
    return {token: float(item.logprob) for token, item in items if best is None or item.rank <= best}


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the common prefix."""
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _noise(jobs: Sequence[_Job], answers: Sequence[RequestOutput]) -> float:
    """Largest difference of a logprob between two plain runs, over the two best tokens of the positions they share."""
    largest = 0.0
    for job, output in zip(jobs, answers, strict=True):
        answer = output.outputs[0]
        for index in range(_common(job.plain.token_ids, answer.token_ids)):
            one, two = (_logprobs(item, index, best=2) for item in (job.plain, answer))
            largest = max([largest, *(abs(one[token] - two[token]) for token in one.keys() & two.keys())])
    return largest


def _compare(
    llm: LLM, jobs: Sequence[_Job], answers: Sequence[RequestOutput], comparison: Comparison, outcome: Outcome
) -> None:
    for job, output in zip(jobs, answers, strict=True):
        answer = output.outputs[0]
        comparison.num_answers += 1
        comparison.num_draft_tokens += output.stats.num_draft_tokens
        comparison.num_accepted_draft_tokens += output.stats.num_accepted_draft_tokens
        comparison.num_tokens += len(answer.token_ids)
        divergence = _divergence(llm, job, answer, comparison.temperature, outcome)
        if divergence is None:
            comparison.num_equal += 1
        else:
            comparison.divergences.append(divergence)


def _divergence(
    llm: LLM, job: _Job, answer: CompletionOutput, temperature: float, outcome: Outcome
) -> Divergence | None:
    plain, other = list(job.plain.token_ids), list(answer.token_ids)
    at = _common(plain, other)
    tokens = (plain[at] if at < len(plain) else None, other[at] if at < len(other) else None)

    def bug(reason: str, position: int = at) -> Divergence:
        return Divergence("bug", job.prompt_id, job.turn, position, *tokens, None, None, reason)

    if plain == other:
        if job.plain.finish_reason != answer.finish_reason:
            return bug(f"finish reason {answer.finish_reason!r} instead of {job.plain.finish_reason!r}")
        if job.plain.text != answer.text:
            return bug("same tokens, another text")
        if outcome.exact:
            differs = next((i for i in range(at) if _logprobs(job.plain, i) != _logprobs(answer, i)), None)
            return None if differs is None else bug("a logprob has other bits on the exact path", differs)
        return None
    if outcome.exact:
        return bug("another token on the exact path")
    if tokens[0] is None or tokens[1] is None:
        return bug("one answer ends where the other goes on")
    return _classify(llm, job, at, (tokens[0], tokens[1]), temperature, outcome)


def _classify(
    llm: LLM, job: _Job, at: int, tokens: tuple[int, int], temperature: float, outcome: Outcome
) -> Divergence:
    prefix = [*job.token_ids, *list(job.plain.token_ids)[:at]]
    scores = [_score(llm, prefix, token) for token in tokens]
    # scoring again is plain decoding over other row counts as well: what it shows counts as noise
    outcome.noise = max(outcome.noise or 0.0, abs(scores[0] - _logprobs(job.plain, at)[tokens[0]]))
    gap, tolerance = scores[0] - scores[1], 2 * outcome.noise
    if temperature > 0:
        key = noise_key(job.seed, 0)
        noise = [gumbel_scalar(key, len(prefix), token) for token in tokens]
        gap, tolerance = gap / temperature + noise[0] - noise[1], tolerance / temperature
    gap = abs(gap)
    kind: Literal["tie", "bug"] = "tie" if gap <= tolerance else "bug"
    reason = "within the measured noise" if kind == "tie" else "over the measured noise"
    return Divergence(kind, job.prompt_id, job.turn, at, *tokens, gap, tolerance, reason)


def _score(llm: LLM, prefix: list[int], token: int) -> float:
    """Raw logprob of ``token`` after ``prefix`` in plain decoding."""
    sampling = SamplingParams(
        temperature=0.0, max_tokens=1, logprobs=0, allowed_token_ids=[token], speculation=PLAIN.speculation
    )
    (output,) = llm.generate([{"prompt_token_ids": prefix}], sampling, use_tqdm=False)
    return _logprobs(output.outputs[0], 0)[token]


def report(outcome: Outcome, decode: Callable[[int], str] | None = None) -> list[RenderableType]:
    """The outcome as a table and the lines below it. ``decode`` turns a token id into text for display."""
    table = plain_table()
    for title in ("method", "T", "batch"):
        table.add_column(title)
    for title in ("answers", "tokens", "drafted", "accepted", "equal", "ties", "bugs"):
        table.add_column(title, justify="right")
    for item in outcome.comparisons:
        head = (item.variant, f"{item.temperature:g}", str(item.concurrency))
        if item.skipped is not None:
            table.add_row(*head, "-", "-", "-", "-", "-", "-", "-")
            continue
        bugs = item.count("bug")
        drafts = (item.num_draft_tokens, item.num_accepted_draft_tokens)
        counts = (item.num_answers, item.num_tokens, *drafts, item.num_equal, item.count("tie"))
        table.add_row(*head, *map(str, counts), f"[red]{bugs}[/]" if bugs else "0")
    return [table, *_lines(outcome, decode)]


def _lines(outcome: Outcome, decode: Callable[[int], str] | None) -> Iterator[str]:
    for item in outcome.comparisons:
        if item.skipped is not None:
            yield f"not compared: {item.variant}, T = {item.temperature:g}, batch {item.concurrency}: {item.skipped}"
        elif item.variant != PLAIN.label and not item.num_draft_tokens:
            yield f"nothing was drafted: {item.variant}, T = {item.temperature:g}, batch {item.concurrency}"
    found = [(item, d) for item in outcome.comparisons for d in item.divergences]
    for item, divergence in sorted(found, key=lambda pair: pair[1].kind)[:MAX_SHOWN]:
        tokens = [_token(token, decode) for token in (divergence.plain_token, divergence.other_token)]
        gap = "" if divergence.gap is None else f", gap {divergence.gap:.2g} (tie up to {divergence.tolerance:.2g})"
        yield (
            f"{divergence.kind}: {item.variant}, T = {item.temperature:g}, batch {item.concurrency}, "
            f"{divergence.prompt_id} turn {divergence.turn + 1}, token {divergence.position}: "
            f"{tokens[0]} became {tokens[1]}{gap}: {divergence.reason}"
        )
    if len(found) > MAX_SHOWN:
        yield f"and {len(found) - MAX_SHOWN} more (--json shows all)"
    path = "exact path: nothing may differ" if outcome.exact else f"path is not exact: noise {outcome.noise or 0:.2g}"
    yield f"{path}; {'no bug' if not outcome.num_bugs else f'{outcome.num_bugs} bugs'}"


def _token(token: int | None, decode: Callable[[int], str] | None) -> str:
    if token is None:
        return "the end"
    return str(token) if decode is None else repr(decode(token))
