"""The C structures of the kernels; fields and shapes are documented in the headers of the same names."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p

FORMATS = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3, "int4": 4}  # enum Format in linear.h
COLUMNS = 64  # kColumns in linear.h: columns of a packed weight are padded to a multiple of this
INPUTS = 32  # kInputs: inputs of a tile


class Linear(Structure):
    """``OutriderLinear`` in linear.h."""

    _fields_ = (
        ("weight", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
        ("inputs", c_int64),
        ("format", c_int32),
        ("unused", c_int32),
    )


class Attend(Structure):
    """``OutriderAttend`` in attention.h."""

    _fields_ = (
        ("q", c_void_p),
        ("q_stride", c_int64),
        ("k", c_void_p),
        ("v", c_void_p),
        ("kv_stride", c_int64),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("slots", c_void_p),
        ("context", c_void_p),
        ("context_len", c_void_p),
        ("path", c_void_p),
        ("path_start", c_void_p),
        ("out", c_void_p),
        ("rows", c_int64),
        ("q_heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("rotary", c_int64),
        ("window", c_int64),
        ("scale", c_float),
        ("softcap", c_float),
        ("eps", c_float),
        ("threads", c_int32),
        ("half", c_int32),
    )


class Layer(Structure):
    """``OutriderLayer`` in decoder.h."""

    _fields_ = (
        ("norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("out_norm", c_void_p),
        ("down_norm", c_void_p),
        ("qkv", Linear),
        ("out", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("window", c_int64),
        ("factors", c_int64),
    )


class Decoder(Structure):
    """``OutriderDecoder`` in decoder.h."""

    _fields_ = (
        ("layers", POINTER(Layer)),
        ("norm", c_void_p),
        ("head", Linear),
        ("num_layers", c_int64),
        ("hidden", c_int64),
        ("gelu", c_int32),
        ("unused", c_int32),
    )


class Forward(Structure):
    """``OutriderForward`` in decoder.h."""

    _fields_ = (
        ("attend", Attend),
        ("x", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("keys_bytes", c_int64),
        ("values_bytes", c_int64),
        ("logit_rows", c_void_p),
        ("num_logits", c_int64),
        ("logits", c_void_p),
        ("damaged", c_void_p),
        ("taps", POINTER(c_int64)),
        ("num_taps", c_int64),
        ("tapped", c_void_p),
        ("inputs", c_void_p),
        ("skip", c_char_p),
    )


class Chain(Structure):
    """``OutriderChain`` in decoder.h."""

    _fields_ = (
        ("forward", Forward),
        ("embedding", c_void_p),
        ("token_norm", c_void_p),
        ("hidden_norm", c_void_p),
        ("out_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("slots", c_void_p),
        ("ids", c_void_p),
        ("position", c_int64),
        ("levels", c_int64),
        ("token", c_int64),
        ("hidden", c_void_p),
        ("embedding_scale", c_float),
        ("reach", c_float),
        ("confidence", c_float),
        ("certainty", c_float),
        ("floor", c_float),
        ("embedding_format", c_int32),
        ("normed_residual", c_int32),
        ("tokens", c_void_p),
        ("chances", c_void_p),
    )


def declare(library: ctypes.CDLL) -> None:
    """Set the signatures of all functions."""
    signatures = {
        "outrider_linear": (None, POINTER(Linear), c_void_p, c_void_p, c_int64, c_int32),
        "outrider_attend": (None, POINTER(Attend)),
        "outrider_forward": (None, POINTER(Decoder), POINTER(Forward)),
        "outrider_chain": (c_int64, POINTER(Decoder), POINTER(Chain)),
        "outrider_argmax": (None, c_void_p, c_int64, c_int64, c_void_p, c_int32),
        "outrider_topk": (None, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int32),
        "outrider_likeliest": (None, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int32),
        "outrider_norm": (None, c_void_p, c_void_p, c_int64, c_int64, c_float, c_void_p),
        "outrider_gumbel_argmax": (c_int64, c_void_p, c_int64, ctypes.c_uint32, ctypes.c_uint32),
        "outrider_gumbel_topk": (c_int64, c_void_p, c_int64, ctypes.c_uint32, ctypes.c_uint32, c_int64, c_void_p),
    }
    for name, (result, *arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
