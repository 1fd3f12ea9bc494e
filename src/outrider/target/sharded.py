"""A target whose matrices are spread over processes by transformers' own plan (tensor parallelism).

The first process runs the engine. Whatever it does to the model and its cache it tells the others beforehand, and they
do the same to their parts; layers sum their results over all. Nothing else is known to the others, so that neither
random draws nor anything that is timed can tell them apart.
"""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from outrider.cache.storage import KVStorage
from outrider.errors import ConfigError, ModelError
from outrider.target import parity
from outrider.target.batch import FlatBatch, Span, flatten
from outrider.target.formats import STORED_AS
from outrider.target.general import GeneralDecoder
from outrider.target.load import LoadedModel, load_config, load_model, resolve
from outrider.target.model import Target, dtype_for, kv_shape
from outrider.target.ranks import Ranks
from outrider.target.rotary import fix_rotary
from outrider.target.weights import own_part

_WHY = "the sums of {} processes are added in an order of their own"


class Leader:
    """The first process's way to tell the others what it does."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._ended = ranks, False
        self._dropped: list[int] = []  # storages that nobody uses any more
        self._numbers = itertools.count()
        atexit.register(self.end)

    def tell(self, what: str, *details: Any) -> None:
        """They do ``what`` as this process is about to."""
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        self._ranks.send((what, details, dropped))

    def number(self, storage: SharedStorage) -> int:
        """What ``storage`` is called; once nobody uses it, they hear of that with the next message."""
        number = next(self._numbers)
        weakref.finalize(storage, self._dropped.append, number)
        return number

    def end(self) -> None:
        """Let them go; they are told nothing after it."""
        if not self._ended:
            self._ended = True
            self.tell("end")
            self._ranks.leave()


class SharedStorage(KVStorage):
    """This process's part of the KV of all heads; what moves here moves everywhere."""

    def __init__(self, leader: Leader, *shape: Any, block_size: int) -> None:
        super().__init__(*shape, block_size=block_size)
        self._leader, self.number = leader, leader.number(self)
        leader.tell("storage", self.number, self.values.shape[1], block_size)

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """See ``KVStorage``."""
        self._leader.tell("move", self.number, list(source), list(target))
        super().move(source, target)

    def write(
        self, layer: int | slice, slots: Tensor | Sequence[int], keys: Tensor | float, values: Tensor | float
    ) -> None:
        """See ``KVStorage``. Tensors are this process's heads, which each process writes for itself."""
        if not isinstance(keys, Tensor):
            self._leader.tell("write", self.number, layer, torch.as_tensor(slots).tolist(), keys, values)
        super().write(layer, slots, keys, values)


class ShardedDecoder(GeneralDecoder):
    """transformers' modules with this process's part of their weights. ``leader``: who is told of forwards, if any."""

    leader: Leader | None = None

    def embed(self, tokens: Tensor) -> Tensor:
        """See ``GeneralDecoder``."""
        if self.leader is not None:
            self.leader.tell("embed", tokens.tolist())
        return super().embed(tokens)

    def forward(
        self, batch: FlatBatch, storage: KVStorage, hidden_layers: Sequence[int] = (), skip: bytes | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """See ``GeneralDecoder``."""
        if self.leader is not None and skip is None:
            assert isinstance(storage, SharedStorage)
            self.leader.tell("forward", storage.number, [_sent(span) for span in batch.spans])
        return super().forward(batch, storage, hidden_layers, skip)


class ShardedTarget(Target):
    """A target of which each process of ``ranks`` has a part; the first may be used as any other target."""

    def __init__(self, loaded: LoadedModel, ranks: Ranks, *, dtype: str, max_model_len: int | None = None) -> None:
        self._ranks = ranks
        self._leader: Leader | None = None
        super().__init__(loaded, dtype=dtype, exact=False, max_model_len=max_model_len, lean=False)
        self.exact_reason = _WHY.format(ranks.count)
        if ranks.rank == 0:
            self._leader = self._decoder.leader = Leader(ranks)  # type: ignore[union-attr]

    def _kv_shape(self) -> tuple[int, int]:
        return own_heads(self.loaded.source.name, self.config, self._ranks.count), super()._kv_shape()[1]

    def _make_decoder(self, exact: bool) -> ShardedDecoder:
        model: Any = self.loaded.model
        fix_rotary(model, self.max_model_len, self.device)
        decoder = ShardedDecoder(model, self.backend)
        if self.max_model_len >= parity.LENGTH:  # all processes do this, each by itself
            parity.check_parity(self.loaded.source.name, decoder, self.new_storage(32, 16), self.vocab_size)
        return decoder

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one forward streams in this process."""
        weights = [weight for weight in self.loaded.model.parameters() if weight.dim() > 1]
        return sum(own_part(weight).nbytes for weight in weights)

    def new_storage(self, num_slots: int, block_size: int) -> KVStorage:
        """A zeroed cache for this model, in all processes."""
        if self._leader is None:
            return super().new_storage(num_slots, block_size)
        shape = (self.num_layers, num_slots, self.kv_heads, self.head_dim, self.kv_dtype, self.device)
        return SharedStorage(self._leader, *shape, block_size=block_size)

    def describe(self) -> dict[str, object]:
        """See ``Target``."""
        return {**super().describe(), "kernel": "torch", "tensor_parallel_size": self._ranks.count}

    def close(self) -> None:
        """End the other processes: no forward is possible any more."""
        if self._leader is not None:
            self._leader.end()

    @torch.inference_mode()
    def follow(self) -> NoReturn:
        """Do what the first process does until it ends, and end then too. For every process but the first."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first one decides what an interrupt means
        storages: dict[int, KVStorage] = {}
        while True:
            what, details, dropped = self._ranks.receive()
            for number in dropped:
                del storages[number]
            match what, details:
                case "forward", (number, spans):
                    self._decoder.forward(flatten([_received(span) for span in spans]), storages[number])
                case "embed", (tokens,):
                    self.embed(tokens)
                case "move", (number, source, target):
                    storages[number].move(source, target)
                case "write", (number, layer, slots, keys, values):
                    storages[number].write(layer, slots, keys, values)
                case "storage", (number, num_slots, block_size):
                    storages[number] = self.new_storage(num_slots, block_size)
                case "end", ():
                    self._ranks.leave()
                    os._exit(0)  # what comes after is the first one's to do


def own_heads(model: str, config: Any, size: int) -> int:
    """Key heads that each of ``size`` processes holds. Raises ConfigError where they cannot be divided, and ModelError
    for an architecture that transformers does not spread."""
    plan = getattr(config, "base_model_tp_plan", None)
    if not plan:
        raise ModelError(
            f"model={model!r}: transformers has no tensor parallel plan for {config.model_type!r} models; "
            "leave tensor_parallel_size out"
        )
    from transformers.distributed.tensor_parallel import get_kv_heads_per_rank

    heads, key_heads = int(config.num_attention_heads), kv_shape(config)[0]
    own = get_kv_heads_per_rank(plan, key_heads, size)
    if own is None or (own != key_heads and heads % size):
        fitting = ", ".join(str(n) for n in range(2, key_heads + 1) if not (key_heads % n or heads % n))
        raise ConfigError(
            f"tensor_parallel_size={size} does not divide the {key_heads} key heads of model={model!r}: "
            + (f"possible are {fitting}" if fitting else "leave it out")
        )
    return own if isinstance(own, int) else own[0]


def load_sharded(
    model: str,
    size: int,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    max_model_len: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> ShardedTarget:
    """``model`` over ``size`` processes; in all but the first this does not return. Raises ConfigError where there are
    other processes, and for what such a model cannot do."""
    where = torch.device(device)
    if where.type == "cpu" and dtype not in ("auto", "float32"):
        raise ConfigError(
            f"dtype={dtype} with tensor_parallel_size: torch computes in float32 on the CPU; leave it out"
        )
    dtype = "float32" if where.type == "cpu" else dtype_for(dtype, where)
    ranks = Ranks.join(size, where)
    with ranks.in_turn():
        config = load_config(resolve(model, revision=revision), trust_remote_code=trust_remote_code)
    own_heads(model, config, size)
    loaded = load_model(
        model,
        dtype=STORED_AS[dtype],
        device=where,
        revision=revision,
        trust_remote_code=trust_remote_code,
        tensor_parallel_size=size,
    )
    target = ShardedTarget(loaded, ranks, dtype=dtype, max_model_len=max_model_len)
    if ranks.rank:
        target.follow()
    return target


def _sent(span: Span) -> tuple[Any, ...]:
    """A span without the slots that it does not reach."""
    reached = span.context[: span.start + len(span.tokens)].numpy().tobytes()
    return list(span.tokens), reached, span.start, span.parents, span.slots, span.logits, span.paths


def _received(sent: tuple[Any, ...]) -> Span:
    tokens, reached, *rest = sent
    return Span(tokens, torch.from_numpy(np.frombuffer(reached, dtype=np.int32).copy()), *rest)
