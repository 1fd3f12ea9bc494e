"""A second copy of a target with narrower weights, for drafting with itself."""

from __future__ import annotations

from outrider.errors import ConfigError
from outrider.target.facts import ModelFacts, facts_of
from outrider.target.model import Target, load_target

_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}  # `gguf` depends on the file


def narrow_format(wanted: str, facts: ModelFacts) -> str:
    """The format of the copy: ``wanted``, or for `auto` int8 beside wider weights and int4 beside int8.

    Raises ConfigError when it is not narrower than the target's; whether a GGUF file's blocks are is seen when they
    are loaded.
    """
    own = facts.dtype
    if wanted == "auto":
        wanted = "int4" if own in ("gguf", "int8", "int4") else "int8"
    if own == wanted == "gguf":
        raise ConfigError("draft_dtype=gguf: these are the target's own weights; set draft_dtype=int4")
    if "gguf" not in (own, wanted) and _BITS[wanted] >= _BITS[own]:
        narrower = [name for name in ("int8", "int4") if _BITS[name] < _BITS[own]]
        remedy = f"set draft_dtype={' or '.join(narrower)}" if narrower else "set a wider dtype, or use another method"
        raise ConfigError(f"draft_dtype={wanted} is not narrower than the target's weights ({own}); {remedy}")
    return wanted


def load_narrow(target: Target, wanted: str) -> Target:
    """The copy of ``target`` in ``narrow_format``. Raises ConfigError when it turns out to be no smaller."""
    dtype, loaded = narrow_format(wanted, facts_of(target)), target.loaded
    copy = load_target(
        loaded.source.name,
        dtype=dtype,
        device=str(target.device),
        exact=target.exact,
        max_model_len=target.max_model_len,
        revision=loaded.source.options.get("revision"),
        trust_remote_code=loaded.trust_remote_code,
    )
    if copy.weight_bytes >= target.weight_bytes:
        raise ConfigError(
            f"draft_dtype={dtype}: the copy has {copy.weight_bytes} bytes of weights and the target "
            f"{target.weight_bytes}, so that drafting with it saves nothing; set a narrower draft_dtype"
        )
    return copy
