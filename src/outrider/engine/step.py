"""The one loop: schedule, draft, verify, commit. Every method, batched or alone, goes through ``Engine.step``."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from outrider import native
from outrider.core.draft import EMPTY, Draft
from outrider.core.noise import StreamRandomness
from outrider.core.verifiers.base import Verifier, Walk
from outrider.core.verifiers.sample import Sample
from outrider.drafters.base import Committed
from outrider.engine.drafting import Drafting
from outrider.engine.laws import NodeLaws, draw_argmax, row_argmax, row_topk
from outrider.engine.planner import Planner
from outrider.engine.scheduler import Scheduler, Slice
from outrider.engine.sequence import Sequence
from outrider.engine.spans import hand_out, span_of
from outrider.engine.taps import Taps
from outrider.engine.telling import tell
from outrider.errors import ContractError, NumericsError, OutriderError
from outrider.outputs import Logprob
from outrider.target.model import Target

_PLAIN = Sample()


@dataclass(slots=True)
class Work:
    """One sequence in a step: its rows, the draft that is verified, and the draft as it was proposed."""

    part: Slice
    samples: bool  # the last uncomputed row is among the rows: the step emits tokens
    decoding: bool  # a step after prefill, as against a prompt chunk
    draft: Draft = EMPTY
    proposed: Draft = EMPTY
    failure: NumericsError | None = None
    logits: Tensor | None = None  # [1 + nodes + probes, vocab]: the root's row first
    laws: NodeLaws | None = None
    hidden: Tensor | None = None  # [rows, layers * hidden]: the layers that the sequence's drafter wants, in its order
    draft_seconds: float = 0.0
    num_asked: int = 0  # nodes that the drafter was asked for
    walk: Walk | None = None  # what the verifier said
    num_committed: int = 0  # tokens that the sequence got

    @property
    def seq(self) -> Sequence:
        """The sequence."""
        return self.part.seq

    @property
    def num_rows(self) -> int:
        """Rows in the forward."""
        probes = self.draft.probes
        return self.part.num_rows + len(self.draft) + (len(probes.tokens) if probes else 0)


class Recorder(Protocol):
    """Told about every step once it is over, and accounted for. It changes nothing of what it is shown."""

    def record(self, work: Seq[Work]) -> None:
        """A step's work, with logits and walks."""
        ...


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Where a step's seconds went. ``begin``: drafters meeting new sequences; ``end``: when it was over, by
    ``time.perf_counter``; ``num_rows``: of all sequences."""

    draft: float
    verify: float
    overhead: float
    begin: float
    end: float
    num_rows: int


class Meter(Protocol):
    """Counts every step once it is over: it is given no more than a few microseconds, and changes nothing."""

    def step(self, work: Seq[Work], times: StepTimes) -> None:
        """A step's work and times."""
        ...


class Engine:
    """Runs sequences over one target. Not thread-safe: one thread steps it."""

    def __init__(self, target: Target, scheduler: Scheduler, drafting: Drafting, planner: Planner) -> None:
        self.target, self.scheduler, self.drafting, self.planner = target, scheduler, drafting, planner
        self.max_len = max_len(target, scheduler)
        library = native.library() if target.device.type == "cpu" else None
        self._draw, self._argmax, self._topk = draw_argmax(library), row_argmax(library), row_topk(library)
        self._begin_seconds = 0.0
        self._taps = Taps(scheduler.storage, self._puts_off)
        self.num_rows = self.num_rows_computed = 0  # of sequences; given to the target, rows of a failed try too
        self.recorder: Recorder | None = None
        self.meter: Meter | None = None

    @property
    def has_work(self) -> bool:
        """Sequences are running or waiting."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, seq: Sequence, arrival: float | None = None) -> None:
        """Queue a sequence, which came at ``arrival`` (of ``time.perf_counter``), or now."""
        self.scheduler.add(seq, arrival)

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """One step over the batch; the sequences that got tokens or finished."""
        begin = time.perf_counter()
        work = [_work(part) for part in self.scheduler.schedule()]
        stuck = self._fail_stuck()
        if not work:
            return stuck
        self._draft(work)
        drafted = time.perf_counter()
        self._forward(work)
        verified = time.perf_counter()
        for item in work:
            walk = item.walk = self._verify(item) if item.samples else None
            if item.failure is not None:
                self._fail(item.seq, item.failure)
            elif walk is None:
                self._commit_chunk(item)
            else:
                self._commit(item, walk)
        self._taps.write()
        times = self._account(work, begin, drafted, verified)
        tell(work, verified - drafted, self.target)
        if self.meter is not None:
            self.meter.step(work, times)
        if self.recorder is not None:
            self.recorder.record(work)
        return stuck + [item.seq for item in work if item.samples or item.seq.finished]

    def _draft(self, work: Seq[Work]) -> None:
        """Ask the drafters of sequences whose root is computed in this step."""
        drafting = [item for item in work if item.samples and item.seq.begun]
        seqs = [item.seq for item in drafting]
        drafts, proposed, seconds = self.drafting.propose(
            seqs, self.scheduler.room, [item.seq for item in work if item.samples]
        )
        for item, draft, full in zip(drafting, drafts, proposed, strict=True):
            item.draft, item.proposed = draft, full
            item.draft_seconds = seconds.get(item.seq.seq_id, 0.0)
            item.num_asked = self.drafting.num_asked.get(item.seq.seq_id, 0)

    def _forward(self, work: Seq[Work]) -> None:
        """One forward for all; when raw logits are not finite, each sequence alone, to find whose they are."""
        layers = tuple(sorted({layer for item in work for layer in item.seq.hidden_layers}))
        try:
            self._compute(work, layers)
        except NumericsError:
            for item in work:
                self._compute_alone(item, layers)
        self.num_rows += sum(item.num_rows for item in work)

    def _compute(self, work: Seq[Work], layers: Seq[int]) -> None:
        spans = [span_of(item) for item in work]
        self.num_rows_computed += sum(len(span.tokens) for span in spans)
        output = self.target.forward(spans, self.scheduler.storage, layers)
        hand_out(work, output, layers)
        self._taps.store([item.seq for item in work], output, layers)

    def _compute_alone(self, item: Work, layers: Seq[int]) -> None:
        try:
            self._compute([item], layers)
        except NumericsError as error:
            if item.num_rows == item.part.num_rows:
                item.failure = error
                return
            item.draft = EMPTY  # plain decoding never computes a draft's rows, so they must not fail the request
            self._compute_alone(item, layers)

    def _verify(self, item: Work) -> Walk | None:
        """The outcome of the step; a draft that cannot be verified counts as none. None when plain decoding fails."""
        if item.failure is not None:
            return None
        try:
            return self._walk(item)
        except (ContractError, NumericsError) as error:
            if len(item.draft):
                if isinstance(error, ContractError):
                    self.drafting.fail(item.seq, error)
                item.draft, item.logits = EMPTY, item.logits[:1] if item.logits is not None else None
                return self._verify(item)
            if isinstance(error, ContractError):
                raise
            item.failure = error
            return None

    def _walk(self, item: Work) -> Walk:
        seq, logits, draft = item.seq, item.logits, item.draft
        assert logits is not None
        best = None
        if seq.pipeline.greedy and seq.pipeline.plain:
            best = self._argmax(logits[: 1 + len(draft)])
        item.laws = NodeLaws(seq, draft, logits, best, self._draw)
        verifier = self._verifier(seq) if len(draft) else _PLAIN
        return verifier.walk(draft, item.laws, StreamRandomness(seq.noise_key, len(seq.token_ids) - 1))

    def _verifier(self, seq: Sequence) -> Verifier:
        return self.drafting.methods[seq.method].verifier

    def _commit_chunk(self, item: Work) -> None:
        seq = item.seq
        self._taps.keep(item.seq, item.hidden, range(item.part.num_rows))
        assert seq.table is not None
        seq.table.commit(seq.num_computed + item.part.num_rows)
        seq.publish()

    def _commit(self, item: Work, walk: Walk) -> None:
        """Cut the walk at the first stop, move the accepted rows into place, forget the rest, tell the drafter."""
        seq, table, draft = item.seq, item.seq.table, item.draft
        assert table is not None
        root = len(seq.token_ids) - 1
        emitted = [draft.tokens[node] for node in walk.path] + [walk.next_token]
        count = 0
        for at, token in enumerate(emitted):
            above = -1 if at == 0 else walk.path[at - 1]
            self._add_logprob(item, above, token)
            if seq.scores is not None and item.laws is not None:
                seq.scores.append(item.laws.scores(above))
            count += 1
            if seq.append(token, at < len(walk.path), self.max_len):
                break
        item.num_committed = count
        path = walk.path[: count - 1]  # rows whose next token is committed
        slots = table.slots(root + 1, len(draft))
        self.scheduler.storage.move([slots[node] for node in path], slots[: len(path)])
        first = item.part.num_rows
        self._taps.keep(seq, item.hidden, [*range(first), *(first + node for node in path)])
        table.commit(root + 1 + len(path))
        seq.publish()
        if item.decoding:
            seq.stats.add_step(draft, walk.path, count)
            if seq.drafts is not None and len(draft):
                seq.drafts.append((len(draft), len(walk.path)))
        else:
            seq.stats.add_first_token()
        self._tell(item, emitted[:count], walk.path[:count])
        if seq.finished:
            self.release(seq)

    def _tell(self, item: Work, emitted: Seq[int], accepted: Seq[int]) -> None:
        """Let planner and drafter learn what was committed; a drafter that is new to the sequence begins with it."""
        seq = item.seq
        if seq.drafter is None:
            return
        if not seq.begun and self._puts_off(seq):
            return
        hidden = self._taps.unseen(seq)
        if not seq.begun:
            if not seq.finished:
                seconds = self.drafting.begin(seq, hidden)
                self.planner.met(seq, seconds)
                seq.stats.prefill_seconds += seconds
                self._begin_seconds += seconds
            return
        target_draws = not self._verifier(seq).needs_laws
        seen = item.proposed if target_draws else item.draft
        self.planner.observe(seq, seen, emitted, accepted, target_draws)
        top = self._row_top(item)
        self.drafting.observe(seq, Committed(emitted, len(accepted), item.draft, hidden, top))

    def _puts_off(self, seq: Sequence) -> bool:
        return self.planner.puts_off(seq, len(self.scheduler.running))

    def _row_top(self, item: Work) -> Tensor | None:
        """The target's best ids at every row of the step [rows, k], when the drafter asked for them."""
        assert item.seq.drafter is not None
        needs = item.seq.drafter.needs
        if item.logits is None or not (needs.row_topk or needs.row_argmax):
            return None
        return self._topk(item.logits, needs.row_topk or 1)

    def _add_logprob(self, item: Work, node: int, token: int) -> None:
        wanted = item.seq.params.logprobs
        if wanted is None or item.logits is None:
            return
        values = torch.log_softmax(item.logits[node + 1].float(), dim=-1)
        best = values.topk(min(wanted, values.shape[0])).indices.tolist() if wanted else []
        ids = [token, *(t for t in best if t != token)]
        text = self.target.tokenizer.token_text
        item.seq.logprobs.append(
            {t: Logprob(float(values[t]), int((values > values[t]).sum()) + 1, text(t)) for t in ids}
        )

    def release(self, seq: Sequence) -> None:
        """A sequence has left: its drafter, its estimates and its blocks let go of it. Again changes nothing."""
        try:
            self.drafting.release(seq)
        finally:
            self.planner.release(seq)
            self.scheduler.finish(seq)
            seq.hidden.clear()

    def preempted(self, seq: Sequence) -> None:
        """The scheduler took a sequence's blocks: its drafter forgets it and meets it again later."""
        seq.hidden.clear()
        self.drafting.release(seq)

    def abort(self, seq: Sequence, reason: str = "abort") -> None:
        """End a sequence now, at any token; everything it held is freed."""
        if not seq.finished:
            seq.finish_reason = reason
            seq.text.finish()
        self.release(seq)

    def _fail(self, seq: Sequence, failure: OutriderError) -> None:
        seq.failure = failure
        self.abort(seq, "error")

    def _fail_stuck(self) -> list[Sequence]:
        stuck = [seq for seq in self.scheduler.running if seq.failure is not None]
        for seq in stuck:
            self.abort(seq, "error")
        return stuck

    def _account(self, work: Seq[Work], begin: float, drafted: float, verified: float) -> StepTimes:
        """Share the step's time among its sequences by their rows; drafters' time is shared by those that drafted."""
        now = time.perf_counter()
        rows = sum(item.num_rows for item in work)
        if all(item.decoding and item.part.num_rows == 1 for item in work):
            tokens = sum(1 + len(item.walk.path) for item in work if item.walk is not None)
            whole = now - begin - self._begin_seconds
            self.planner.observe_step(len(work), rows, verified - drafted, tokens, whole)
        drafting = sum(item.draft_seconds for item in work)
        self._settle(work, drafting, now - begin - self._begin_seconds)
        if self.scheduler.pacing is not None:
            chunks = sum(item.num_rows for item in work if not item.decoding or item.part.num_rows > 1)
            self.scheduler.pacing.observe(rows - chunks, chunks, verified - drafted)
        overhead = now - verified + drafted - begin - drafting - self._begin_seconds
        times = StepTimes(drafting, verified - drafted, overhead, self._begin_seconds, now, rows)
        self._begin_seconds = 0.0
        for item in work:
            share, stats = item.num_rows / rows, item.seq.stats
            if item.decoding:
                stats.draft_seconds += item.draft_seconds
                stats.verify_seconds += (verified - drafted) * share
                stats.overhead_seconds += overhead * share
            else:
                stats.prefill_seconds += (verified - drafted + overhead) * share
                if item.samples:
                    stats.time_to_first_token = now - item.seq.arrival
        return times

    def _settle(self, work: Seq[Work], drafting: float, whole: float) -> None:
        """Tell the planner what drafting brought and took."""
        decoding = [item for item in work if item.decoding and item.num_committed]
        drafted = sum(len(item.draft) for item in decoding)
        extra = sum(item.num_committed - 1 for item in decoding)
        self.planner.settle([item.seq for item in decoding], drafted, extra, drafting, whole)


def max_len(target: Target, scheduler: Scheduler) -> int:
    """Tokens that one sequence can have: the context, or the whole cache where that is smaller."""
    return min(target.max_model_len, scheduler.pool.own_blocks * scheduler.pool.block_size)


def _work(part: Slice) -> Work:
    return Work(part, part.samples, part.samples and bool(part.seq.output_ids))
