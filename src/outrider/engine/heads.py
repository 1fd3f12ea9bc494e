"""Loading draft heads for a target, and refusing those that were trained for another one."""

from __future__ import annotations

from pathlib import Path

from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError
from outrider.heads import files
from outrider.heads.config import HeadConfig
from outrider.heads.decoder import HeadDecoder
from outrider.heads.eagle3 import Eagle3
from outrider.target.model import Target, dtype_for
from outrider.target.packer import Packer


def load_head(target: Target, config: SpeculativeConfig) -> HeadDecoder:
    """The head that ``config.model`` names, packed. Raises ModelError for a folder that holds none, and ConfigError for
    a head of another target."""
    assert config.model is not None  # check_configs saw to it
    folder = Path(config.model).expanduser()
    facts = files.read_config(folder)
    _compare(target, facts, config.model)
    return pack(target, files.load(folder).to(target.device), config.draft_dtype)


def pack(target: Target, head: Eagle3, draft_dtype: str = "auto") -> HeadDecoder:
    """``head`` as it drafts for ``target``."""
    dtype = dtype_for(draft_dtype, target.device)
    return HeadDecoder(head, Packer(dtype, target.exact), target.backend, target.kv_dtype)


def _compare(target: Target, head: HeadConfig, name: str) -> None:
    if head.target != target.fingerprint:
        raise ConfigError(f"model={name!r} is a head for {head.target}, and the target is {target.fingerprint}")
    if max(head.hidden_layers) >= target.num_layers:
        raise ConfigError(f"model={name!r} reads layer {max(head.hidden_layers)} of a target with {target.num_layers}")
