"""What was found as plain values: the JSON of `outrider advise`, and the files that `outrider simulate` reads."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from outrider.advise import answer
from outrider.advise.agreement import Agreement
from outrider.advise.costs import PLAIN
from outrider.advise.run import Advice
from outrider.advise.walks import pooled

COSTS, DRAFTS = "outrider costs 1", "outrider drafts 1"  # formats of `outrider simulate`


def document(advice: Advice) -> dict[str, Any]:
    """Everything but the single drafts."""
    return {
        "recommendation": advice.recommendation.to_dict(),
        "reasons": advice.reasons,
        "ranking": [_place(advice, each) for each in advice.ranked],
        "rules": [each.to_dict() for each in advice.rules],
        "predictions": [each.to_dict() for each in advice.predictions],
        "proofs": [each.to_dict() for each in advice.proofs],
        "acceptance": acceptance(advice),
        "costs": costs(advice),
        "refused": advice.rig.refused,
        "prompts": {
            "screened": advice.screen.num_prompts,
            "left_out": advice.screen.num_left_out,
            "answers": len(advice.screen.texts),
            "tasks": advice.screen.tasks,
            "screen_seconds": round(advice.screen.seconds, 2),
        },
        "plain": {f"{b}": advice.predictor.plain_tpot_ms(b) for b in sorted({1, *advice.plan.limits.concurrency})},
    }


def _place(advice: Advice, ranked: Any) -> dict[str, Any]:
    return {
        "label": ranked.candidate.label,
        "value": round(ranked.value, 4),
        "out": ranked.out or None,
        "by_concurrency": {
            f"{batch}": {"num_speculative_tokens": best.num_speculative_tokens, "speedup": ranked.speedup(batch)}
            for batch, best in ranked.best.items()
        },
        "deployment": answer.deploy(ranked, advice.predictor, advice.plan.limits).to_dict(),
        "needs_bytes": advice.memory.drafts[ranked.candidate.label].weights,
    }


def acceptance(advice: Advice) -> dict[str, Any]:
    """By candidate: acceptance of its longest drafts by position (of the walk, and by task), rates that `outrider
    simulate` takes, and how its law agrees with the target's."""
    out = {}
    for each in advice.rig.candidates:
        longest = advice.rig.usable_budgets(each)[-1]
        tallies = advice.predictor.tallies(each, longest)
        total = pooled(tallies)
        agreement = Agreement()
        for text in advice.screen.texts:
            if (own := text.agreement.get(each.label)) is not None:
                agreement.add(own.sums, own.num_positions)
        out[each.label] = {
            "num_speculative_tokens": longest,
            "conditional": total.conditional,
            "per_position": total.per_position,
            "draft_acceptance_rate": total.acceptance_rate,
            "mean_acceptance_length": total.tokens_per_step,
            "by_task": {
                task: pooled(
                    tally for tally, text in zip(tallies, advice.screen.texts, strict=True) if text.task == task
                ).conditional
                for task in advice.screen.tasks
            },
            "agreement": agreement.means(),
            "num_positions": agreement.num_positions,
        }
    return out


def costs(advice: Advice) -> dict[str, Any]:
    """The cost curves, by candidate, as measured."""
    known = advice.costs
    return {
        "target": asdict(known.curve),
        "pace": asdict(known.pace),
        "prefill_token_seconds": known.prefill_token,
        "candidates": {label or "plain": asdict(own) for label, own in known.own.items()},
    }


def simulated_costs(advice: Advice) -> dict[str, Any]:
    """The machine as `outrider simulate --costs` reads it; a head or draft model by its own cost curve."""
    known, target = advice.costs, advice.rig.target
    drafts: dict[str, Any] = {}
    for label, own in known.own.items():
        if label == PLAIN:
            continue
        drafter, rows = advice.rig.drafters[label], (1, 2, 4, 8, 16, 32)
        seconds = [drafter.seconds(count, 1) for count in rows]
        if seconds[0] > 0.0:
            factor = own.draft(1) / seconds[0]
            drafts[label] = {"rows": rows, "seconds": [factor * each for each in seconds]}
        else:
            drafts[label] = {"sequence": own.draft(1)}
    return {
        "format": COSTS,
        "target": asdict(known.curve),
        "chunk": {"step": 0.0, "row": known.prefill_token},
        "overhead": {"step": 0.0, "sequence": known.own[PLAIN].overhead(0)},
        "pace_rows": list(known.pace.rows),
        "pace": list(known.pace.factors),
        "drafts": drafts,
        "kv_bytes_per_token": target.kv_bytes_per_token,
    }


def simulated_drafts(advice: Advice) -> dict[str, Any]:
    """Every draft at every position as `outrider simulate --drafts` reads it."""
    requests = []
    for text in advice.screen.texts:
        drafts = {
            label: [
                [at + 1, [round(score, 4) for score in each.scores], each.parents, list(each.path)]
                for at, each in enumerate(shadows)
                if each.size
            ]
            for label, shadows in text.shadows.items()
        }
        requests.append({"prompt": len(text.prompt_ids), "output": len(text.answer_ids), "drafts": drafts})
    return {"format": DRAFTS, "requests": requests}
