"""The target without some of its sublayers as drafter: Draft & Verify (arXiv 2309.08168), and early exit as in
LayerSkip (arXiv 2404.16710), which is the same thing with all sublayers behind one layer skipped.

Weights and cache are the target's own. A chain ends after a token whose own probability is below a threshold, which
follows the acceptance of the request: it rises while fewer than ``TARGET_ACCEPTANCE`` of the drafted tokens are
accepted and falls otherwise. It looks at tokens of the chain and at earlier steps alone, so laws stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.config import SpeculativeConfig
from outrider.drafters.base import Committed, DraftSequence
from outrider.drafters.registry import DrafterContext
from outrider.drafters.self_draft import SelfDrafter, target_of
from outrider.drafters.skip_file import SkipSet, default_path, read
from outrider.errors import ConfigError
from outrider.target.facts import ModelFacts, facts_of
from outrider.target.skip import NO_SKIPPING, skip_mask

TARGET_ACCEPTANCE = 0.9
_GREEDY, _SAMPLED = 0.8, 0.5  # thresholds that a request starts with
_MEMORY = 0.5  # of the running acceptance
_STEP = 0.02  # larger than the paper's (0.001 a step), since every request starts anew: no text depends on another's
_HIGHEST = 0.95


@dataclass(slots=True)
class _Stop:
    """A request's threshold, and its running acceptance."""

    threshold: float
    acceptance: float = TARGET_ACCEPTANCE

    def observe(self, accepted: int, drafted: int) -> None:
        """Follow a step that accepted so many of the drafted tokens."""
        self.acceptance = _MEMORY * self.acceptance + (1 - _MEMORY) * accepted / drafted
        moved = self.threshold + (_STEP if self.acceptance <= TARGET_ACCEPTANCE else -_STEP)
        self.threshold = min(_HIGHEST, max(0.0, moved))


class LayerSkip(SelfDrafter):
    """Drafts with the sublayers that a mask leaves. ``threshold``: fixed, or None to adapt it."""

    method = "layer_skip"

    def __init__(self, context: DrafterContext, mask: bytes, threshold: float | None = None) -> None:
        handle = target_of(self.method, context)
        super().__init__(handle, handle.model, context.eos_ids, mask)
        self._fixed = threshold
        self._stops: dict[int, _Stop] = {}

    def stop_threshold(self, seq: DraftSequence) -> float:
        """The fixed threshold, or the request's own."""
        if self._fixed is not None:
            return self._fixed
        stop = self._stops.get(seq.seq_id)
        return _first(seq) if stop is None else stop.threshold

    def observe(self, seq: DraftSequence, committed: Committed) -> None:
        """Adapt the threshold to what was accepted."""
        drafted = 0 if committed.draft is None else len(committed.draft)
        if drafted:
            self._stops.setdefault(seq.seq_id, _Stop(_first(seq))).observe(committed.num_accepted, drafted)

    def release(self, seq: DraftSequence) -> None:
        """Forget the request's threshold."""
        self._stops.pop(seq.seq_id, None)


def _first(seq: DraftSequence) -> float:
    return _GREEDY if seq.pipeline.greedy else _SAMPLED


def mask_for(config: SpeculativeConfig, facts: ModelFacts) -> bytes:
    """The skip mask of a config for a target. Raises ConfigError when there is none that fits."""
    if not facts.lean:
        raise ConfigError(f"method layer_skip: {NO_SKIPPING.format(facts.model_type)}")
    attention, mlp, exit_layer = config.skip_attention_layers, config.skip_mlp_layers, config.exit_layer
    if attention is None and mlp is None and exit_layer is None:
        chosen = _tuned(config.skip_file, facts)
        return skip_mask(facts.num_layers, chosen.attention, chosen.mlp)
    return skip_mask(facts.num_layers, attention or (), mlp or (), exit_layer)


def _tuned(path: str | None, facts: ModelFacts) -> SkipSet:
    """The set of a file, or the one that was tuned for this model on this machine."""
    if path is not None:
        return read(path, facts.fingerprint)
    own = default_path(facts.fingerprint)
    if not own.exists():
        raise ConfigError(
            f"method layer_skip: nothing says what to skip, and nothing was tuned for {facts.name}; run `outrider tune "
            "layer_skip`, or set skip_attention_layers and skip_mlp_layers, exit_layer, or skip_file"
        )
    return read(str(own), facts.fingerprint)


def build(config: SpeculativeConfig, context: DrafterContext) -> LayerSkip:
    """The drafter of a config."""
    facts = facts_of(target_of(config.method, context).model)
    return LayerSkip(context, mask_for(config, facts), config.draft_stop_threshold)
