"""The inner loop of a hierarchical drafter: the same engine, over the middle model, one step at a time.

Each sequence that is drafted for has an inner twin with the same prompt and output, logits pipeline and salt. The twin
runs ahead: inner steps commit tokens to it that the target has not seen. When the next draft is asked for, it is cut to
what it has in common with the target's tokens; the cache keeps the keys and values of that prefix, and the inner
drafter is told (truncate, observe).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider import native
from outrider.cache.pool import BlockPool
from outrider.cache.prefix import PrefixIndex
from outrider.cache.table import BlockTable
from outrider.config import SamplingParams, SpeculativeConfig
from outrider.core.verifiers.sample import Sample
from outrider.drafters.base import Committed, Drafter, DraftSequence, DraftSource
from outrider.engine.drafting import Drafting, Method
from outrider.engine.planner import Planner
from outrider.engine.scheduler import Scheduler, Slice
from outrider.engine.sequence import Sequence
from outrider.engine.step import Engine, max_len
from outrider.engine.text import OutputText
from outrider.errors import CacheError, ConfigError
from outrider.outputs import RequestStats
from outrider.target.costs import curve_of

_PARAMS = SamplingParams(max_tokens=None, ignore_eos=True, detokenize=False)
_BLOCK = 16
_MAX_ROWS = 512  # uncomputed tokens in a step; drafts come on top


@dataclass(slots=True, eq=False)
class Twin(Sequence):
    """The inner side of a sequence. It never finishes; ``goal``: tokens at which nobody needs more of it.

    ``agreed``: the first so many tokens are known to be the outer sequence's.
    """

    goal: int = 0
    agreed: int = 0

    def tokens_left(self, max_model_len: int) -> int:
        """What bounds the depth of inner drafts: one token beyond the goal, so that the KV of the draft's last token
        is computed with it."""
        return max(1, min(max_model_len, self.goal + 1) - len(self.token_ids))

    def cut(self, length: int) -> None:
        """Forget the tokens from ``length`` on."""
        del self.token_ids[length:]
        del self.output_ids[max(0, length - self.num_prompt_tokens) :]
        del self.from_draft[len(self.output_ids) :]

    def extend(self, tokens: Seq[int]) -> None:
        """Append tokens that the target chose."""
        self.token_ids.extend(tokens)
        self.output_ids = self.token_ids[self.num_prompt_tokens :]
        self.from_draft.extend([False] * (len(self.output_ids) - len(self.from_draft)))


class Turns(Scheduler):
    """Runs exactly the sequences whose turn it is; their slots are reserved, so that none is ever preempted."""

    leave = 0  # last tokens of each sequence to leave uncomputed: one while prompts are computed

    def schedule(self) -> list[Slice]:
        """The uncomputed rows of the running sequences, within the row budget."""
        rows, out = self._max_rows, []
        for seq in self.running:
            count = min(seq.num_uncomputed - self.leave, rows)
            if count > 0:
                out.append(Slice(seq, count))
                rows -= count
        return out


class InnerEngine:
    """``drafters.hierarchical.InnerLoop`` by an ``Engine`` whose target is the middle model and whose rule is `sample`.

    ``stats``: what the inner steps of sequences that have left did, whatever the target made of their tokens.
    """

    def __init__(
        self, source: DraftSource, config: SpeculativeConfig, drafter: Drafter, vocab_size: int, strict: bool
    ) -> None:
        if drafter.needs.hidden_layers:
            raise ConfigError(
                f"drafter: method {config.method!r} reads hidden states, and a middle model hands out none; "
                "take a method that reads none"
            )
        middle = source.model.over(vocab_size)
        blocks = max(2, -(-source.cache_tokens // _BLOCK))
        storage = middle.new_storage(blocks * _BLOCK, _BLOCK)
        self.pool = storage.new_pool()
        self._index = PrefixIndex(self.pool)
        self.scheduler = Turns(
            self.pool,
            self._index,
            storage,
            max_num_seqs=0,
            max_num_batched_tokens=_MAX_ROWS,
            on_preempt=lambda seq: None,
        )
        self.method, self.stats = Method(config, drafter, Sample()), RequestStats()
        planner = Planner(curve_of(source.model))
        library = native.library() if middle.device.type == "cpu" else None
        self.max_model_len = max_len(middle, self.scheduler)
        methods = {config.method: self.method}
        drafting = Drafting(methods, planner, vocab_size, self.max_model_len, strict, library)
        self.engine = Engine(middle, self.scheduler, drafting, planner)
        self._twins: dict[int, Twin] = {}

    def plain_seconds(self, num_sequences: int) -> float:
        """Seconds of a step of the middle model without an inner draft."""
        return self.engine.planner.step_seconds(num_sequences)

    @torch.inference_mode()
    def begin(self, seq: DraftSequence) -> None:
        """Compute the tokens of ``seq`` but its root. Raises CacheError when there is no room now."""
        twin = self._twin(seq)
        self._reserve(twin, len(twin.token_ids))
        self.scheduler.leave = 1
        try:
            while twin.num_uncomputed > 1:
                self._run([twin])
        finally:
            self.scheduler.leave = 0

    def follow(self, seq: DraftSequence, key: int, wanted: int) -> int:
        """See ``InnerLoop``."""
        twin = self._twin(seq)
        self._align(twin, seq, key)
        twin.goal = len(seq.token_ids) + wanted
        try:
            self._reserve(twin, min(twin.goal, self.max_model_len))
        except CacheError:
            self._cut(twin, len(seq.token_ids))
            self._uncompute(twin, len(seq.token_ids) - 1)
            raise
        return len(twin.token_ids) - len(seq.token_ids)

    def step(self, sequences: Seq[DraftSequence]) -> float:
        """See ``InnerLoop``."""
        twins = [self._twins[seq.seq_id] for seq in sequences]
        rows = self.engine.num_rows + sum(twin.num_uncomputed - 1 for twin in twins)
        self._run(twins)
        rows = max(len(twins), self.engine.num_rows - rows)
        drafted = -(-(rows - len(twins)) // len(twins))
        return self.engine.planner.step_seconds(rows) + self.method.drafter.seconds(len(twins), drafted)

    def written(self, seq: DraftSequence) -> list[tuple[int, Tensor]]:
        """See ``InnerLoop``."""
        twin = self._twins[seq.seq_id]
        assert twin.scores is not None
        scores, twin.scores = twin.scores, []
        return list(zip(twin.token_ids[len(twin.token_ids) - len(scores) :], scores, strict=True))

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """See ``InnerLoop``."""
        twin = self._twins.get(seq.seq_id)
        if twin is not None and length < twin.agreed:
            self._cut(twin, length)
            self._uncompute(twin, length - 1)
            twin.agreed = length

    def release(self, seq: DraftSequence) -> None:
        """See ``InnerLoop``."""
        twin = self._twins.get(seq.seq_id)
        if twin is None:
            return
        try:
            self._align(twin, seq, twin.noise_key)
            self._cut(twin, len(seq.token_ids))
        finally:
            self._leave(twin)

    def kv_pools(self) -> dict[str, BlockPool]:
        """See ``InnerLoop``."""
        return {"middle model": self.pool, **self.method.drafter.kv_pools()}

    def close(self) -> None:
        """See ``InnerLoop``."""
        for twin in list(self._twins.values()):
            self._leave(twin)
        self.method.drafter.close()

    def _twin(self, seq: DraftSequence) -> Twin:
        """The twin of ``seq``; a new one holds what the prefix index has of it."""
        twin = self._twins.get(seq.seq_id)
        if twin is not None:
            return twin
        tokens, start = list(seq.token_ids), seq.num_prompt_tokens
        config = self.method.config
        twin = self._twins[seq.seq_id] = Twin(
            seq_id=seq.seq_id,
            request_id=f"(draft of sequence {seq.seq_id})",
            index=0,
            params=_PARAMS,
            token_ids=tokens,
            num_prompt_tokens=start,
            pipeline=seq.pipeline,
            noise_key=0,
            end_ids=frozenset(),
            text=OutputText(None, (), ()),
            prediction=seq.prediction,
            cache_salt=seq.cache_salt,
            drafter=None if config.num_speculative_tokens == 0 else self.method.drafter,
            method=config.method,
            fixed_tokens=config.num_speculative_tokens,
            output_ids=tokens[start:],
            from_draft=[False] * len(tokens[start:]),
            scores=[],
            agreed=len(tokens),
        )
        twin.table = BlockTable(self.pool, self._index)
        twin.cached_as = twin.prefix_salt
        twin.table.reuse(tokens, twin.cached_as)
        self.engine.drafting.begin(twin, None)
        return twin

    def _align(self, twin: Twin, seq: DraftSequence, key: int) -> None:
        """Cut the twin to what it shares with ``seq``, add what ``seq`` has more, and give it the noise ``key``."""
        mine, theirs, same = twin.token_ids, seq.token_ids, twin.agreed
        while same < min(len(mine), len(theirs)) and mine[same] == theirs[same]:
            same += 1
        if same < len(theirs) or key != twin.noise_key:
            self._cut(twin, same)
            new = list(theirs[same:])
            if new:
                twin.extend(new)
                self.engine.drafting.observe(twin, Committed(new))
            twin.noise_key = key
            self._uncompute(twin, min(same, len(theirs) - 1))
        twin.agreed = len(theirs)

    def _cut(self, twin: Twin, length: int) -> None:
        if length < len(twin.token_ids):
            twin.cut(length)
            self.engine.drafting.truncate(twin, length)

    @staticmethod
    def _uncompute(twin: Twin, length: int) -> None:
        """The KV of no more than the first ``length`` tokens counts."""
        if twin.table is not None and twin.table.length > length:
            twin.table.commit(length)

    def _reserve(self, twin: Twin, num_tokens: int) -> None:
        assert twin.table is not None
        self.scheduler.storage.copy_blocks(twin.table.reserve(num_tokens))

    def _run(self, twins: Seq[Twin]) -> None:
        """One step of the engine for ``twins``. Raises what one of them failed of; its state is gone then."""
        self.scheduler.running = list(twins)
        try:
            self.engine.step()
        finally:
            self.scheduler.running = []
        failed = [twin for twin in twins if twin.failure is not None]
        for twin in failed:
            del self._twins[twin.seq_id]
        for error in filter(None, (twin.failure for twin in failed)):
            raise error

    def _leave(self, twin: Twin) -> None:
        del self._twins[twin.seq_id]
        self.stats.merge(twin.stats)
        self.engine.release(twin)
