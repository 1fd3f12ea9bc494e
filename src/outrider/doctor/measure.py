"""Runs a head over a text with the layers that its files name and with others, to see which it was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path

from outrider.doctor.models import Measured
from outrider.engine import canary
from outrider.engine.heads import bound, pack
from outrider.heads import files
from outrider.heads.config import fused_layers
from outrider.target.model import load_target

_TEXT = """The doctor asks what hurts, listens to the answer, and looks at the figures that were written down before.
What is different today? Most of what breaks was changed by somebody, and most of what was changed is written down. """


def measure(model: str, folder: Path, tell: Callable[[int, int, str], None] | None = None) -> Measured:
    """Loads ``model`` and the head. ``tell``: (done, total, what). Raises what loading them raises."""
    target = load_target(model)
    head = files.load(folder, bound(target))
    given, recorded = head.config.hidden_layers, head.config.canary_agreement or None
    tokens = head.config.canary or tuple(target.tokenizer.encode(_TEXT))
    tried = list(candidates(given, target.num_layers)) if head.config.kind == "eagle3" else [given]
    found = {}
    for done, layers in enumerate(tried, 1):
        head.config = head.config.model_copy(update={"hidden_layers": layers})
        found[layers] = canary.agreement(target, pack(target, head), tokens)
        if tell is not None:
            tell(done, len(tried), f"layers {', '.join(map(str, layers))}")
    agreement = found.pop(given)
    return Measured(given, agreement, recorded, len(tokens), found)


def candidates(given: tuple[int, ...], num_layers: int) -> Iterator[tuple[int, ...]]:
    """``given`` first, then what is mistaken for it: counted one lower or higher, in another order, the default."""
    seen = set()
    shifted = [tuple(layer + step for layer in given) for step in (0, -1, 1)]
    default = fused_layers(num_layers)
    orders = [order for base in (given, default) if len(base) <= 3 for order in permutations(base)]
    for layers in (*shifted, default, *orders):
        if layers not in seen and len(layers) == len(given) and min(layers) >= 0 and max(layers) < num_layers:
            seen.add(layers)
            yield layers
