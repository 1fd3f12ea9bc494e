"""One engine for all that is measured: every candidate is a method of it under its label, and the panel is another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from outrider.advise.candidates import Candidate, allowed
from outrider.config import SpeculativeConfig
from outrider.errors import ConfigError, OutriderError

if TYPE_CHECKING:
    from outrider.advise.panel import Panel
    from outrider.drafters.base import Drafter
    from outrider.engine.step import Engine
    from outrider.llm import LLM
    from outrider.target.model import Target


@dataclass(frozen=True, slots=True)
class Rig:
    """``drafters``: by label; those that the target does not allow are not among them: ``refused`` says why."""

    llm: LLM
    candidates: Sequence[Candidate]
    drafters: dict[str, Drafter]
    refused: dict[str, str]
    panel: Panel

    @property
    def engine(self) -> Engine:
        """The engine behind ``llm``."""
        return self.llm._engine

    @property
    def target(self) -> Target:
        """The loaded target."""
        return self.llm._engine.target

    def usable_budgets(self, candidate: Candidate) -> list[int]:
        """Numbers of draft tokens that differ: a head of four levels makes no chain of five."""
        levels = self.drafters[candidate.label].max_levels
        if candidate.is_tree or levels is None:
            return list(candidate.budgets)
        return [budget for budget in candidate.budgets if budget <= levels]


def assemble(llm: LLM, found: Sequence[Candidate], *, max_num_seqs: int, seed: int, every: int = 4) -> Rig:
    """Give ``llm``, which has no method yet, all candidates that its target allows. ``every``: see ``Panel``. Raises
    ConfigError when none is left."""
    from outrider.engine import build
    from outrider.engine.requests import RequestFactory
    from outrider.target.facts import facts_of

    target = llm._engine.target
    kept, refused = allowed(found, facts_of(target))
    options = build.EngineOptions(max_num_seqs=max_num_seqs, enable_prefix_caching=False, seed=seed)
    try:
        engine = build.build_engine(target, [_joined(kept)], options)
    except OutriderError:
        kept, more = _one_by_one(target, kept, options)
        refused |= more
        engine = build.build_engine(target, [_joined(kept)], options)
    panel = _take_over(engine, kept, every)
    llm._engine, llm._factory = engine, RequestFactory(engine, seed)
    drafters = {each.label: member.drafter for each, member in zip(kept, panel.members, strict=True)}
    return Rig(llm, kept, drafters, refused, panel)


def _joined(kept: Sequence[Candidate]) -> SpeculativeConfig:
    if not kept:
        raise ConfigError("advise: no candidate goes with this target; name a draft model or a head for it")
    return SpeculativeConfig(method="merge", drafters=[each.config for each in kept])


def _one_by_one(target: Target, kept: Sequence[Candidate], options: Any) -> tuple[list[Candidate], dict[str, str]]:
    """Those that can be built alone, and why the others cannot."""
    from outrider.engine import build

    good, refused = [], {}
    for each in kept:
        try:
            build.build_engine(target, [_joined([each])], options)
        except OutriderError as error:
            refused[each.label] = str(error)
        else:
            good.append(each)
    return good, refused


def _take_over(engine: Engine, kept: Sequence[Candidate], every: int) -> Panel:
    """Put the panel and every candidate in the place of the one method that the engine was built with."""
    from outrider.advise.panel import METHOD, Panel
    from outrider.drafters.members import Composite
    from outrider.drafters.registry import DrafterContext

    drafting, target = engine.drafting, engine.target
    (method,) = drafting.methods.values()
    assert isinstance(method.drafter, Composite)
    context = DrafterContext(
        target.vocab_size, target.max_model_len, target.tokenizer.eos_ids, estimates=engine.planner
    )
    panel = Panel(method.drafter.members, kept, context, every=every)
    methods = {
        each.label: replace(method, config=each.config, drafter=member.drafter)
        for each, member in zip(kept, panel.members, strict=True)
    }
    drafting.methods = {**methods, METHOD: replace(method, drafter=panel)}
    engine.recorder = None
    return panel
