"""A whole forward as one call of the native decoder, for models whose layer is of its shape."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider import native
from outrider.cache.storage import KVStorage
from outrider.errors import NumericsError
from outrider.native import abi
from outrider.target.attention import HeadShape, NativeBackend
from outrider.target.batch import FlatBatch
from outrider.target.packed import NativeKernel, PackedLinear

DAMAGED = "raw logits hold NaN or +infinity: the weights or the cache are damaged"


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The packed weights of one decoder layer, its window (0: none) and which of the rotary factors it takes.

    ``out_norm`` and ``down_norm``: norms of what is added to the residual, of architectures that have them.
    """

    norm: Tensor
    qkv: PackedLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: PackedLinear
    out_norm: Tensor | None
    mlp_norm: Tensor
    gate_up: PackedLinear
    down: PackedLinear
    down_norm: Tensor | None
    window: int
    factors: int

    @property
    def linears(self) -> tuple[PackedLinear, ...]:
        """Its matrices."""
        return self.qkv, self.out, self.gate_up, self.down


@dataclass(frozen=True, slots=True)
class ChainLinks:
    """What joins a row of a recurrent head to the one above. ``embedding`` [vocabulary, hidden] times ``scale``;
    norms [hidden] of the token, of the hidden state, and of the output that goes down (None: as it is); ``ids``: the
    target's, by draft id; ``normed_residual``: the normed hidden state is the residual."""

    embedding: Tensor
    scale: float
    token_norm: Tensor
    hidden_norm: Tensor
    out_norm: Tensor | None
    ids: Tensor
    normed_residual: bool


@dataclass(frozen=True, slots=True)
class ChainRoot:
    """Where a chain begins: ``token`` at ``position`` beside ``hidden`` [hidden], which is overwritten, with ``slots``
    int32 of all positions. It ends behind a token less likely than ``confidence``, and where the probability of its
    path, ``reach`` so far, is under ``certainty`` or ``floor``. ``tokens`` int64 [levels] are filled in."""

    token: int
    position: int
    hidden: Tensor
    slots: Tensor
    tokens: Tensor
    reach: float
    confidence: float
    certainty: float
    floor: float


class FusedDecoder:
    """Addresses of all weights, handed over once; ``forward`` fills in what a batch brings. ``norm``: before the head,
    where there is one."""

    def __init__(
        self,
        library: native.Library,
        layers: Sequence[LayerWeights],
        norm: Tensor | None,
        head: PackedLinear,
        shape: HeadShape,
        eps: float,
        gelu: bool,
    ) -> None:
        self._forward, self._chain, self._shape, self._eps = library.forward, library.chain, shape, eps
        self._kept = (list(layers), norm, head)  # alive as long as their addresses are used
        self._layers = (abi.Layer * len(layers))(*map(_layer, layers))
        self._decoder = abi.Decoder(
            layers=self._layers,
            norm=None if norm is None else norm.data_ptr(),
            head=_linear(head),
            num_layers=len(layers),
            hidden=head.in_features,
            gelu=int(gelu),
        )
        self._vocab = head.out_features

    def chain(self, links: ChainLinks, root: ChainRoot, storage: KVStorage, cos: Tensor, sin: Tensor) -> list[float]:
        """Draft greedily behind ``root``, whose tokens are filled in: the probabilities of the tokens, as many as were
        drafted. cos and sin [positions, rotary / 2]. Raises NumericsError when a logit is NaN or infinite."""
        levels = len(root.tokens)
        chances = torch.empty(levels)
        attend = NativeBackend.over(storage, 1, self._shape)
        attend.rotary, attend.eps = 2 * cos.shape[1], self._eps
        forward = abi.Forward(
            attend=attend,
            keys=storage.keys.data_ptr(),
            values=storage.values.data_ptr(),
            num_logits=1,
            num_taps=1,
        )
        call = abi.Chain(
            forward=forward,
            embedding=links.embedding.data_ptr(),
            token_norm=links.token_norm.data_ptr(),
            hidden_norm=links.hidden_norm.data_ptr(),
            out_norm=None if links.out_norm is None else links.out_norm.data_ptr(),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            slots=root.slots.data_ptr(),
            ids=links.ids.data_ptr(),
            position=root.position,
            levels=levels,
            token=root.token,
            hidden=root.hidden.data_ptr(),
            embedding_scale=links.scale,
            reach=root.reach,
            confidence=root.confidence,
            certainty=root.certainty,
            floor=root.floor,
            embedding_format=abi.FORMATS[str(links.embedding.dtype).removeprefix("torch.")],
            normed_residual=int(links.normed_residual),
            tokens=root.tokens.data_ptr(),
            chances=chances.data_ptr(),
        )
        drafted = self._chain(ctypes.byref(self._decoder), ctypes.byref(call))
        if drafted < 0:
            raise NumericsError(DAMAGED)
        return chances[:drafted].tolist()

    def forward(
        self,
        x: Tensor,
        batch: FlatBatch,
        storage: KVStorage,
        cos: Tensor,
        sin: Tensor,
        taps: Sequence[int],
        skip: bytes | None = None,
        inputs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """x [rows, hidden] float32 embeddings, which are overwritten; cos and sin [kinds, rows, rotary / 2].

        ``inputs`` [rows, width] float32: what the first layer's projections see in the place of its norm of x.
        ``skip``: sublayers to leave out (``target/skip.py``). Logits [wanted, vocab] and, when asked, the outputs of
        the layers ``taps`` [rows, layers * hidden]. Raises NumericsError when a logit is NaN or +infinity.
        """
        attend = NativeBackend.arguments(storage, batch, self._shape)
        attend.cos, attend.sin, attend.rotary, attend.eps = cos.data_ptr(), sin.data_ptr(), 2 * cos.shape[2], self._eps
        logits = torch.empty(batch.num_logits, self._vocab)
        tapped = torch.empty(batch.num_rows, len(taps) * x.shape[1]) if taps else None
        wanted = (ctypes.c_int64 * len(taps))(*taps)
        damaged = (ctypes.c_int32 * max(1, batch.num_logits))()
        call = abi.Forward(
            attend=attend,
            x=x.data_ptr(),
            keys=storage.keys.data_ptr(),
            values=storage.values.data_ptr(),
            keys_bytes=storage.keys[0].nbytes,
            values_bytes=storage.values[0].nbytes,
            logit_rows=None if batch.logit_rows is None else batch.logit_rows.data_ptr(),
            num_logits=batch.num_logits,
            logits=logits.data_ptr(),
            damaged=ctypes.addressof(damaged),
            taps=wanted,
            num_taps=len(taps),
            tapped=None if tapped is None else tapped.data_ptr(),
            inputs=None if inputs is None else inputs.data_ptr(),
            skip=skip,
        )
        self._forward(ctypes.byref(self._decoder), ctypes.byref(call))
        if any(damaged):
            raise NumericsError(DAMAGED)
        return logits, tapped


def can_fuse(linears: Sequence[PackedLinear]) -> bool:
    """Whether every matrix is in a layout of the native kernels."""
    return all(isinstance(linear.kernel, NativeKernel) for linear in linears)


def _linear(linear: PackedLinear) -> abi.Linear:
    assert isinstance(linear.kernel, NativeKernel)
    return linear.kernel.layer


def _layer(weights: LayerWeights) -> abi.Layer:
    def address(tensor: Tensor | None) -> int | None:
        return None if tensor is None else tensor.data_ptr()

    return abi.Layer(
        norm=address(weights.norm),
        q_norm=address(weights.q_norm),
        k_norm=address(weights.k_norm),
        mlp_norm=address(weights.mlp_norm),
        out_norm=address(weights.out_norm),
        down_norm=address(weights.down_norm),
        qkv=_linear(weights.qkv),
        out=_linear(weights.out),
        gate_up=_linear(weights.gate_up),
        down=_linear(weights.down),
        window=weights.window,
        factors=weights.factors,
    )
