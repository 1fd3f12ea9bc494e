"""The target: one loaded model behind one call, ``forward(spans, storage)``.

The draft model of a model drafter is a ``Target`` as well; it differs only in who calls it.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outrider import native
from outrider.cache.storage import KVStorage, bytes_per_token
from outrider.errors import ConfigError, NumericsError
from outrider.target import attention, exactness, general, parity
from outrider.target.architecture import supports
from outrider.target.attention import BackendName
from outrider.target.batch import Span, flatten
from outrider.target.formats import STORED_AS
from outrider.target.fused import DAMAGED
from outrider.target.gguf_blocks import BlockSource
from outrider.target.lean import LeanDecoder
from outrider.target.load import LoadedModel, load_model, shape_name
from outrider.target.packed import PackedLinear, kernel_name
from outrider.target.packer import Packer
from outrider.target.rotary import fix_rotary
from outrider.target.weights import check_range

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """``logits`` [wanted rows, vocab] float32, raw; ``hidden`` [rows, layers * hidden] when taps were asked for;
    ``slots`` int32 [rows]: where each row's key and value lie."""

    logits: Tensor
    hidden: Tensor | None
    slots: Tensor | None = None


class Target:
    """A causal language model that computes the rows of many sequences in one flat forward.

    ``exact``: a row's logits have the same bits for every row count, tree, batch, prompt chunking and number of
    threads; ``exact_reason`` says what that rests on, or why it does not hold.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        dtype: str = "auto",
        exact: bool = True,
        max_model_len: int | None = None,
        backend: BackendName | None = None,
        lean: bool | None = None,
    ) -> None:
        self.config, self.tokenizer, self.loaded = loaded.config, loaded.tokenizer, loaded
        self.device = next(loaded.model.parameters()).device
        self.dtype_name = dtype_for(dtype, self.device)
        self.vocab_size = self._own_vocab_size = int(self.config.vocab_size)
        self.num_layers = int(self.config.num_hidden_layers)
        self.max_model_len = _context(self.config, max_model_len)
        check_range(loaded.model, STORED_AS[self.dtype_name])
        self.backend = attention.choose(self.device, exact, backend)
        self.kv_heads, self.head_dim = self._kv_shape()
        if self.device.type == "cpu" and native.library() is None:
            logger.warning(
                "native kernels are not used (%s): torch computes, several times slower", native.status().reason
            )
        self.lean = supports(self.config) if lean is None else lean
        self._decoder = self._make_decoder(exact and self.device.type == "cpu")
        self.linears: list[PackedLinear] = self._decoder.linears
        self.unpacked = self._decoder.unpacked
        self.exact, self.exact_reason = exactness.verify(self) if exact else (False, "exact=False was asked for")

    def _kv_shape(self) -> tuple[int, int]:
        return kv_shape(self.config)

    def _packer(self, exact: bool) -> Packer:
        if self.dtype_name != "gguf":
            return Packer(self.dtype_name, exact)
        file = self.loaded.source.file
        if file is None:
            raise ConfigError(f"dtype=gguf needs a GGUF file, and model={self.loaded.source.name!r} is none; use int8")
        heads = (int(self.config.num_attention_heads), self.kv_heads)
        return Packer(self.dtype_name, exact, BlockSource(file, self.num_layers, heads))

    def _make_decoder(self, exact: bool) -> LeanDecoder | general.GeneralDecoder:
        model: Any = self.loaded.model
        rotary = fix_rotary(model, self.max_model_len, self.device)
        if self.lean:
            return LeanDecoder(model, self._packer(exact), self.backend, rotary[0])
        decoder = general.GeneralDecoder(model, self.backend)
        if self.max_model_len >= parity.LENGTH:
            parity.check_parity(self.loaded.source.name, decoder, self.new_storage(32, 16), self.vocab_size)
        decoder.pack(self._packer(exact))
        return decoder

    @property
    def fingerprint(self) -> str:
        """The model whatever its format: files that were made for one name it."""
        return shape_name(self.config)

    @property
    def weight_bytes(self) -> int:
        """Bytes of packed weights that one forward streams."""
        return sum(linear.num_bytes for linear in self.linears)

    @property
    def kv_dtype(self) -> torch.dtype:
        """What keys and values are cached in: float16 beside weights of float16 or fewer bits, else float32."""
        return torch.float16 if STORED_AS[self.dtype_name] == torch.float16 else torch.float32

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV that one position takes."""
        return bytes_per_token(self.num_layers, self.kv_heads, self.head_dim, self.kv_dtype)

    def new_storage(self, num_slots: int, block_size: int) -> KVStorage:
        """A zeroed cache for this model."""
        shape = (self.num_layers, num_slots, self.kv_heads, self.head_dim)
        return KVStorage(*shape, self.kv_dtype, self.device, block_size=block_size)

    def over(self, vocab_size: int) -> Target:
        """This model over a vocabulary that is padded differently: ids that its own rows lack are masked in the logits,
        and read as token 0. Weights are shared."""
        if vocab_size == self.vocab_size:
            return self
        other = copy.copy(self)
        other.vocab_size = vocab_size
        return other

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """The embeddings of ``tokens`` [tokens, hidden] float32, as the first layer sees them."""
        return self._decoder.embed(torch.tensor(tokens, device=self.device))

    @property
    def embedding_table(self) -> tuple[Tensor, float] | None:
        """Where ``embed`` reads: [vocab, hidden] and a factor; None where the model does that in a way of its own."""
        return self._decoder.embedding_table if isinstance(self._decoder, LeanDecoder) else None

    def normed(self, hidden: Tensor) -> Tensor:
        """The last layer's output [rows, hidden] as the head sees it."""
        return self._decoder.normed(hidden)

    @torch.inference_mode()
    def forward(
        self, spans: Sequence[Span], storage: KVStorage, hidden_layers: Sequence[int] = (), skip: bytes | None = None
    ) -> TargetOutput:
        """One flat forward over ``spans``: caches every row's key and value, computes the logits that are wanted.

        ``skip``: sublayers that are left out, a mask of ``target/skip.py``; they cache nothing. Raises NumericsError
        when a raw logit is NaN or +infinity, and ConfigError for a ``skip`` that this model's path cannot do.
        """
        if skip is not None and len(skip) != self.num_layers:
            raise ConfigError(f"a skip mask of {len(skip)} layers does not fit a model of {self.num_layers}")
        if self.vocab_size > self._own_vocab_size:
            for span in spans:
                span.tokens = [token if token < self._own_vocab_size else 0 for token in span.tokens]
        batch = flatten(spans)
        logits, hidden = self._decoder.forward(batch, storage, hidden_layers, skip)
        if not self._decoder.checks_logits and logits.numel() and not bool(torch.isfinite(logits.amax())):
            raise NumericsError(DAMAGED)
        if self.vocab_size != self._own_vocab_size:
            logits = _fit(logits, self.vocab_size)
        return TargetOutput(logits, hidden, batch.slots)

    def close(self) -> None:
        """Free what other processes hold of the model, if any does."""

    def describe(self) -> dict[str, object]:
        """What serves this model: for `outrider models`, benches and bundles."""
        return {
            "model": self.loaded.source.name,
            "architecture": type(self.loaded.model).__name__,
            "dtype": self.dtype_name,
            "kernel": ", ".join(sorted({kernel_name(linear.kernel) for linear in self.linears})) or "torch",
            "path": "lean" if self.lean else "general",
            "attention": self.backend.name,
            "native_kernels": native.status().reason if self.device.type == "cpu" else f"none for {self.device.type}",
            "exact": self.exact,
            "exact_reason": self.exact_reason,
            "weight_bytes": self.weight_bytes,
            "max_model_len": self.max_model_len,
        }


def load_target(
    model: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    exact: bool = True,
    max_model_len: int | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    backend: BackendName | None = None,
) -> Target:
    """Load and pack a model (hub id, folder, GGUF file, or known name)."""
    torch_device = torch.device(device)
    dtype = dtype_for(dtype, torch_device)
    load_dtype = torch.float32 if torch_device.type == "cpu" else STORED_AS[dtype]
    loaded = load_model(
        model, dtype=load_dtype, device=torch_device, revision=revision, trust_remote_code=trust_remote_code
    )
    return Target(loaded, dtype=dtype, exact=exact, max_model_len=max_model_len, backend=backend)


def _fit(logits: Tensor, vocab_size: int) -> Tensor:
    """``logits`` [rows, own vocab] cut or padded with -infinity to ``vocab_size`` columns."""
    missing = vocab_size - logits.shape[1]
    if missing <= 0:
        return logits[:, :vocab_size].contiguous()
    return torch.cat((logits, logits.new_full((logits.shape[0], missing), -torch.inf)), dim=1)


def dtype_for(name: str, device: torch.device) -> str:
    """``auto``: float16 weights with float32 activations on the CPU, bfloat16 elsewhere."""
    if name == "auto":
        return "float16" if device.type == "cpu" else "bfloat16"
    if name not in STORED_AS:
        raise ConfigError(f"dtype={name!r} is unknown; choose one of auto, {', '.join(STORED_AS)}")
    if name in ("int8", "int4", "gguf") and device.type != "cpu":
        raise ConfigError(f"dtype={name} has kernels for the CPU alone; set dtype=bfloat16 on {device.type}")
    return name


def _context(config: Any, wanted: int | None) -> int:
    longest = int(getattr(config, "max_position_embeddings", 0) or 2048)
    if wanted is not None and wanted < 2:
        raise ConfigError(f"max_model_len={wanted} leaves no room for a prompt and a token; set 2 or more")
    if wanted is not None and wanted > longest:
        raise ConfigError(f"max_model_len={wanted} is over the model's context of {longest}; lower it")
    return wanted or longest


def kv_shape(config: Any) -> tuple[int, int]:
    """Key heads of a model, and their dimension."""
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    return heads, dim
