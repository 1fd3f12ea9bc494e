"""Counter-based noise: every random number is a pure function of a key, a position and an id.

Shared noise (arXiv 2408.07978). Token ``v`` at absolute position ``t`` under ``key`` gets

    word0, word1 = 64-bit mix of (key, t), split in two
    x = mix32(mix32(v ^ word0) ^ word1)                    32 bits
    u = (x + 0.5) / 2^32                                   exact in float64
    g = -log(-log(u))                                      standard Gumbel, within [GUMBEL_MIN, GUMBEL_MAX]

so that ``argmax over v of log p(v) + g`` is a sample of p. The logarithm is a fixed sequence of IEEE float64 operations
(no fused multiply-add, no libm): scalar, vector, native and GPU code agree to the last bit. All 32-bit products stay
below 2^63, so int64 tensors never overflow.

Streams serve the classical verification rules, which look at later draws before they decide about earlier ones: their
numbers are keyed by (key, purpose, root position, node, index) and never overlap with the shared noise.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor

from outrider.errors import ContractError, NumericsError

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A, _MIX_B = 0x21F0AAAD, 0x735A2D97  # 32-bit mixer found by exhaustive bias search (hash-prospector)
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_LN2 = 0.6931471805599453
_ATANH = (1 / 15, 1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0)  # highest power first
_SCALE32 = 2.0**-32
_TAGS = {"key": 1, "seed": 2, "shared": 3, "stream": 4, "inner": 5}


def mix64(value: int) -> int:
    """One splitmix64 finaliser round: a bijection on 64-bit integers."""
    value = (value + _GOLDEN) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def _combine(tag: str, *words: int) -> int:
    state = mix64(_TAGS[tag])
    for word in words:
        state = mix64(state ^ (word & _MASK64))
    return state


def noise_key(seed: int, sample_index: int) -> int:
    """The 64-bit key of sample ``sample_index`` (of ``n``) of a request with ``seed`` (any integer)."""
    return _combine("key", seed, sample_index)


def derive_seed(engine_seed: int, prompt_index: int) -> int:
    """The seed, in [0, 2^63), of an offline request that brought none."""
    return _combine("seed", engine_seed, prompt_index) >> 1


def inner_key(key: int, root_position: int) -> int:
    """The 64-bit key under which a draft of the step rooted at ``root_position`` is drawn independently of ``key``."""
    return _combine("inner", key, root_position)


def noise_words(key: int, position: int) -> tuple[int, int]:
    """The two 32-bit words that all tokens at one absolute ``position`` share; native code takes these."""
    state = _combine("shared", key, position)
    return state & 0xFFFFFFFF, state >> 32


def _mix32_scalar(x: int) -> int:
    x ^= x >> 16
    x = (x * _MIX_A) & 0xFFFFFFFF
    x ^= x >> 15
    x = (x * _MIX_B) & 0xFFFFFFFF
    return x ^ (x >> 15)


def _log_scalar(value: float) -> float:
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    exponent = (bits - _SQRT_HALF_BITS) >> 52
    (mantissa,) = struct.unpack("<d", struct.pack("<q", bits - (exponent << 52)))
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = _ATANH[0]
    for coefficient in _ATANH[1:]:
        series = series * z + coefficient
    return float(float(exponent) * _LN2 + (s + s) * series)


def _gumbel_of_bits(x: int) -> float:
    return -_log_scalar(-_log_scalar((x + 0.5) * _SCALE32))


def gumbel_scalar(key: int, position: int, token_id: int) -> float:
    """The noise of one token, in plain Python: the reference that every other implementation equals bit for bit."""
    word0, word1 = noise_words(key, position)
    return _gumbel_of_bits(_mix32_scalar(_mix32_scalar(token_id ^ word0) ^ word1))


GUMBEL_MIN = _gumbel_of_bits(0)
GUMBEL_MAX = _gumbel_of_bits(0xFFFFFFFF)


def _mix32(x: Tensor) -> Tensor:
    x = x ^ (x >> 16)
    x.mul_(_MIX_A).bitwise_and_(0xFFFFFFFF)
    x.bitwise_xor_(x >> 15)
    x.mul_(_MIX_B).bitwise_and_(0xFFFFFFFF)
    return x.bitwise_xor_(x >> 15)


def _bits(key: int, position: int, token_ids: Tensor) -> Tensor:
    """The 32 random bits of ``token_ids`` [n] int64, as int64 [n]."""
    word0, word1 = noise_words(key, position)
    return _mix32(_mix32(token_ids ^ word0).bitwise_xor_(word1))


def _log(value: Tensor) -> Tensor:
    """Natural logarithm of positive normal float64; one rounding per operation, as in ``_log_scalar``."""
    bits = value.view(torch.int64)
    exponent = (bits - _SQRT_HALF_BITS) >> 52
    mantissa = (bits - (exponent << 52)).view(torch.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    z = s * s
    series = torch.full_like(z, _ATANH[0])
    for coefficient in _ATANH[1:]:
        series.mul_(z).add_(coefficient)
    return exponent.to(torch.float64).mul_(_LN2).add_((s + s).mul_(series))


def _gumbel(bits: Tensor) -> Tensor:
    u = bits.to(torch.float64).add_(0.5).mul_(_SCALE32)
    return _log(_log(u).neg_()).neg_()


def gumbel(
    key: int,
    position: int,
    vocab_size: int,
    token_ids: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Standard Gumbel noise, float64 [vocab_size], or [n] for int64 ``token_ids`` [n] with the very same bits.

    ``device`` is where the full vector is made; a subset stays on the device of its ids.
    """
    if token_ids is None:
        token_ids = torch.arange(vocab_size, dtype=torch.int64, device=device)
    return _gumbel(_bits(key, position, token_ids.to(torch.int64)))


def _candidates(scores: Tensor, key: int, position: int, count: int) -> tuple[Tensor, Tensor]:
    """Ids (ascending) and exact perturbed scores of a set that holds the ``count`` best tokens of ``scores`` [vocab].

    A token is dropped only when an upper bound of its perturbed score is below a value that ``count`` tokens reach.
    The bound is -log(-log u) <= -log(1 - u), raised by more than the rounding of any logarithm.
    """
    ids = torch.nonzero(scores != -math.inf).flatten()
    finite = scores if ids.numel() == scores.numel() else scores[ids]
    finite = finite.to(torch.float64)
    bits = _bits(key, position, ids)
    if ids.numel() <= max(64, 2 * count):
        return ids, finite + _gumbel(bits)
    tail = bits.to(torch.float64).neg_().add_(2.0**32 - 0.5).mul_(_SCALE32)
    bound = finite - tail.log_() + 1e-6
    probe = torch.topk(bound, count).indices
    threshold = (finite[probe] + _gumbel(bits[probe])).min()
    keep = torch.nonzero(bound >= threshold).flatten()
    return ids[keep], finite[keep] + _gumbel(bits[keep])


def _check_scores(scores: Tensor) -> None:
    highest = float(scores.max())
    if math.isnan(highest) or highest == math.inf:
        raise NumericsError("scores hold NaN or +infinity: check the model's weights and dtype")
    if highest == -math.inf:
        raise NumericsError("every token is masked: loosen allowed_token_ids, bad_words or min_tokens")


def gumbel_argmax(scores: Tensor, key: int, position: int) -> int:
    """A sample of softmax(``scores``): argmax of float64(scores) + noise, ties to the lowest id.

    ``scores``: [vocab], log p up to a constant, -infinity = masked. Raises NumericsError on NaN, +infinity, or when
    every token is masked.
    """
    _check_scores(scores)
    ids, values = _candidates(scores, key, position, 1)
    return int(ids[values.argmax()])


def gumbel_topk(scores: Tensor, key: int, position: int, k: int) -> list[int]:
    """The ``k`` best ids of ``scores`` [vocab] + noise, best first, ties to the lowest id: k draws without replacement.

    Shorter than ``k`` when fewer tokens are unmasked. Raises NumericsError like ``gumbel_argmax``.
    """
    _check_scores(scores)
    if k <= 0:
        return []
    ids, values = _candidates(scores, key, position, min(k, scores.numel()))
    order = torch.sort(values, descending=True, stable=True).indices[:k]
    picked: list[int] = ids[order].tolist()
    return picked


@lru_cache(maxsize=1024)
def _purpose_word(purpose: str) -> int:
    return int.from_bytes(blake2b(purpose.encode(), digest_size=8).digest(), "little")


class Stream:
    """Uniform numbers for one ``purpose`` of the step whose root stands at ``root_position``."""

    def __init__(self, key: int, purpose: str, root_position: int) -> None:
        self._words = (key, _purpose_word(purpose), root_position)

    def uniform(self, node: int, index: int = 0) -> float:
        """A multiple of 2^-53 in the open interval (0, 1), independent for every (node, index); nodes may be -1."""
        state = _combine("stream", *self._words, node, index)
        return ((state >> 12) * 2 + 1) * 2.0**-53


def categorical(weights: Tensor, uniform: float) -> int:
    """The index that inverse-CDF sampling in float64 picks from ``weights`` [n] for a ``uniform`` in (0, 1).

    Never an index of weight zero. Raises NumericsError for negative, NaN or infinite weights, or when all are zero.
    """
    wide = weights.detach().to(device="cpu", dtype=torch.float64)
    cumulative = wide.cumsum(0)
    total = float(cumulative[-1])
    if not (0.0 < total < math.inf) or float(wide.min()) < 0.0:
        raise NumericsError("weights of a categorical draw must be non-negative and finite, with a positive sum")
    index = int(torch.searchsorted(cumulative, uniform * total, right=True))
    return index if index < wide.numel() else int(torch.nonzero(wide)[-1])


class StreamRandomness:
    """``Randomness`` of the classical rules for one walk; refuses to make the same draw twice."""

    def __init__(self, key: int, root_position: int) -> None:
        self._key = key
        self._root_position = root_position
        self._drawn: set[tuple[str, int]] = set()

    def _uniform(self, purpose: str, node: int) -> float:
        if (purpose, node) in self._drawn:
            raise ContractError(f"verifier drew {purpose!r} at node {node} twice: give each draw its own purpose")
        self._drawn.add((purpose, node))
        return Stream(self._key, purpose, self._root_position).uniform(node)

    def categorical(self, weights: Tensor, purpose: str, node: int) -> int:
        """An index drawn in proportion to ``weights`` [vocab] (non-negative, not all zero)."""
        return categorical(weights, self._uniform(purpose, node))

    def bernoulli(self, probability: float, purpose: str, node: int) -> bool:
        """True with ``probability`` (values above one count as one)."""
        return self._uniform(purpose, node) < probability
