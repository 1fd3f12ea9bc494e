"""The table of layouts."""

from __future__ import annotations

from outrider.errors import ConfigError, ModelError
from outrider.heads.layouts.base import Checkpoint, Layout, eight_bit, half
from outrider.heads.layouts.carried import Carried
from outrider.heads.layouts.eagle3 import FlatEagle3, Speculators
from outrider.heads.layouts.medusa import FasterDecoding, VllmMedusa
from outrider.heads.layouts.own import OwnLayout

_SGLANG = "LlamaForCausalLMEagle3"
LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        OwnLayout("outrider", half),
        OwnLayout("outrider-int8", eight_bit),
        FlatEagle3("sglang", _SGLANG, "midlayer."),
        FlatEagle3("vllm", "Eagle3LlamaForCausalLM", "layers.0."),
        Speculators(),
        FasterDecoding(),
        VllmMedusa(),
        Carried(),
    )
}


def layout_of(checkpoint: Checkpoint) -> Layout:
    """The layout of a checkpoint. Raises ModelError where none claims it."""
    for layout in LAYOUTS.values():
        if layout.claims(checkpoint):
            return layout
    raise ModelError(f"{checkpoint.name} holds no draft head of a known layout ({', '.join(LAYOUTS)})")


def layout_named(name: str, kind: str) -> Layout:
    """The layout that is called so. Raises ConfigError where there is none, or none for heads of ``kind``."""
    able = [layout.name for layout in LAYOUTS.values() if kind in layout.kinds]
    if name not in LAYOUTS:
        raise ConfigError(f"layout {name!r} is not known; choose one of: {', '.join(LAYOUTS)}")
    if name not in able:
        raise ConfigError(f"layout {name!r} stores no {kind} heads; choose one of: {', '.join(able)}")
    return LAYOUTS[name]
