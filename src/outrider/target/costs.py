"""The cost curve t(rows): how long one forward of this model takes on this machine, by number of rows."""

from __future__ import annotations

import bisect
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from outrider import native
from outrider.paths import cache_dir
from outrider.target.batch import Span
from outrider.target.model import Target
from outrider.target.skip import ATTENTION, MLP

log = logging.getLogger(__name__)

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64)
CONTEXT, FAR = 256, 1024
_LEAST = 0.5  # a shorter context saves no more than this of a forward of one row
_BLOCK = 16
_SPOTS = (1, 4)  # rows at which a stored curve is compared with the machine as it is
_FASTER = 0.75
_GOLDEN = 0.6180339887  # steps of this share of a range cover it evenly
_VERSION = 7


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Seconds of a forward at given numbers of rows; linear in between, extended by the last slope.

    ``context``: tokens behind the rows when it was measured. ``per_token``: seconds that a row takes for each token
    more of its own context, and ``per_read``: those that a sequence takes once for all of its rows.
    """

    rows: Sequence[int]
    seconds: Sequence[float]
    context: int = 0
    per_token: float = 0.0
    per_read: float = 0.0

    def behind(self, tokens: float, num_sequences: int) -> Callable[[int], float]:
        """The curve of ``num_sequences`` sequences with so many ``tokens`` of context each, on average."""
        more = tokens - self.context
        least = _LEAST * self.seconds[0]
        read = self.per_read * num_sequences * more
        return lambda rows: max(least, self(rows) + read + self.per_token * rows * more)

    def __call__(self, rows: int) -> float:
        """Seconds for ``rows`` rows. A curve of one point grows in proportion."""
        if len(self.rows) == 1:
            return self.seconds[0] * rows / self.rows[0]
        at = min(max(bisect.bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        low, high = self.rows[at - 1], self.rows[at]
        slope = (self.seconds[at] - self.seconds[at - 1]) / (high - low)
        return self.seconds[at - 1] + slope * (rows - low)


def monotone(rows: Sequence[int], seconds: Sequence[float]) -> CostCurve:
    """A curve that never falls: more rows cannot cost less, whatever noise says."""
    best = list(seconds)
    for i in range(len(best) - 2, -1, -1):
        best[i] = min(best[i], best[i + 1])
    return CostCurve(tuple(rows), tuple(best))


def with_context(near: CostCurve, far: CostCurve, context: int, tokens: int) -> CostCurve:
    """``near``, measured at ``context`` tokens, with what ``far``, of two points at ``tokens``, says of longer ones."""
    few, many = far.rows
    added = [max(0.0, far(n) - near(n)) / (tokens - context) for n in (few, many)]
    per_token = max(0.0, (added[1] - added[0]) / (many - few))
    return replace(near, context=context, per_token=per_token, per_read=max(0.0, added[0] - few * per_token))


def measure(
    forward: Callable[[int], None], rows: Sequence[int] = ROWS, rounds: int = 5, limit: float = 6.0
) -> CostCurve:
    """Time ``forward(n)`` over ``rows`` in alternating rounds, within about ``limit`` seconds; the best of each counts.

    The best, because others use the machine too.
    """
    taken: list[list[float]] = [[] for _ in rows]
    start = time.perf_counter()
    forward(rows[-1])
    for number in range(rounds):
        for index, n in enumerate(rows):
            begin = time.perf_counter()
            forward(n)
            taken[index].append(time.perf_counter() - begin)
        if number >= 1 and time.perf_counter() - start > limit:
            break
    return monotone(rows, [min(times) for times in taken])


def spread_tokens(count: int, vocab_size: int) -> list[int]:
    """``count`` ids spread over the vocabulary, distinct as long as there are as many; other ones for another count.

    Equal rows would be sent to the same experts of a mixture, and its weights would look as cheap to read for many rows
    as for one. Ids of another count find none of these experts in the processor's cache.
    """
    step = max(1, int(_GOLDEN * vocab_size))
    while math.gcd(step, vocab_size) != 1:
        step += 1
    return [(count * count + row) * step % vocab_size for row in range(count)]


def curve_of(target: Target, skip: bytes | None = None) -> CostCurve:
    """The target's curve at 256 tokens of context and what a longer one adds, measured once per model, format, skip
    mask, threads and machine.

    Rows are of tokens that have nothing to do with one another. On a mixture of experts, rows of one text share more of
    their experts and cost somewhat less: what steps really take corrects the curve (``Pace``).
    A stored curve is measured again when the machine turns out faster now: it was taken while others used it.
    """
    context_len = min(CONTEXT, target.max_model_len // 2)
    rows = [n for n in ROWS if context_len + n <= target.max_model_len]
    far = min(FAR, target.max_model_len - rows[-1])
    slots = -(-(max(context_len, far) + rows[-1]) // _BLOCK) * _BLOCK
    storage = target.new_storage(slots, _BLOCK)
    context = torch.arange(slots, dtype=torch.int32)

    def forward(n: int, tokens: int = context_len) -> None:
        target.forward([Span(spread_tokens(n, target.vocab_size), context, tokens)], storage, skip=skip)

    stored = _stored(target, skip)
    if stored is not None and not _too_slow(stored, forward, [n for n in _SPOTS if n in rows]):
        return stored
    curve = measure(forward, rows)
    if far >= 2 * context_len and 8 in rows:
        curve = with_context(curve, measure(partial(forward, tokens=far), (1, 8)), context_len, far)
    _store(target, curve, skip)
    return curve


def _too_slow(curve: CostCurve, forward: Callable[[int], None], rows: Sequence[int]) -> bool:
    """Whether forwards of ``rows`` now take clearly less time than ``curve`` says."""
    now = measure(forward, rows, rounds=2)
    return any(seconds < _FASTER * curve(n) for n, seconds in zip(now.rows, now.seconds, strict=True))


def _stored(target: Target, skip: bytes | None) -> CostCurve | None:
    try:
        stored = json.loads(_path(target, skip).read_text())
        return CostCurve(**{**stored, "rows": tuple(stored["rows"]), "seconds": tuple(stored["seconds"])})
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or cut short: it is measured
        return None


def _store(target: Target, curve: CostCurve, skip: bytes | None = None) -> None:
    try:
        path = _path(target, skip)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(curve)))
        temporary.replace(path)
    except OSError as error:
        log.warning("the cost curve is not kept (%s): set OUTRIDER_CACHE to a folder of yours", error)


def _path(target: Target, skip: bytes | None) -> Path:
    config = target.config
    shape = (config.model_type, config.hidden_size, config.num_hidden_layers, config.vocab_size, target.weight_bytes)
    experts = getattr(config, "num_experts_per_tok", None)
    left = () if skip is None else _layers_left(skip)
    key = (
        _VERSION,
        *shape,
        experts,
        target.dtype_name,
        target.backend.name,
        target.lean,
        native.threads(),
        _machine(),
        *left,
    )
    return cache_dir("costs") / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:20]}.json"


def _layers_left(skip: bytes) -> tuple[int, int]:
    """Attention and MLP sublayers that run: layers have one shape, so that which of them are left does not matter."""
    return sum(not bits & ATTENTION for bits in skip), sum(not bits & MLP for bits in skip)


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line for line in lines if line.startswith(("model name", "flags"))][:2]
    return f"{os.cpu_count()}:{torch.__version__}:{names}"
