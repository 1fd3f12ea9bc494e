"""Ouroboros: a draft model that drafts by phrases, and phrases behind its chain that cost no drafting at all.

Source: arXiv 2402.13720. A pool holds phrases by their first token. The draft model checks the pool's phrases after
its latest token in one forward and takes what agrees with its own choice, so that a chain needs fewer forwards. Behind
the chain, the phrases after its last token are appended as branches. The target's argmax at every row, rejected ones
included, corrects what was tried and refills the pool; so do the n-grams of the text. The pool is a hint: it changes
proposals only, and it outlives the request unless ``ouroboros_keep_pool`` is off. All edges are delta: under a rule
with shared noise the chain's tokens are the best of log q + noise, under a classical one the draft model's argmax.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.config import SpeculativeConfig
from outrider.core.draft import EMPTY, Draft
from outrider.drafters.base import Committed, DraftNoise, DraftSequence, DraftSource, Needs
from outrider.drafters.draft_model import DraftGrowth, DraftModel
from outrider.drafters.hints import PerSalt
from outrider.drafters.phrases import Branches, PhrasePool, merge, until
from outrider.drafters.registry import DrafterContext
from outrider.drafters.sampling import chances
from outrider.drafters.trees import Paths
from outrider.errors import ConfigError
from outrider.target.batch import Span

_PHRASE = "ouroboros:phrase"  # nodes behind the chain
_PER_KEY = 8  # phrases kept after a token
_MAX_KEYS, _MAX_POOLS = 1 << 15, 32
_RETRY = 16  # phrases that do not pay are tried every so many times that there are some
_FIRST, _NEXT = (0.3, 0.15, 0.1), 0.55  # P(accepted | parent accepted) of a branch's first and later tokens


class Ouroboros(DraftModel):
    """Drafts with a causal language model and a pool of phrases."""

    method = "ouroboros"
    needs = Needs(row_argmax=True)

    def __init__(
        self,
        source: DraftSource,
        vocab_size: int,
        eos_ids: frozenset[int],
        *,
        phrases: int,
        ngram: int,
        keep_pool: bool,
    ) -> None:
        super().__init__(source.model, Paths(), vocab_size, source.cache_tokens)
        self._eos_ids, self._phrases, self._ngram, self._keep = eos_ids, phrases, ngram, keep_pool
        self.extra_tokens = phrases * (ngram - 1)
        self.pools: PerSalt[PhrasePool] = PerSalt(lambda: PhrasePool(_PER_KEY, _MAX_KEYS), _MAX_POOLS)
        self._own: dict[int, PhrasePool] = {}
        self._pace, self._rows, self._tried = 1.5, 4.0, 0  # tokens and rows of a forward with phrases; its chances

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        """Time of the forwards that draw a chain of ``num_tokens`` for each sequence."""
        if self._phrases_pay:
            return num_tokens / self._pace * self._curve(max(1, round(num_sequences * self._rows)))
        return num_tokens * self._curve(num_sequences)

    @property
    def _phrases_pay(self) -> bool:
        """Forwards that check phrases bring more tokens a second than forwards of one row."""
        return self._pace * self._curve(1) > self._curve(max(1, round(self._rows)))

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Compute the prompt, and put its n-grams into the pool."""
        super().begin(seq, hidden)
        self._feed_text(seq, 0)

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """A chain for each sequence, some tokens a forward, and branches behind it."""
        grown = [self._start(seq, budget) for seq, budget in zip(sequences, budgets, strict=True)]
        live = [growth for growth in grown if growth is not None]
        for growth in live:
            growth.levels = min(growth.levels, max(1, growth.budget - self.extra_tokens))
        while live:
            tries = [self._tries(growth) for growth in live]
            logits = self._check_phrases(live, tries)
            live = [
                growth
                for growth, branches, rows in zip(live, tries, logits, strict=True)
                if self._take(growth, branches, rows, noise)
            ]
        for done in grown:
            if done is not None:
                self._settle(done)
        return [EMPTY if growth is None else self._finished(growth) for growth in grown]

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Keep the KV of accepted rows; correct what was tried by the target's argmax, and learn the new text."""
        super().observe(seq, committed)
        before = len(seq.token_ids) - len(committed.token_ids)
        if committed.row_top is not None:
            draft = EMPTY if committed.draft is None else committed.draft
            self._correct(seq, before - 1, draft, committed.row_top[:, 0].tolist())
        self._feed_text(seq, before)

    def release(self, seq: DraftSequence) -> None:
        """Free the sequence's blocks, and its pool where that is its own."""
        super().release(seq)
        self._own.pop(seq.seq_id, None)

    def close(self) -> None:
        """Free everything."""
        super().close()
        self.pools.clear()
        self._own.clear()

    def phrases_of(self, seq: DraftSequence) -> PhrasePool:
        """The pool that serves ``seq``: that of its salt, or its own."""
        if self._keep:
            return self.pools.use(seq.cache_salt)
        return self._own.setdefault(seq.seq_id, PhrasePool(_PER_KEY, _MAX_KEYS))

    def _feed_text(self, seq: DraftSequence, start: int) -> None:
        """The n-grams that end at token ``start`` or later."""
        pool, tokens = self.phrases_of(seq), seq.token_ids
        for end in range(max(start, self._ngram - 1), len(tokens)):
            first, *rest = tokens[end - self._ngram + 1 : end + 1]
            self._put(pool, first, rest)

    def _correct(self, seq: DraftSequence, root: int, draft: Draft, best: Sequence[int]) -> None:
        """From every row down along first children: what the target put in the place of the tokens tried there."""
        pool, children = self.phrases_of(seq), draft.children()
        for row in range(len(draft), -1, -1):
            phrase, node = [best[row]], row - 1
            while len(phrase) < self._ngram - 1 and children[node + 1]:
                node = children[node + 1][0]
                phrase.append(best[node + 1])
            if len(phrase) > 1:
                self._put(pool, draft.tokens[row - 1] if row else seq.token_ids[root], phrase)

    def _put(self, pool: PhrasePool, key: int, phrase: Sequence[int]) -> None:
        if key not in self._eos_ids:
            pool.add(key, until(phrase, self._eos_ids), _PHRASE)

    def _after(self, growth: DraftGrowth, budget: int) -> Branches:
        """The phrases after the last token of the chain."""
        last = growth.tokens[-1] if growth.tokens else growth.seq.token_ids[-1]
        if last in self._eos_ids and growth.tokens:
            return Branches()
        return merge(self.phrases_of(growth.seq).after(last)[: self._phrases], budget)

    def _tries(self, growth: DraftGrowth) -> Branches:
        """Phrases for the draft model to check: those that fit into chain, cache and context."""
        at = len(growth.tokens)
        levels = min(growth.levels - at - 1, self.model.max_model_len - len(growth.seq.token_ids) - at)
        branches = self._after(growth, growth.budget - at) if levels > 0 else Branches()
        if not branches.tokens:
            return branches
        self._tried += 1
        if not self._phrases_pay and self._tried % _RETRY:
            return Branches()
        depths = Draft(branches.tokens, branches.parents).depths()
        kept = [node for node, depth in enumerate(depths) if depth <= levels]
        index = {-1: -1, **{node: new for new, node in enumerate(kept)}}
        return Branches([branches.tokens[n] for n in kept], [index[branches.parents[n]] for n in kept])

    def _check_phrases(self, live: Sequence[DraftGrowth], tries: Sequence[Branches]) -> list[Tensor]:
        """One forward: for each draft the raw logits [1 + nodes, vocab] at its last token and at its phrases."""
        spans = []
        for growth, branches in zip(live, tries, strict=True):
            done = growth.state.table.length + len(growth.state.chain) if growth.tokens else growth.state.table.length
            new = [*growth.seq.token_ids, *growth.tokens][done:]
            last = len(new) - 1
            parents = [*range(-1, last), *(last + 1 + parent if parent >= 0 else last for parent in branches.parents)]
            spans.append(
                Span(
                    [*new, *branches.tokens],
                    growth.state.table.slots_tensor(),
                    done,
                    parents=parents if branches.tokens else None,
                    logits=range(last, len(parents)),
                )
            )
        logits = self._forward([growth.state for growth in live], spans)
        return list(torch.split(logits, [1 + len(branches.tokens) for branches in tries]))

    def _take(self, growth: DraftGrowth, branches: Branches, logits: Tensor, noise: DraftNoise) -> bool:
        """Extend the chain by the model's choices along the phrases; whether it may grow further."""
        at, path, row, alive = len(growth.tokens), [], 0, True
        if at == 0:
            growth.state.table.commit(len(growth.seq.token_ids))
        while alive:
            alive = self._choose(growth, logits[row], noise)
            node = next((n for n, t in self._below(branches, row - 1) if alive and t == growth.tokens[-1]), None)
            if node is None:
                break
            path.append(node)
            row = node + 1
        slots = growth.state.table.slots(len(growth.seq.token_ids) + at, len(branches.tokens))
        moved = [(slots[node], slots[to]) for to, node in enumerate(path) if node != to]
        if moved:
            self._storage.move([source for source, _ in moved], [to for _, to in moved])
        growth.state.chain = growth.tokens[: at + len(path)]
        if branches.tokens:
            self._pace += 0.02 * (1 + len(path) - self._pace)
            self._rows += 0.02 * (len(logits) - self._rows)
        return alive

    @staticmethod
    def _below(branches: Branches, node: int) -> list[tuple[int, int]]:
        return [(n, branches.tokens[n]) for n, parent in enumerate(branches.parents) if parent == node]

    def _choose(self, growth: DraftGrowth, row: Tensor, noise: DraftNoise) -> bool:
        """The model's next token; whether the chain may grow behind it."""
        seq, history = growth.seq, growth.seq.pipeline.needs_history
        output = seq.token_ids[seq.num_prompt_tokens :] if history else ()
        scores = seq.pipeline.process(row, output, growth.tokens if history else ())
        if noise.shared:
            picks = noise.candidates(seq, scores, len(seq.token_ids) + len(growth.tokens), 1)
        else:
            picks = [int(scores.argmax())]
        if not picks:
            return False
        growth.add(len(growth.tokens) - 1, 0, picks[0], chances(scores, picks)[0], None, 1)
        return len(growth.tokens) < growth.levels and growth.reach[-1] >= self.confidence_floor

    def _finished(self, growth: DraftGrowth) -> Draft:
        """The chain and the branches behind it."""
        chain = len(growth.tokens)
        if not chain:
            return EMPTY
        branches = self._after(growth, min(self.extra_tokens, growth.budget - chain))
        scores = [
            _NEXT if parent >= 0 else _FIRST[min(rank, len(_FIRST) - 1)]
            for parent, rank in zip(branches.parents, branches.ranks, strict=True)
        ]
        parents = [parent + chain if parent >= 0 else chain - 1 for parent in branches.parents]
        return Draft(
            tokens=[*growth.tokens, *branches.tokens],
            parents=[*range(-1, chain - 1), *parents],
            scores=[*growth.scores, *scores],
            source=self.method,
            sources=[*[self.method] * chain, *branches.origins],
        )


def build(config: SpeculativeConfig, context: DrafterContext) -> Ouroboros:
    """The drafter of method ``ouroboros``; the engine loads the model and has compared the vocabularies."""
    if context.load_draft is None:
        raise ConfigError("method ouroboros needs an engine that can load models")
    return Ouroboros(
        context.load_draft(config),
        context.vocab_size,
        context.eos_ids,
        phrases=config.ouroboros_phrases,
        ngram=config.ouroboros_ngram,
        keep_pool=config.ouroboros_keep_pool,
    )
