"""`outrider advise` against the engine: what the screen says of acceptance, and what it predicts of speed.

*screen*: for every candidate and K the engine answers the same prompts, and its counts (first position, conditional
acceptance by position, draft acceptance rate, mean acceptance length) are held against the walks over the screen's
texts. *predict*: the runner measures speed-ups over plain decoding, alternating prompt by prompt, and they are held
against the predictions for the same prompts, over all and by task. Needs no other project's engine.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import harness

from outrider.bench.data import Prompt, load_prompts

LEAST_TESTED = 60  # a position that was tested fewer times has an interval wider than what is to be told apart


def main() -> None:
    """Run what ``--only`` asks for, print the tables, write the bundle."""
    args = _arguments()
    harness.start(args)
    from outrider.advise import candidates, costs, memory, predict, rig, screen
    from outrider.llm import LLM

    prompts = load_prompts(args.prompts, args.limit_per_task)
    found = candidates.candidates(args.draft, {f: candidates.kind_of_head(f) for f in args.head}, _configs(args))
    if args.method:
        found = [each for each in found if each.label in harness.listed(args.method)]
    with LLM(args.model, threads=args.threads, max_num_seqs=16, kv_cache_tokens=args.kv_cache_tokens) as llm:
        bench = rig.assemble(llm, found, max_num_seqs=16, seed=args.seed)
        plan = screen.Plan(args.max_new_tokens, args.temperature, args.seed, seconds=1e9)
        harness.say("screening")
        seen = screen.run(bench, prompts, plan, lambda done, total: None)
        recorder = harness.Recorder(args, llm.describe())
        facts: dict[str, Any] = {"refused": bench.refused, "screen_seconds": seen.seconds, "answers": len(seen.texts)}
        known = costs.measure(bench, [text.prompt_ids for text in seen.texts[:6]], 30.0, args.temperature, _quiet)
        predictor = predict.Predictor(bench, seen, known, memory.memory_of(bench, 512))
        if args.only in ("screen", "both"):
            facts["screen"] = check_screen(bench, prompts, seen, predictor, args)
            recorder.summary(facts)
            _show(facts)
        if args.only in ("predict", "both"):
            facts["predict"] = check_predictions(bench, prompts, seen, predictor, args)
        recorder.summary(facts)
    _show({"predict": facts["predict"]} if "predict" in facts else {})


def check_screen(bench: Any, prompts: Sequence[Prompt], seen: Any, predictor: Any, args: Any) -> list[dict[str, Any]]:
    """One row a candidate and K: both sides' figures and the largest difference, in points."""
    from outrider.advise.walks import pooled
    from outrider.bench import runner
    from outrider.core.accounting import SpeculationStats

    jobs = _jobs(bench, args)
    plan = runner.Plan(
        [runner.PLAIN, *(runner.Variant(f"{label}:{k}", label, k) for label, k in jobs)],
        max_tokens=args.max_new_tokens,
        temperature=args.temperature,
        seed=args.seed,
        concurrency=args.concurrency,
    )
    results = runner.run(bench.llm, prompts, plan, lambda done, total, what: harness.say(f"{done}/{total} {what}"))
    by_label = {each.label: each for each in bench.candidates}
    out = []
    for label, k in jobs:
        rows = [row for row in results.rows if row.variant == f"{label}:{k}"]
        stats = SpeculationStats.pooled(row.stats for row in rows)
        mine = pooled(predictor.tallies(by_label[label], k))
        out.append(compare(label, k, mine, stats) | {"equal": sum(row.equal for row in rows), "answers": len(rows)})
    return out


def compare(label: str, k: int, mine: Any, stats: Any) -> dict[str, Any]:
    """``mine``: the walks' ``Tally``; ``stats``: the engine's ``SpeculationStats``. Differences are in points."""
    pairs = []
    for at, (ours, theirs) in enumerate(zip(mine.conditional, stats.conditional_acceptance, strict=False)):
        if (
            ours is not None
            and theirs is not None
            and min(mine.tested[at], stats.tested_per_position[at]) >= LEAST_TESTED
        ):
            pairs.append((at + 1, ours, theirs))
    rate = (mine.acceptance_rate or 0.0, stats.draft_acceptance_rate or 0.0)
    return {
        "label": label,
        "num_speculative_tokens": k,
        "acceptance_rate": rate,
        "rate_points": 100 * abs(rate[0] - rate[1]),
        "conditional": pairs,
        "conditional_points": max((100 * abs(ours - theirs) for _, ours, theirs in pairs), default=0.0),
        "tokens_per_step": (mine.tokens_per_step, stats.mean_acceptance_length),
    }


def check_predictions(bench: Any, prompts: Sequence[Prompt], seen: Any, predictor: Any, args: Any) -> dict[str, Any]:
    """Predicted and measured speed-ups, over all prompts and by task, and how good the choice was."""
    from outrider.advise import prove

    jobs = _jobs(bench, args)
    proofs = prove.run(
        bench, prompts, seen, predictor, jobs, lambda done, total: harness.say(f"{done:.0f}/{total:.0f}")
    )
    rows = [each.to_dict() for each in proofs]
    errors = [abs(each.predicted / each.measured - 1.0) for each in proofs]
    by_task = [abs(a / b - 1.0) for each in proofs for a, b in each.by_task.values()]
    chosen = max(proofs, key=lambda each: each.predicted)
    best = max(proofs, key=lambda each: each.measured)
    return {
        "rows": rows,
        "median_error": statistics.median(errors),
        "median_error_by_task": statistics.median(by_task),
        "chosen": f"{chosen.label}:{chosen.num_speculative_tokens}",
        "best": f"{best.label}:{best.num_speculative_tokens}",
        "chosen_over_best": chosen.measured / best.measured,
    }


def _jobs(bench: Any, args: Any) -> list[tuple[str, int]]:
    wanted = None if not args.k else {int(part) for part in harness.listed(args.k)}
    jobs = []
    for each in bench.candidates:
        budgets = [k for k in bench.usable_budgets(each) if k <= 8 or each.config.tree_kind]
        kept = [k for k in budgets if wanted is None or k in wanted] or budgets[-1:]
        jobs += [(each.label, k) for k in kept]
    return jobs


def _configs(args: Any) -> list[dict[str, Any]]:
    if args.exit_layer is None:
        return []
    return [{"method": "layer_skip", "exit_layer": args.exit_layer, "draft_stop_threshold": 0.0}]


def _quiet(done: float, total: float) -> None:
    return None


def _show(facts: dict[str, Any]) -> None:
    if "screen" in facts:
        rows = [
            (
                each["label"],
                str(each["num_speculative_tokens"]),
                *(f"{value:.3f}" for value in each["acceptance_rate"]),
                f"{each['rate_points']:.1f}",
                f"{each['conditional_points']:.1f}",
                *(f"{value:.2f}" for value in each["tokens_per_step"]),
                f"{each['equal']}/{each['answers']}",
            )
            for each in facts["screen"]
        ]
        columns = ("candidate", "K", "screen", "engine", "points", "by position", "tokens/step", "engine", "equal")
        harness.print_table("acceptance: screen against engine", columns, rows)
    if "predict" in facts:
        found = facts["predict"]
        rows = [
            (
                each["label"],
                str(each["num_speculative_tokens"]),
                f"{each['predicted']:.3f}",
                f"{each['measured']:.3f}",
                f"{100 * (each['predicted'] / each['measured'] - 1):+.1f} %",
                f"{each['predicted_tokens']:.2f}",
                f"{each['measured_tokens']:.2f}",
            )
            for each in found["rows"]
        ]
        columns = ("candidate", "K", "predicted", "measured", "error", "tokens/step", "measured")
        harness.print_table("speed-up over plain decoding", columns, rows)
        print(
            f"median error {found['median_error']:.1%} over all prompts, {found['median_error_by_task']:.1%} by task; "
            f"chosen {found['chosen']}, best {found['best']}: {found['chosen_over_best']:.3f} of it"
        )


def _arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__ or "", max_tokens=64)
    parser.add_argument("--only", choices=("screen", "predict", "both"), default="both")
    parser.add_argument("--draft", action="append", default=[], help="draft model; may be repeated")
    parser.add_argument("--head", action="append", default=[], help="draft head; may be repeated")
    parser.add_argument("--exit-layer", type=int, help="layer_skip as a candidate, with so many layers")
    parser.add_argument("--method", help="only these candidates, comma separated")
    parser.add_argument("--k", help="only these K, comma separated (default: all of 1 to 8)")
    parser.add_argument("--limit-per-task", type=int)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--concurrency", type=int, default=1, help="of the engine's runs in `screen`")
    args: argparse.Namespace = parser.parse_args()
    return args


if __name__ == "__main__":
    main()
