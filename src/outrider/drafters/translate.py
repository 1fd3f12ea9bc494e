"""A model drafter whose model has another vocabulary than the target's (arXiv 2502.05202).

The draft model reads the transcript of a sequence and grows its draft in its own tokens; what it sees as the sequence,
its logits pipeline and its noise are stand-ins that translate:

  - *tli*: its law is restricted to the tokens that both vocabularies have, processed over the target's ids as the
    target's law is, and renormalised. Shared noise is that of the target's token.
  - *slem*: it writes in its whole vocabulary, choosing first the target's token that comes next (with the noise of
    that) and then its likeliest token that begins so; the text of every path is tokenised for the target, behind the
    text before the root. All edges are delta.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from outrider.core.draft import EMPTY, Draft, Iid, Law
from outrider.drafters.base import Committed, Drafter, DraftNoise, DraftSequence
from outrider.drafters.transcript import Transcript
from outrider.target.spelling import CONTINUATION, whole_characters
from outrider.target.token_map import TokenMap

if TYPE_CHECKING:
    from outrider.cache.pool import BlockPool
    from outrider.core.logits import LogitsPipeline

_LEFT = 4  # tokens up to the root that the text of a draft is tokenised behind


class Translated(Drafter):
    """``inner`` drafts in its own vocabulary, which ``token_map`` ties to the target's."""

    def __init__(self, inner: Drafter, token_map: TokenMap) -> None:
        self.inner, self.token_map = inner, token_map
        self.method, self.needs, self.max_levels = inner.method, inner.needs, inner.max_levels
        self.note = token_map.describe()
        self._mirrors: dict[int, Mirror] = {}

    def seconds(self, num_sequences: int, num_tokens: int) -> float:
        """Time of the inner drafter."""
        return self.inner.seconds(num_sequences, num_tokens)

    def kv_pools(self) -> Mapping[str, BlockPool]:
        """Those of the inner drafter."""
        return self.inner.kv_pools()

    def nodes(self, levels: int) -> int:
        """Those of the inner drafter."""
        return self.inner.nodes(levels)

    def _mirror(self, seq: DraftSequence) -> Mirror:
        mirror = self._mirrors.get(seq.seq_id)
        if mirror is None:
            mirror = self._mirrors[seq.seq_id] = Mirror(seq, self.token_map)
            mirror.transcript.follow(seq.token_ids, 0)
        mirror.seq = seq
        return mirror

    def begin(self, seq: DraftSequence, hidden: Tensor | None = None) -> None:
        """Transcribe the sequence; the inner drafter begins with that."""
        mirror = self._mirror(seq)
        if mirror.token_ids:
            self.inner.begin(mirror)

    def propose(self, sequences: Sequence[DraftSequence], budgets: Sequence[int], noise: DraftNoise) -> list[Draft]:
        """The inner drafter's drafts in the target's tokens."""
        self.inner.stop_below(self.confidence_floor, self.chance_of)
        mirrors = [self._mirror(seq) for seq in sequences]
        asked = [at for at, mirror in enumerate(mirrors) if mirror.token_ids]
        drafts = self.inner.propose(
            [mirrors[at] for at in asked], [budgets[at] for at in asked], _Noise(noise, self.token_map)
        )
        out = [EMPTY] * len(sequences)
        for at, draft in zip(asked, drafts, strict=True):
            if self.token_map.by_text:
                out[at] = retokenised(draft, sequences[at].token_ids, self.token_map, budgets[at])
            else:
                out[at] = mapped(draft, self.token_map)
        return out

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Extend the transcript; where it changed before its end, the inner drafter goes back to there."""
        if seq.seq_id in self._mirrors:
            self._follow(self._mirror(seq), len(seq.token_ids) - len(committed.token_ids))

    def truncate(self, seq: DraftSequence, length: int) -> None:
        """Cut the transcript, and the inner drafter with it."""
        if seq.seq_id in self._mirrors:
            self._follow(self._mirror(seq), length)

    def _follow(self, mirror: Mirror, known: int) -> None:
        before = len(mirror.token_ids)
        same = mirror.transcript.follow(mirror.seq.token_ids, known)
        ids = mirror.token_ids
        if same < before:  # what stays computed is what stayed the same, but for the root
            self.inner.truncate(mirror, min(same + 1, len(ids)))
        elif len(ids) > before:
            self.inner.observe(mirror, Committed(ids[before:]))

    def release(self, seq: DraftSequence) -> None:
        """Forget the sequence."""
        mirror = self._mirrors.pop(seq.seq_id, None)
        if mirror is not None:
            self.inner.release(mirror)

    def close(self) -> None:
        """Free what the inner drafter holds."""
        self._mirrors.clear()
        self.inner.close()


class Mirror:
    """A sequence as the inner drafter sees it."""

    def __init__(self, seq: DraftSequence, token_map: TokenMap) -> None:
        self.seq, self.transcript = seq, Transcript(token_map)
        self._pipeline = _Pipeline(self, token_map)
        self.prediction: Sequence[int] = ()

    @property
    def seq_id(self) -> int:
        return self.seq.seq_id

    @property
    def task(self) -> str:
        return self.seq.task

    @property
    def cache_salt(self) -> str:
        return self.seq.cache_salt

    @property
    def token_ids(self) -> list[int]:
        return self.transcript.ids

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.transcript.ids)  # the pipeline knows the output without being told

    @property
    def pipeline(self) -> LogitsPipeline:
        return cast("LogitsPipeline", self._pipeline)

    @property
    def scores(self) -> Tensor:
        """Scores [target vocab] of the node that was processed last."""
        assert self._pipeline.scores is not None
        return self._pipeline.scores

    @property
    def position(self) -> int:
        """The target's position of what that node's children are."""
        return len(self.seq.token_ids) + len(self._pipeline.path)


@dataclass(slots=True)
class _Pipeline:
    """The request's pipeline for rows [draft vocab]: the law is made over the target's ids."""

    mirror: Mirror
    token_map: TokenMap
    scores: Tensor | None = None
    path: list[int] = field(default_factory=list)  # the target's tokens from the root to the node
    needs_history: bool = True

    @property
    def greedy(self) -> bool:
        return self.mirror.seq.pipeline.greedy

    def process(self, raw: Tensor, output_ids: Sequence[int] = (), path: Sequence[int] = ()) -> Tensor:
        seq = self.mirror.seq
        wide = self.token_map.widen(raw)
        self.path = [token for mine in path for token in self.token_map.spell(mine)]
        output = seq.token_ids[seq.num_prompt_tokens :] if seq.pipeline.needs_history else ()
        self.scores = seq.pipeline.process(wide, output, self.path)
        return self.token_map.narrow(self.scores, raw, wide)


class _Noise:
    """The step's noise for a drafter that sees mirrors."""

    def __init__(self, noise: DraftNoise, token_map: TokenMap) -> None:
        self._noise, self._map = noise, token_map
        self.shared = noise.shared or token_map.by_text  # texts have no law: they are chosen, not sampled
        self.merge_paths = noise.merge_paths
        self._meant: dict[int, int] = {}  # the target's token behind each of the latest candidates

    def candidates(self, seq: DraftSequence, scores: Tensor, position: int, count: int) -> list[int]:
        mirror = cast(Mirror, seq)
        if self._noise.shared:
            ids = self._noise.candidates(mirror.seq, mirror.scores, mirror.position, count)
        else:
            best, order = mirror.scores.topk(count)
            ids = order[best > -torch.inf].tolist()
        chosen = [self._map.choose(id_, scores) for id_ in ids]
        self._meant = dict(zip(reversed(chosen), reversed(ids), strict=True))
        return chosen

    def perturbed(self, seq: DraftSequence, scores: Tensor, position: int, tokens: Sequence[int]) -> Tensor:
        mirror = cast(Mirror, seq)
        ids = [self._meant[token] for token in tokens]
        if self._noise.shared:
            return self._noise.perturbed(mirror.seq, mirror.scores, mirror.position, ids)
        return mirror.scores[torch.tensor(ids)].double()

    def sample(self, seq: DraftSequence, weights: Tensor, position: int, index: int) -> int:
        mirror = cast(Mirror, seq)
        return self._noise.sample(mirror.seq, weights, mirror.position, index)

    def inner_key(self, seq: DraftSequence) -> int:
        return self._noise.inner_key(cast(Mirror, seq).seq)


def mapped(draft: Draft, token_map: TokenMap) -> Draft:
    """``draft`` with the target's ids and its laws over the target's vocabulary."""
    laws: dict[int, Law] = {}
    for law in draft.laws or ():
        if id(law) not in laws:
            laws[id(law)] = Iid(token_map.over_target(law.q)) if isinstance(law, Iid) else law
    return replace(
        draft,
        tokens=[token_map.to_target[token] for token in draft.tokens],
        laws=None if draft.laws is None else [laws[id(law)] for law in draft.laws],
    )


def retokenised(draft: Draft, token_ids: Sequence[int], token_map: TokenMap, budget: int) -> Draft:
    """The texts of all paths of ``draft`` as one tree of the target's tokens, the likeliest ``budget`` nodes of it."""
    left = b"".join(token_map.target.bytes_of[token] for token in token_ids[-_LEFT:])
    left = left.lstrip(CONTINUATION)  # the rest of a character that began further left
    scores = draft.scores or [1.0] * len(draft)
    tokens: list[int] = []
    parents: list[int] = []
    reach: list[float] = []
    known: dict[tuple[int, int], int] = {}
    for leaf in (node for node, children in enumerate(draft.children()[1:]) if not children):
        node = -1
        for token, chance in _text_path(draft, draft.path(leaf), scores, token_map, left):
            child = known.setdefault((node, token), len(tokens))
            if child == len(tokens):
                tokens.append(token)
                parents.append(node)
                reach.append(chance)
            reach[child] = max(reach[child], chance)
            node = child
    above = [reach[parent] if parent >= 0 else 1.0 for parent in parents]
    tree = Draft(
        tokens,
        parents,
        scores=[mine / other if other > 0.0 else 0.0 for mine, other in zip(reach, above, strict=True)],
        source=draft.source,
    )
    best = sorted(range(len(tokens)), key=lambda node: (-reach[node], node))[:budget]
    return tree.keep(sorted(best)) if best else EMPTY


def _text_path(
    draft: Draft, nodes: Sequence[int], scores: Sequence[float], token_map: TokenMap, left: bytes
) -> list[tuple[int, float]]:
    """The target's tokens for the text of one path, and the chance that it gets so far as each of them."""
    data, ends, chance = b"", [], 1.0
    last: list[tuple[int, float]] = []
    for node in nodes:
        chance *= scores[node]
        text = token_map.draft.bytes_of[draft.tokens[node]]
        if not text:  # nothing is drafted behind a special token
            last = [(token_map.to_target[draft.tokens[node]], chance)]
            break
        data += text
        ends.append((len(data), chance))
    out, at = [], 0
    for token in token_map.target.encode(data if last else whole_characters(data), left):
        at += len(token_map.target.bytes_of[token])
        out.append((token, next((reached for end, reached in ends if end >= at), chance)))
    return out + last
