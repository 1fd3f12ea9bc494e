"""A whole run: candidates, screen, costs, predictions, proof, answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from outrider.advise import answer, candidates, costs, memory, predict, prove, reasons, rules, screen
from outrider.advise.rig import assemble
from outrider.bench.data import Prompt
from outrider.target.progress import late_bar

if TYPE_CHECKING:
    from outrider.advise.rig import Rig
    from outrider.llm import LLM


@dataclass(frozen=True, slots=True)
class Plan:
    """What to compare and how. ``prove``: candidates that run for real, 0 for none; ``prove_prompts``: on how many
    prompts; seconds bound the screen and the timing of steps."""

    drafts: Sequence[str] = ()
    heads: Mapping[str, str] = field(default_factory=dict)
    configs: Sequence[Mapping[str, Any]] = ()
    screen: screen.Plan = field(default_factory=screen.Plan)
    limits: answer.Limits = field(default_factory=answer.Limits)
    prove: int = 3
    prove_prompts: int = 12
    cost_seconds: float = 30.0
    trees: bool = True


@dataclass(slots=True)
class Advice:
    """Everything that was found."""

    plan: Plan
    rig: Rig
    screen: screen.Screen
    costs: costs.Costs
    memory: memory.Memory
    predictor: predict.Predictor
    predictions: list[predict.Prediction]
    proofs: list[prove.Proof]
    ranked: list[answer.Ranked]
    recommendation: answer.Recommendation
    reasons: list[str]
    rules: list[rules.Rule]


def advise(llm: LLM, prompts: Sequence[Prompt], plan: Plan) -> Advice:
    """Compare all candidates for ``llm``, which has no method yet, on ``prompts``. Raises ConfigError where none goes
    with the target, and RequestError for a prompt that is too long."""
    found = candidates.candidates(plan.drafts, plan.heads, plan.configs, trees=plan.trees)
    with late_bar("advise: loading candidates") as bar:
        bar.update(0, len(found))
        rig = assemble(llm, found, max_num_seqs=max(screen.BATCH, *plan.limits.concurrency), seed=plan.screen.seed)
    with late_bar("advise: screening prompts") as bar:
        seen = screen.run(rig, prompts, plan.screen, bar.update)
    sample = [text.prompt_ids for text in seen.texts]
    with late_bar("advise: timing steps") as bar:
        known = costs.measure(rig, _spread(sample, 4), plan.cost_seconds, plan.screen.temperature, bar.update)
    longest = sum(len(text.prompt_ids) for text in seen.texts) // len(seen.texts) + plan.screen.max_tokens
    room = memory.memory_of(rig, longest)
    predictor = predict.Predictor(rig, seen, known, room)
    grid = predictor.grid(sorted({1, *plan.limits.concurrency}))
    proofs = _prove(rig, prompts, seen, predictor, grid, plan)
    ranked = answer.rank(rig.candidates, grid, proofs, plan.limits, room)
    chosen = answer.recommend(ranked, predictor, plan.limits)
    case = reasons.Case(ranked, chosen, predictor, seen, known, room, plan.limits)
    single = [each for each in grid if each.batch == 1]
    evidence = rules.Evidence(predictor, seen, rig.candidates, single, max(single, key=lambda each: each.speedup))
    return Advice(
        plan,
        rig,
        seen,
        known,
        room,
        predictor,
        grid,
        proofs,
        ranked,
        chosen,
        reasons.reasons(case),
        rules.judge(evidence),
    )


def _prove(
    rig: Rig,
    prompts: Sequence[Prompt],
    seen: screen.Screen,
    predictor: predict.Predictor,
    grid: Sequence[predict.Prediction],
    plan: Plan,
) -> list[prove.Proof]:
    if not plan.prove:
        return []
    ids = {text.prompt_id for text in seen.texts}
    chosen = _spread([prompt for prompt in prompts if prompt.prompt_id in ids], plan.prove_prompts)
    few = prove.best_few(grid, plan.prove)
    with late_bar("advise: running the best") as bar:
        jobs = [(each.label, each.num_speculative_tokens) for each in few]
        return prove.run(rig, chosen, seen, predictor, jobs, bar.update)


def _spread(rows: Sequence[Any], count: int) -> list[Any]:
    """Up to ``count`` of ``rows``, evenly spread."""
    if len(rows) <= count:
        return list(rows)
    return [rows[at * len(rows) // count] for at in range(count)]
