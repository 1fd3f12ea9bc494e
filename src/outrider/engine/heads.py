"""Loading draft heads for a target, and refusing those that were trained for another one."""

from __future__ import annotations

from pathlib import Path

from outrider.config import SpeculativeConfig
from outrider.engine import canary
from outrider.errors import ConfigError
from outrider.heads import files
from outrider.heads.base import DraftHead
from outrider.heads.config import HeadConfig
from outrider.heads.decoder import HeadDecoder
from outrider.heads.medusa import StackHead
from outrider.heads.recurrent import RecurrentHead
from outrider.heads.stack import StackDecoder
from outrider.target.model import Target, dtype_for
from outrider.target.packer import Packer

_METHODS = {"eagle2": "eagle"}  # the kind of head, where it is not called as the method


def load_head(target: Target, config: SpeculativeConfig) -> HeadDecoder | StackDecoder:
    """The head that ``config.model`` names, packed. Raises ModelError for a folder that holds none, and ConfigError for
    a head of another method or target."""
    assert config.model is not None  # check_configs saw to it
    folder = Path(config.model).expanduser()
    facts = files.read_config(folder)
    wanted = _METHODS.get(config.method, config.method)
    if facts.kind != wanted:
        raise ConfigError(f"model={config.model!r} is a head for method {facts.kind!r}, not {config.method!r}")
    _compare(target, facts, config.model)
    head = pack(target, files.load(folder).to(target.device), config.draft_dtype)
    canary.check(target, head, config.model)
    return head


def pack(target: Target, head: DraftHead, draft_dtype: str = "auto") -> HeadDecoder | StackDecoder:
    """``head`` as it drafts for ``target``."""
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
