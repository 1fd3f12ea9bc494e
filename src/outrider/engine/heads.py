"""Loading draft heads for a target, and refusing those that were trained for another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.config import SpeculativeConfig
from outrider.engine import canary
from outrider.errors import ConfigError
from outrider.heads import files, shipped
from outrider.heads.base import DraftHead
from outrider.heads.config import HeadConfig
from outrider.heads.decoder import HeadDecoder
from outrider.heads.layouts.base import Bound
from outrider.heads.medusa import StackHead
from outrider.heads.recurrent import RecurrentHead
from outrider.heads.stack import StackDecoder
from outrider.target.load import MODULES, checkpoint_folder, load_config, resolve, shape_name
from outrider.target.model import Target, dtype_for, load_target
from outrider.target.packer import Packer

_TEXT = """A train leaves the station at nine and goes sixty miles an hour. Another leaves at ten and goes eighty miles
an hour on the same line. To find out when the second meets the first, we write down how far each has come. """
_METHODS = {"eagle2": "eagle"}  # the kind of head, where it is not called as the method


def load_head(target: Target, config: SpeculativeConfig) -> HeadDecoder | StackDecoder:
    """The head that ``config.model`` names, packed. Raises ModelError for a folder that holds none, and ConfigError for
    a head of another method or target."""
    loaded = source_of(target, config)
    if config.draft_temperature is not None:
        loaded.config = loaded.config.model_copy(update={"draft_temperature": config.draft_temperature})
    return _checked(target, loaded, config.draft_dtype, _name(config))


def _checked(target: Target, loaded: DraftHead, draft_dtype: str, name: str) -> HeadDecoder | StackDecoder:
    head = pack(target, loaded.to(target.device), draft_dtype)
    canary.check(target, head, name)
    return head


def source_of(target: Target, config: SpeculativeConfig) -> DraftHead:
    """The same before it is packed, and without a look at its canary."""
    wanted = _METHODS.get(config.method, config.method)
    folder = _at_hand(target, wanted) if config.model is None else Path(config.model).expanduser()
    loaded = files.load(folder, bound(target))
    facts, name = loaded.config, _name(config)
    if facts.kind != wanted:
        raise ConfigError(f"model={name!r} is a head for method {facts.kind!r}, not {config.method!r}")
    _compare(target, facts, name)
    return loaded


def _name(config: SpeculativeConfig) -> str:
    return config.model or f"the {_METHODS.get(config.method, config.method)} head at hand"


def has_head(target: Target, method: str) -> bool:
    """Whether a head of ``method`` for ``target`` is at hand: one that comes with us, or that its checkpoint has."""
    return _found(target, _METHODS.get(method, method)) is not None


def _found(target: Target, kind: str) -> Path | None:
    if kind == "mtp" and getattr(target.config, MODULES, None):
        return checkpoint_folder(target.loaded.source)
    return shipped.find(kind, target.fingerprint)


def _at_hand(target: Target, kind: str) -> Path:
    folder = _found(target, kind)
    if folder is None:
        carries = ", nor does its checkpoint carry one" if kind == "mtp" else ""
        raise ConfigError(
            f"model: no {kind} head comes with outrider for {target.fingerprint}{carries}; train one (`outrider train "
            f"{kind} --target {target.loaded.source.name} ...`) and name its folder"
        )
    return folder


def bound(target: Target) -> Bound:
    """What a head of another project is told of its target."""
    return _bound(target.config, target.max_model_len)


def _bound(config: Any, max_model_len: int) -> Bound:
    hidden, vocab, layers = int(config.hidden_size), int(config.vocab_size), int(config.num_hidden_layers)
    return Bound(shape_name(config), hidden, vocab, layers, max_model_len)


def bound_by_name(model: str) -> Bound:
    """The same of a model that is not loaded, from its config."""
    config: Any = load_config(resolve(model), trust_remote_code=False)
    return _bound(config, int(config.max_position_embeddings))


def examine(model: str, folder: Path) -> dict[str, Any]:
    """What a head is and does for a target: it is loaded as the engine does, and drafts the first token at every
    position of a text, its own canary where it has one. Raises what loading it raises."""
    target = load_target(model)
    loaded = files.load(folder, bound(target))
    _compare(target, loaded.config, str(folder))
    head = _checked(target, loaded, "auto", str(folder))
    tokens = head.config.canary or tuple(target.tokenizer.encode(_TEXT))
    return {
        "kind": head.config.kind,
        "target": target.fingerprint,
        "hidden_layers": list(head.config.hidden_layers),
        "draft_vocab_size": head.config.draft_vocab_size,
        "agreement": round(canary.agreement(target, head, tokens), 4),
        "recorded": head.config.canary_agreement or None,
        "tokens": len(tokens),
    }


def pack(target: Target, head: DraftHead, draft_dtype: str = "auto") -> HeadDecoder | StackDecoder:
    """``head`` as it drafts for ``target``."""
    if draft_dtype == "auto" and target.device.type == "cpu":
        draft_dtype = "int8"  # a head's forwards do little but read its weights, and guesses need no more
    packer = Packer(dtype_for(draft_dtype, target.device), target.exact)
    if isinstance(head, StackHead):
        return StackDecoder(head, packer)
    assert isinstance(head, RecurrentHead)
    return HeadDecoder(head, packer, target.backend, target.kv_dtype)


def _compare(target: Target, head: HeadConfig, name: str) -> None:
    if head.target != target.fingerprint:
        raise ConfigError(f"model={name!r} is a head for {head.target}, and the target is {target.fingerprint}")
    if max(head.hidden_layers) >= target.num_layers:
        raise ConfigError(f"model={name!r} reads layer {max(head.hidden_layers)} of a target with {target.num_layers}")
