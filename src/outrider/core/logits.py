"""The logits pipeline: raw logits of one row and that node's own history -> the processed law, for target and drafters.

The order is vLLM's:

| step | sees | default |
|---|---|---|
| the language of a structured output | output, path | all |
| allowed token ids | - | all |
| bad words (the last token of a word whose beginning has just been written) | output, path | none |
| min_tokens (EOS and stop ids masked below it) | length of output and path | 0 |
| logit bias | - | none |
| repetition, frequency, presence penalties | prompt (repetition only), output, path | 1, 0, 0 |
| temperature; at 0 the law is the one-hot of the argmax and what follows is skipped | - | 1 |
| min-p | - | 0 |
| typical-p (not in vLLM; here where min-p is) | - | 1 |
| top-k (ties with the k-th best are kept) | - | off |
| top-p (over what top-k left; ties to the lowest id) | - | 1 |

A temperature below 1e-5 counts as 0, as in vLLM. Scores are log p up to a constant, float32, -infinity = masked.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from outrider.core.constraint import Constraint
from outrider.core.filters import min_p_, top_k_, top_p_, typical_p_
from outrider.core.penalties import Penalties
from outrider.errors import ContractError, NumericsError, RequestError

_GREEDY_BELOW = 1e-5
_ALL_MASKED = "every token is masked: loosen structured_outputs, allowed_token_ids, bad_words, logit_bias or min_tokens"


class LogitsPipeline:
    """All sampling parameters of one request that shape its law; immutable, and the same for target and drafters.

    ``vocab_size`` is the width of a row of raw logits. ``bad_words_ids``: one token sequence per bad word.
    ``stop_token_ids`` and ``eos_ids`` are only masked by ``min_tokens``. ``constraint``: of one sequence alone.
    Raises RequestError for ids outside the vocabulary and values out of range.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        prompt_ids: Sequence[int] = (),
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        typical_p: float = 1.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        bad_words_ids: Sequence[Sequence[int]] = (),
        allowed_token_ids: Sequence[int] | None = None,
        min_tokens: int = 0,
        eos_ids: Collection[int] = frozenset(),
        stop_token_ids: Collection[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        self.vocab_size, self.constraint = vocab_size, constraint
        if not 0.0 <= temperature < math.inf:
            raise RequestError(f"temperature={temperature}: it must be 0 or a finite positive number")
        self.temperature = 0.0 if temperature < _GREEDY_BELOW else temperature
        self._top_k, self._top_p, self._min_p, self._typical_p = top_k, top_p, min_p, typical_p
        self._check_ranges()
        self._penalties = Penalties(
            self._ids("prompt", prompt_ids), repetition_penalty, presence_penalty, frequency_penalty
        )
        self._bias = dict(logit_bias or {})
        self._ids("logit_bias", list(self._bias))
        if any(math.isnan(value) or value == math.inf for value in self._bias.values()):
            raise RequestError("logit_bias holds NaN or +infinity: use finite values")
        words = [tuple(self._ids("bad_words", word)) for word in bad_words_ids if word]
        self._bad_words = [(word[:-1], word[-1]) for word in words if len(word) > 1]
        self._bad_tail = max((len(prefix) for prefix, _ in self._bad_words), default=0)
        self._always_masked = self._static_mask(allowed_token_ids, [word[0] for word in words if len(word) == 1])
        self._min_tokens = min_tokens
        self._ends = sorted({*self._ids("eos_ids", eos_ids), *self._ids("stop_token_ids", stop_token_ids)})

    def _check_ranges(self) -> None:
        if self._top_k < -1:
            raise RequestError(f"top_k={self._top_k}: use 0 or -1 for off, or a positive number")
        if not 0.0 < self._top_p <= 1.0:
            raise RequestError(f"top_p={self._top_p}: it must be in (0, 1]")
        if not 0.0 < self._typical_p <= 1.0:
            raise RequestError(f"typical_p={self._typical_p}: it must be in (0, 1]")
        if not 0.0 <= self._min_p <= 1.0:
            raise RequestError(f"min_p={self._min_p}: it must be in [0, 1]")

    def _ids(self, setting: str, ids: Collection[int]) -> Collection[int]:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise RequestError(
                    f"{setting}: token id {token} is outside the vocabulary of {self.vocab_size}; remove it"
                )
        return ids

    def _static_mask(self, allowed: Sequence[int] | None, banned: Sequence[int]) -> Tensor | None:
        """Bool [vocab], true where a token is never allowed; None when all are."""
        if allowed is None and not banned:
            return None
        mask = torch.zeros(self.vocab_size, dtype=torch.bool)
        if allowed is not None:
            mask.fill_(True)
            mask[torch.tensor(list(self._ids("allowed_token_ids", allowed)), dtype=torch.int64)] = False
        mask[torch.tensor(list(banned), dtype=torch.int64)] = True
        if bool(mask.all()):
            raise RequestError("allowed_token_ids and bad_words leave no token: allow at least one")
        return mask

    @property
    def greedy(self) -> bool:
        """Temperature 0: the law is one-hot."""
        return self.temperature == 0.0

    @property
    def plain(self) -> bool:
        """Nothing changes the argmax: at temperature 0 the next token is the argmax of the raw row."""
        return not self.needs_history and self._always_masked is None and not self._bias

    @property
    def needs_history(self) -> bool:
        """The law depends on output or path, not on the raw row alone."""
        masks = bool(self._bad_words) or (self._min_tokens > 0 and bool(self._ends))
        return self._penalties.active or masks or self.constraint is not None

    @property
    def _filters(self) -> bool:
        return self._min_p > 0.0 or self._typical_p < 1.0 or self._top_k > 0 or self._top_p < 1.0

    def process(self, raw: Tensor, output_ids: Sequence[int] = (), path: Sequence[int] = ()) -> Tensor:
        """Scores [vocab] float32: log p up to a constant, -infinity = masked; at temperature 0 its argmax is p.

        ``raw``: [vocab], any float dtype, not written to (the result may share its memory when nothing applies).
        ``output_ids``: tokens generated so far, the root included; ``path``: the drafted tokens that lead from the
        root to this node, the node itself included. Raises NumericsError when ``raw`` holds NaN or +infinity, or when
        no token is left.
        """
        if raw.shape != (self.vocab_size,):
            raise ContractError(f"logits of shape {tuple(raw.shape)} for a vocabulary of {self.vocab_size}")
        _check_finite(raw, "every logit is -infinity: check the model's weights and dtype")
        scores = raw.to(torch.float32)
        if not self.plain:
            scores = self._edit(scores.clone() if scores is raw else scores, output_ids, path)
        if self.greedy:
            return scores
        if self.temperature != 1.0:
            scores = scores / self.temperature
        elif self._filters and scores is raw:
            scores = scores.clone()
        self._filter_(scores)
        return scores

    def probs(
        self,
        raw: Tensor,
        output_ids: Sequence[int] = (),
        path: Sequence[int] = (),
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """p [vocab] in ``dtype``; at temperature 0 the one-hot of the argmax (lowest id on ties)."""
        scores = self.process(raw, output_ids, path)
        if not self.greedy:
            return torch.softmax(scores.to(dtype), 0)
        p = torch.zeros(self.vocab_size, dtype=dtype, device=raw.device)
        p[scores.argmax()] = 1.0
        return p

    def _edit(self, scores: Tensor, output_ids: Sequence[int], path: Sequence[int]) -> Tensor:
        """Everything before temperature, in place on a copy of the raw row."""
        if self.constraint is not None and (allowed := self.constraint.allowed([*output_ids, *path])) is not None:
            scores.masked_fill_(~allowed.to(scores.device), -math.inf)
        if self._always_masked is not None:
            if self._always_masked.device != scores.device:
                self._always_masked = self._always_masked.to(scores.device)
            scores.masked_fill_(self._always_masked, -math.inf)
        banned = self._banned_now(output_ids, path)
        if banned:
            scores[torch.tensor(banned, dtype=torch.int64, device=scores.device)] = -math.inf
        if self._bias:
            ids = torch.tensor(list(self._bias), dtype=torch.int64, device=scores.device)
            scores[ids] += torch.tensor(list(self._bias.values()), dtype=torch.float32, device=scores.device)
        if self._penalties.active:
            self._penalties.apply_(scores, output_ids, path)
        _check_finite(scores, _ALL_MASKED)
        return scores

    def _banned_now(self, output_ids: Sequence[int], path: Sequence[int]) -> list[int]:
        """Ids masked at this node because of its history."""
        banned = list(self._ends) if len(output_ids) + len(path) < self._min_tokens else []
        if self._bad_words:
            tail = (*output_ids[-self._bad_tail :], *path)
            banned += [last for prefix, last in self._bad_words if tail[-len(prefix) :] == prefix]
        return banned

    def _filter_(self, scores: Tensor) -> None:
        if self._min_p > 0.0:
            min_p_(scores, self._min_p)
        if self._typical_p < 1.0:
            typical_p_(scores, self._typical_p)
        if self._top_k > 0:
            top_k_(scores, self._top_k)
        if self._top_p < 1.0:
            top_p_(scores, self._top_p)


def _check_finite(row: Tensor, when_all_masked: str) -> None:
    highest = float(row.max())
    if math.isnan(highest) or highest == math.inf:
        raise NumericsError("logits hold NaN or +infinity: check the model's weights and dtype, or the penalties")
    if highest == -math.inf:
        raise NumericsError(when_all_masked)
