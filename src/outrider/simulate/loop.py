"""The loop of ``engine.step`` on a computed clock: schedule, draft, verify, commit.

Scheduler, pacing, block pool, prefix index, planner and calibration are the engine's own objects. What is computed
instead of run are the forwards (by the cost model) and what the target says (by the acceptance model).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import cast

from outrider.cache.pool import BlockPool
from outrider.cache.prefix import PrefixIndex
from outrider.cache.storage import KVStorage
from outrider.config import SamplingParams, SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.core.logits import LogitsPipeline
from outrider.core.verifiers.sample import Sample
from outrider.engine.drafting import Drafting, Method
from outrider.engine.pacing import Pacing
from outrider.engine.planner import Planner
from outrider.engine.scheduler import Scheduler, Slice
from outrider.engine.sequence import Sequence
from outrider.engine.text import OutputText
from outrider.errors import ConfigError
from outrider.simulate.acceptance import Acceptance, Opportunity
from outrider.simulate.costs import CostModel, StepShape
from outrider.simulate.drafter import SimulatedDrafter
from outrider.simulate.workload import Ask, Workload

BLOCK_SIZE = 16
_OTHER = 0  # a token that nobody drafted
_VOCAB = 1 << 62
Told = Callable[[int, int], None]  # (requests that have ended, all of them)


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the engine, as in ``EngineOptions``. ``method``: None for plain decoding; ``num_speculative_tokens``: None for
    the planner; ``kv_cache_tokens``: None for what the cost model knows, or all that the sequences need."""

    method: str | None = None
    num_speculative_tokens: int | None = None
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    max_model_len: int = 8192
    kv_cache_tokens: int | None = None
    enable_prefix_caching: bool = True
    target_tpot_ms: float | None = None


@dataclass(slots=True)
class Answer:
    """A request as its client saw it: seconds of arrival, first and last token; what it asked for and got."""

    arrival: float
    prompt: int
    cached: int = 0
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    steps: int = 0  # after prefill
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0


@dataclass(slots=True)
class Record:
    """What happened. Sums over steps unless said otherwise."""

    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0  # at the end
    busy: float = 0.0  # of steps
    forward: float = 0.0
    draft: float = 0.0
    steps: int = 0
    rows: int = 0
    running: float = 0.0  # sequences times seconds
    kv_blocks: float = 0.0  # blocks held times seconds
    most_blocks: int = 0  # held at once
    num_blocks: int = 0
    preemptions: int = 0


class _Storage:
    """The cache's tensors, of which there are none."""

    num_tapped = 1 << 30

    def copy_blocks(self, pairs: Seq[tuple[int, int]]) -> None:
        """Nothing to copy."""


@dataclass(slots=True)
class _Work:
    part: Slice
    samples: bool
    decoding: bool
    draft: Draft = EMPTY
    proposed: Draft = EMPTY
    num_committed: int = 0

    @property
    def num_rows(self) -> int:
        return self.part.num_rows + len(self.draft)


class Simulation:
    """One server under one workload. ``acceptance``: by method; raises ConfigError when the method has none.
    ``planner``: one that has learned from earlier workloads; None for a server that was just started."""

    def __init__(
        self,
        settings: Settings,
        costs: CostModel,
        workload: Workload,
        acceptance: Mapping[str, Acceptance],
        planner: Planner | None = None,
    ) -> None:
        self.settings, self.costs, self.workload = settings, costs, workload
        self.now = 0.0
        self.record = Record()
        self._planner = planner or Planner(costs.curve)
        tokens = settings.kv_cache_tokens or costs.kv_tokens or settings.max_model_len * settings.max_num_seqs
        tokens = min(tokens, settings.max_model_len * settings.max_num_seqs)
        self._pool = BlockPool(max(2, tokens // BLOCK_SIZE), BLOCK_SIZE)
        self.record.num_blocks = self._pool.num_blocks
        target = None if settings.target_tpot_ms is None else settings.target_tpot_ms / 1000.0
        self._pacing = Pacing(self._planner, target)
        self._scheduler = Scheduler(
            self._pool,
            PrefixIndex(self._pool) if settings.enable_prefix_caching else None,
            cast(KVStorage, _Storage()),
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            on_preempt=self._release,
            pacing=self._pacing,
        )
        self._drafter: SimulatedDrafter | None = None
        methods: dict[str, Method] = {}
        if settings.method is not None:
            if settings.method not in acceptance:
                known = ", ".join(acceptance) or "none"
                raise ConfigError(f"method {settings.method}: no acceptance is given for it (there is: {known})")
            self._drafter = SimulatedDrafter(settings.method, acceptance[settings.method], costs)
            config = SpeculativeConfig.model_construct(method=settings.method, num_chains=1)
            methods[settings.method] = Method(config, self._drafter, Sample())
        self._max_len = min(settings.max_model_len, self._pool.num_blocks * BLOCK_SIZE)
        self._drafting = Drafting(methods, self._planner, _VOCAB, self._max_len, strict=True)
        self._queue = deque(workload.asks)
        self._coming: list[tuple[float, int, float, Ask]] = []  # a heap: when the engine sees it, id, when it was sent
        self._front = 0.0  # until then requests are being read
        self._ids = count()
        self._answers: dict[int, Answer] = {}
        self._begin_seconds = 0.0

    def run(self, told: Told | None = None) -> Record:
        """Until every request has its answer."""
        total = len(self.workload.asks)
        clients = self.workload.clients
        for _ in range(total if clients is None else min(clients, total)):
            self._ask_next(0.0)
        while self._coming or self._scheduler.running or self._scheduler.waiting:
            self._arrive()
            before = len(self.record.answers)
            if not self._step() and not self._coming and (self._scheduler.running or self._scheduler.waiting):
                raise ConfigError("kv_cache_tokens is too small for a request of the workload: raise it")
            if told is not None and len(self.record.answers) > before:
                told(len(self.record.answers), total)
        self.record.seconds = self.now
        self.record.preemptions = self._scheduler.num_preemptions
        return self.record

    def _ask_next(self, now: float) -> None:
        """The next request of the list is on its way: texts become tokens one request after the other."""
        if self._queue:
            ask = self._queue.popleft()
            sent = now if ask.arrival is None else ask.arrival
            self._front = max(sent, self._front) + self.costs.front
            heappush(self._coming, (self._front, next(self._ids), sent, ask))

    def _arrive(self) -> None:
        """Requests that are there by now are queued; the clock moves on to the next one where there is nothing else."""
        idle = not self._scheduler.running and not self._scheduler.waiting
        if idle and self._coming:
            self.now = max(self.now, self._coming[0][0])
        while self._coming and self._coming[0][0] <= self.now:
            at, seq_id, sent, ask = heappop(self._coming)
            seq = self._sequence(seq_id, ask)
            self._answers[seq_id] = Answer(sent, len(ask.prompt))
            self._scheduler.add(seq, at)

    def _sequence(self, seq_id: int, ask: Ask) -> Sequence:
        output = min(ask.output, self._max_len - len(ask.prompt))
        if output < 1:
            raise ConfigError(f"a prompt of {len(ask.prompt)} tokens has no room in max_model_len={self._max_len}")
        if self._drafter is not None:
            self._drafter.profiles[seq_id] = ask.profile
        return Sequence(
            seq_id=seq_id,
            request_id=str(seq_id),
            index=0,
            params=SamplingParams(max_tokens=output, ignore_eos=True),
            token_ids=list(ask.prompt),
            num_prompt_tokens=len(ask.prompt),
            pipeline=cast(LogitsPipeline, None),
            noise_key=0,
            end_ids=frozenset(),
            text=OutputText(None, (), ()),
            drafter=self._drafter,
            method=self.settings.method or "",
            fixed_tokens=self.settings.num_speculative_tokens,
        )

    def _step(self) -> bool:
        """One step over the batch; False when nothing could run."""
        work = [
            _Work(part, part.samples, part.samples and bool(part.seq.output_ids)) for part in self._scheduler.schedule()
        ]
        if not work:
            return False
        begin = self.now
        drafting = self._propose(work)
        held = self._pool.num_blocks - self._pool.num_free
        forward = self.costs.forward(_shape(work))
        committed = sum(self._commit(item) for item in work)
        rows = sum(item.num_rows for item in work)
        ended = sum(item.part.seq.finished for item in work)
        whole = drafting + forward + self.costs.overhead(len(work), committed, ended)
        self._account(work, rows, forward, committed, whole)
        self._settle(work, drafting, whole)
        chunks = sum(item.num_rows for item in work if not item.decoding or item.part.num_rows > 1)
        self._pacing.observe(rows - chunks, chunks, forward)
        self.now += whole + self._begin_seconds
        self._begin_seconds = 0.0
        self._count(work, rows, held, drafting, forward, self.now - begin)
        for item in work:
            self._stamp(item)
        return True

    def _propose(self, work: Seq[_Work]) -> float:
        """Ask the drafter of sequences whose root is computed in this step; the seconds it took."""
        items = [item for item in work if item.samples and item.part.seq.begun]
        if self._drafter is not None:
            self._drafter.spent = 0.0
        decoded = [item.part.seq for item in work if item.samples]
        drafts, proposed, _ = self._drafting.propose([item.part.seq for item in items], self._scheduler.room, decoded)
        for item, draft, full in zip(items, drafts, proposed, strict=True):
            item.draft, item.proposed = draft, full
        return 0.0 if self._drafter is None else self._drafter.spent

    def _commit(self, item: _Work) -> int:
        """The tokens of one sequence's step; how many."""
        seq = item.part.seq
        table = seq.table
        assert table is not None
        if not item.samples:
            table.commit(seq.num_computed + item.part.num_rows)
            seq.publish()
            return 0
        emitted, accepted = self._emitted(item)
        root, done = len(seq.token_ids) - 1, 0
        for at, token in enumerate(emitted):
            done += 1
            if seq.append(token, at < accepted, self._max_len):
                break
        table.commit(root + done)
        seq.publish()
        answer = self._answers[seq.seq_id]
        if item.decoding:
            answer.steps += 1
            answer.drafted += len(item.draft)
            answer.accepted += accepted
        item.num_committed = done
        self._tell(item, emitted[:done])
        if seq.finished:
            self._leave(seq)
        return done

    def _emitted(self, item: _Work) -> tuple[list[int], int]:
        """What the target says after the root, and how many of it were drafted and verified."""
        if self._drafter is None or not item.part.seq.begun or not len(item.proposed):
            return [_OTHER], 0
        chance: Opportunity = self._drafter.opportunity(item.part.seq)
        said = [chance.draft.tokens[node] for node in chance.path]
        verified = set(item.draft.tokens)
        accepted = 0
        while accepted < len(said) and said[accepted] in verified:
            accepted += 1
        return [*said[:accepted], said[accepted] if accepted < len(said) else _OTHER], accepted

    def _tell(self, item: _Work, emitted: Seq[int]) -> None:
        """As in the engine: planner and drafter learn, and a drafter that is new to the sequence meets it."""
        seq = item.part.seq
        if self._drafter is None or (not seq.begun and self._planner.puts_off(seq, len(self._scheduler.running))):
            return
        if seq.begun:
            self._planner.observe(seq, item.proposed, emitted, (), True)
        elif not seq.finished:
            seq.begun = True
            seconds = self.costs.begin(seq.method, len(seq.token_ids))
            self._planner.met(seq, seconds)
            self._begin_seconds += seconds

    def _leave(self, seq: Sequence) -> None:
        self._release(seq)
        self._planner.release(seq)
        self._scheduler.finish(seq)

    def _release(self, seq: Sequence) -> None:
        """Its drafter forgets it: it left, or was preempted."""
        seq.begun = False

    def _account(self, work: Seq[_Work], rows: int, forward: float, committed: int, whole: float) -> None:
        if all(item.decoding and item.part.num_rows == 1 for item in work):
            self._planner.observe_step(len(work), rows, forward, committed, whole)

    def _settle(self, work: Seq[_Work], drafting: float, whole: float) -> None:
        """As in the engine: what drafting brought and took."""
        decoding = [item for item in work if item.decoding]
        rows = sum(len(item.draft) for item in decoding)
        extra = sum(item.num_committed - 1 for item in decoding)
        self._planner.settle([item.part.seq for item in decoding], rows, extra, drafting, whole)

    def _count(self, work: Seq[_Work], rows: int, held: int, drafting: float, forward: float, seconds: float) -> None:
        record = self.record
        record.steps += 1
        record.rows += rows
        record.busy += seconds
        record.forward += forward
        record.draft += drafting
        record.running += len(work) * seconds
        record.kv_blocks += held * seconds
        record.most_blocks = max(record.most_blocks, held)

    def _stamp(self, item: _Work) -> None:
        """The step is over: its tokens are on their way to the client, who may ask again."""
        seq = item.part.seq
        if not item.samples:
            return
        answer = self._answers[seq.seq_id]
        answer.last = self.now
        answer.tokens = len(seq.output_ids)
        answer.first = answer.first or answer.last
        if seq.finished:
            answer.cached, answer.preemptions = seq.stats.num_cached_tokens, seq.stats.num_preemptions
            self.record.answers.append(self._answers.pop(seq.seq_id))
            if self.workload.clients is not None:
                self._ask_next(answer.last)


def _shape(work: Seq[_Work]) -> StepShape:
    decoding = [item for item in work if item.decoding and item.part.num_rows == 1]
    chunks = sum(item.part.num_rows for item in work) - len(decoding)
    rows = sum(item.num_rows for item in decoding)
    context = sum(len(item.part.seq.token_ids) for item in decoding) / len(decoding) if decoding else 0.0
    return StepShape(rows, chunks, len(decoding), context)
