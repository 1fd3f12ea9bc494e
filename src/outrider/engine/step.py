"""The one loop: schedule, draft, verify, commit. Every method, batched or alone, goes through ``Engine.step``."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider import native
from outrider.core.draft import EMPTY, Draft
from outrider.core.noise import StreamRandomness
from outrider.core.verifiers.base import Verifier, Walk
from outrider.core.verifiers.sample import Sample
from outrider.drafters.base import Committed, Needs
from outrider.engine.drafting import Drafting
from outrider.engine.laws import NodeLaws, draw_argmax
from outrider.engine.planner import Planner
from outrider.engine.scheduler import Scheduler, Slice
from outrider.engine.sequence import Sequence
from outrider.errors import NumericsError
from outrider.outputs import Logprob
from outrider.target.batch import Span
from outrider.target.model import Target, TargetOutput

_PLAIN = Sample()
_NOTHING = Needs()


@dataclass(slots=True)
class Work:
    """One sequence in a step: its rows, the draft that is verified, and the draft as it was proposed."""

    part: Slice
    draft: Draft = EMPTY
    proposed: Draft = EMPTY
    failed: str | None = None
    logits: Tensor | None = None  # [1 + nodes + probes, vocab]: the root's row first
    hidden: Tensor | None = None  # [rows, layers * hidden]
    decoding: bool = False  # a step after prefill, as against a prompt chunk
    draft_seconds: float = 0.0

    samples: bool = False  # the last uncomputed row is among the rows: the step emits tokens

    @property
    def seq(self) -> Sequence:
        """The sequence."""
        return self.part.seq

    @property
    def num_rows(self) -> int:
        """Rows in the forward."""
        probes = self.draft.probes
        return self.part.num_rows + len(self.draft) + (len(probes.tokens) if probes else 0)


class Engine:
    """Runs sequences over one target. Not thread-safe: one thread steps it."""

    def __init__(self, target: Target, scheduler: Scheduler, drafting: Drafting, planner: Planner) -> None:
        self.target, self.scheduler, self.drafting, self.planner = target, scheduler, drafting, planner
        self._draw = draw_argmax(native.library() if target.device.type == "cpu" else None)
        self.num_steps = 0
        self.num_rows = 0

    @property
    def has_work(self) -> bool:
        """Sequences are running or waiting."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence."""
        self.scheduler.add(seq)

    @torch.inference_mode()
    def step(self) -> list[Sequence]:
        """One step over the batch; the sequences that got tokens or finished."""
        begin = time.perf_counter()
        work = [Work(part, samples=part.samples) for part in self.scheduler.schedule()]
        stuck = self._fail_stuck()
        if not work:
            return stuck
        self._draft(work)
        drafted = time.perf_counter()
        self._forward(work)
        verified = time.perf_counter()
        for item in work:
            if item.failed is not None:
                self._fail(item.seq, item.failed)
            elif not item.samples:
                self._commit_chunk(item)
            else:
                self._commit(item, self._verify(item))
        self._account(work, begin, drafted, verified)
        return stuck + [item.seq for item in work if item.samples or item.failed]

    def _draft(self, work: Seq[Work]) -> None:
        decoding = [item for item in work if item.part.num_rows == 1 and item.samples]
        for item in work:
            item.decoding = item.samples and bool(item.seq.output_ids)
        base_rows = sum(item.part.num_rows for item in work)
        drafts, proposed, seconds = self.drafting.propose([item.seq for item in decoding], base_rows)
        for item, draft, full in zip(decoding, drafts, proposed, strict=True):
            item.proposed, item.draft_seconds = full, seconds.get(item.seq.seq_id, 0.0)
            extra = len(draft) + (len(draft.probes.tokens) if draft.probes else 0)
            if extra and self.scheduler.reserve(item.seq, len(item.seq.token_ids) + extra, preempt=False):
                item.draft = draft

    def _needs(self, seq: Sequence) -> Needs:
        return seq.drafter.needs if seq.drafter is not None else _NOTHING

    def _forward(self, work: Seq[Work]) -> None:
        layers = tuple(sorted({layer for item in work for layer in self._needs(item.seq).hidden_layers}))
        spans = [_span(item) for item in work]
        try:
            _hand_out(work, self.target.forward(spans, self.scheduler.storage, layers))
        except NumericsError:
            for item, span in zip(work, spans, strict=True):
                try:
                    _hand_out([item], self.target.forward([span], self.scheduler.storage, layers))
                except NumericsError as error:
                    item.failed = f"{error}"
        self.num_steps += 1
        self.num_rows += sum(item.num_rows for item in work)

    def _verify(self, item: Work) -> Walk:
        seq, logits = item.seq, item.logits
        assert logits is not None
        best = None
        if seq.pipeline.greedy and seq.pipeline.plain:
            best = logits[: 1 + len(item.draft)].argmax(dim=-1).tolist()
        laws = NodeLaws(seq, item.draft, logits, best, self._draw)
        verifier = self._verifier(seq) if len(item.draft) else _PLAIN
        return verifier.walk(item.draft, laws, StreamRandomness(seq.noise_key, len(seq.token_ids) - 1))

    def _verifier(self, seq: Sequence) -> Verifier:
        return self.drafting.methods[seq.method].verifier

    def _commit_chunk(self, item: Work) -> None:
        seq = item.seq
        self._keep_hidden(item, range(item.part.num_rows))
        assert seq.table is not None
        seq.table.commit(seq.num_computed + item.part.num_rows)
        seq.table.publish(seq.token_ids, seq.cache_salt)

    def _commit(self, item: Work, walk: Walk) -> None:
        """Cut the walk at the first stop, move the accepted rows into place, forget the rest, tell the drafter."""
        seq, table, draft = item.seq, item.seq.table, item.draft
        assert table is not None
        first = not seq.output_ids
        root = len(seq.token_ids) - 1
        emitted = [draft.tokens[node] for node in walk.path] + [walk.next_token]
        count = 0
        for at, token in enumerate(emitted):
            self._add_logprob(item, -1 if at == 0 else walk.path[at - 1], token)
            count += 1
            if seq.append(token, at < len(walk.path), self.target.max_model_len):
                break
        path = walk.path[: min(count, len(walk.path))]
        slots = table.slots(root + 1, len(draft))
        self.scheduler.storage.move([slots[node] for node in path], slots[: len(path)])
        self._keep_hidden(item, [*range(item.part.num_rows), *(item.part.num_rows + node for node in path)])
        table.commit(min(root + 1 + len(path), len(seq.token_ids) - 1))
        table.publish(seq.token_ids, seq.cache_salt)
        if first:
            seq.stats.add_first_token()
        else:
            seq.stats.add_step(draft, walk.path, count)
        self._tell(item, emitted[:count], path)
        if seq.finished:
            self.release(seq)

    def _tell(self, item: Work, emitted: Seq[int], path: Seq[int]) -> None:
        seq = item.seq
        if seq.drafter is None:
            return
        target_draws = seq.method not in self.drafting.methods or not self._verifier(seq).needs_laws
        seen = item.proposed if target_draws else item.draft
        self.planner.observe(seq, seen, emitted, path, target_draws)
        hidden = torch.cat(seq.hidden) if seq.hidden else None
        seq.hidden.clear()
        if not seq.begun:
            self.drafting.begin(seq, hidden)
            return
        needs, top = self._needs(seq), None
        width = max(needs.row_topk, int(needs.row_argmax))
        if width and item.logits is not None:
            top = item.logits.topk(width, dim=-1).indices
        self.drafting.observe(seq, Committed(emitted, len(path), item.draft, hidden, top))

    def _keep_hidden(self, item: Work, rows: Seq[int]) -> None:
        if item.hidden is not None and self._needs(item.seq).hidden_layers:
            item.seq.hidden.append(item.hidden[torch.tensor(list(rows))])

    def _add_logprob(self, item: Work, node: int, token: int) -> None:
        wanted = item.seq.params.logprobs
        if wanted is None or item.logits is None:
            return
        values = torch.log_softmax(item.logits[node + 1].float(), dim=-1)
        ids = [token, *(t for t in values.topk(wanted).indices.tolist() if t != token)] if wanted else [token]
        text = self.target.tokenizer.token_text
        item.seq.logprobs.append(
            {t: Logprob(float(values[t]), int((values > values[t]).sum()) + 1, text(t)) for t in ids}
        )

    def release(self, seq: Sequence) -> None:
        """A sequence has left: its drafter, its estimates and its blocks let go of it."""
        self.drafting.release(seq)
        self.planner.release(seq)
        self.scheduler.finish(seq)
        seq.hidden.clear()

    def preempted(self, seq: Sequence) -> None:
        """The scheduler took a sequence's blocks: its drafter forgets it and meets it again later."""
        self.drafting.release(seq)
        seq.hidden.clear()

    def abort(self, seq: Sequence, reason: str = "abort") -> None:
        """End a sequence now, at any token; everything it held is freed."""
        if not seq.finished:
            seq.finish_reason = reason
            seq.text.finish()
            self.release(seq)

    def _fail(self, seq: Sequence, message: str) -> None:
        seq.error = message
        self.abort(seq, "error")

    def _fail_stuck(self) -> list[Sequence]:
        stuck = [seq for seq in self.scheduler.running if seq.error is not None]
        for seq in stuck:
            self.abort(seq, "error")
        return stuck

    def _account(self, work: Seq[Work], begin: float, drafted: float, verified: float) -> None:
        """Share the step's time among its sequences by their rows; drafters' time is shared by those that drafted."""
        rows = sum(item.num_rows for item in work)
        drafting = sum(item.draft_seconds for item in work)
        overhead = time.perf_counter() - verified + drafted - begin - drafting
        for item in work:
            share, stats = item.num_rows / rows, item.seq.stats
            if item.decoding:
                stats.draft_seconds += item.draft_seconds
                stats.verify_seconds += (verified - drafted) * share
                stats.overhead_seconds += overhead * share
            else:
                stats.prefill_seconds += (verified - drafted + overhead) * share


def _span(item: Work) -> Span:
    """The rows of one sequence: uncomputed tokens, then the draft's nodes, then its probes."""
    seq, draft = item.seq, item.draft
    assert seq.table is not None
    start, count = seq.num_computed, item.part.num_rows
    tokens = seq.token_ids[start : start + count]
    context = seq.table.slots_tensor()
    if not item.samples:
        return Span(tokens, context, start, logits=[])
    if not len(draft) and draft.probes is None:
        return Span(tokens, context, start, logits=[count - 1])
    tokens = [*tokens, *draft.tokens]
    if draft.is_chain and draft.probes is None:
        return Span(tokens, context, start)
    parents = [-1, *(draft.parent(node) + 1 for node in range(len(draft)))]
    if draft.probes is not None:
        base = len(parents)
        parents += [0 if parent < 0 else base + parent for parent in draft.probes.parents]
        tokens = [*tokens, *draft.probes.tokens]
    return Span(tokens, context, start, parents=parents)


def _hand_out(work: Seq[Work], output: TargetOutput) -> None:
    """Give each sequence its rows of the output."""
    at = row = 0
    for item in work:
        if item.samples:
            wanted = item.num_rows - item.part.num_rows + 1
            item.logits = output.logits[at : at + wanted]
            at += wanted
        if output.hidden is not None:
            item.hidden = output.hidden[row : row + item.num_rows]
        row += item.num_rows
