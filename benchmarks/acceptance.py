"""Acceptance of a draft model at temperature 1: shared noise against argmax drafts and against rejection sampling.

Measured twice on the same prompts. *Teacher-forced*: over texts that the target drew, at every position, (a) whether
the draft's law with the target's noise picks the token that the target drew, (b) sum of min(p, q), the acceptance of
rejection sampling (arXiv 2211.17192), (c) p of the draft's argmax, the acceptance of an argmax draft, (d) sum of p q,
that of an independent sample. *Engine*: Outrider's own counts of chains of K tokens under the `sample` rule with shared
noise, under the same rule with argmax drafts, and under `rejection`. Intervals are 95 % bootstraps over prompts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import harness
import numpy as np
from measure import bootstrap, mixed, wilson

if TYPE_CHECKING:
    from torch import Tensor

    from outrider import LLM

RULES = ("shared noise", "argmax draft", "rejection")
COLUMNS = ("positions", "shared noise", "rejection", "argmax draft", "independent", "redrawn")
RATIOS = ("shared noise / this", "shared noise / this, chain")
Table = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class ArgmaxNoise:
    """What a drafter gets when its drafts shall be greedy whatever the temperature: candidates without noise."""

    shared: bool = True
    merge_paths: bool = False

    def candidates(self, seq: object, scores: Tensor, position: int, count: int) -> list[int]:
        """The ``count`` best of ``scores`` [vocab]."""
        best: list[int] = scores.topk(count).indices.tolist()
        return best

    def sample(self, seq: object, weights: Tensor, position: int, index: int) -> int:
        """Never asked for under a rule with shared noise."""
        raise NotImplementedError("argmax drafts are candidates, not samples")


def position_scores(target: Tensor, draft: Tensor, token: int, key: int, position: int) -> list[float]:
    """One row of ``COLUMNS``: raw logits ``target`` and ``draft`` [vocab] of the position where ``token`` was drawn."""
    import torch

    from outrider.core.noise import gumbel_argmax

    p, q = torch.softmax(target.double(), 0), torch.softmax(draft.double(), 0)
    return [
        1.0,
        float(gumbel_argmax(draft, key, position) == token),
        float(torch.minimum(p, q).sum()),
        float(p[q.argmax()]),
        float((p * q).sum()),
        float(gumbel_argmax(target, key, position) == token),
    ]


class TeacherForced:
    """Raw logits of the engine's target and draft model over a text."""

    def __init__(self, llm: LLM) -> None:
        engine: Any = cast(Any, llm._engine)
        self._models = (engine.target, engine.drafting.methods["draft_model"].drafter.model)

    def prompt_sums(self, prompt: Sequence[int], output: Sequence[int], seed: int) -> list[float]:
        """``COLUMNS`` summed over the positions of ``output``."""
        from outrider.core.noise import noise_key

        key = noise_key(seed, 0)
        size = self._models[0].vocab_size
        target, draft = (self._logits(model, prompt, output)[:, :size] for model in self._models)
        rows = [position_scores(target[at], draft[at], token, key, len(prompt) + at) for at, token in enumerate(output)]
        return [float(value) for value in np.sum(rows, axis=0)]

    def _logits(self, model: Any, prompt: Sequence[int], output: Sequence[int]) -> Any:
        import torch

        from outrider.target.batch import Span

        tokens = [*prompt, *output][:-1]
        slots = -(-len(tokens) // 16) * 16
        storage, context = model.new_storage(slots, 16), torch.arange(slots, dtype=torch.int32)
        wanted = list(range(len(prompt) - 1, len(tokens)))
        return model.forward([Span(tokens, context, 0, logits=wanted)], storage).logits


class Rules:
    """Lets one engine, with one pair of models in memory, verify by each of ``RULES`` in turn."""

    def __init__(self, llm: LLM) -> None:
        from outrider.core.verifiers.registry import make_verifier

        self._methods: dict[str, Any] = cast(Any, llm._engine).drafting.methods
        self._method = self._methods["draft_model"]
        self._propose = self._method.drafter.propose
        self._verifiers = {name: make_verifier(name) for name in ("sample", "rejection")}

    def use(self, rule: str) -> None:
        """Verify by ``rule`` from now on."""
        name = "rejection" if rule == "rejection" else "sample"
        self._methods["draft_model"] = replace(self._method, verifier=self._verifiers[name])
        self._method.drafter.propose = self._greedy if rule == "argmax draft" else self._propose

    def _greedy(self, sequences: Any, budgets: Any, noise: object) -> Any:
        return self._propose(sequences, budgets, ArgmaxNoise())


def teacher_summary(table: Table) -> dict[str, Any]:
    """Means over positions, with intervals, and ratios of shared noise to the others. ``table``: prompts, COLUMNS."""
    sums = np.array(table)
    total = sums.sum(axis=0)
    cells: dict[str, Any] = {"positions": int(total[0])}
    for at, name in enumerate(COLUMNS[1:], start=1):
        low, high = bootstrap(_quotient(at, 0), sums)
        cells[name] = {"mean": float(total[at] / total[0]), "low": low, "high": high}
    for name in ("rejection", "argmax draft"):
        at = COLUMNS.index(name)
        low, high = bootstrap(_quotient(1, at), sums)
        cells[f"shared noise / {name}"] = {"mean": float(total[1] / total[at]), "low": low, "high": high}
    return cells


def _quotient(top: int, bottom: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda sums: sums[top] / sums[bottom]


def engine_summary(counts: Mapping[str, Sequence[Any]], num_tokens: int) -> dict[str, Any]:
    """Acceptance of each rule from the ``SpeculationStats`` of its prompts, with ratios of shared noise to the others.

    ``first``: P(position 1 accepted); ``chain``: accepted / drafted tokens; ``tested``: conditional acceptance pooled
    over positions, which is what the teacher-forced figures estimate.
    """
    cells: dict[str, Any] = {}
    tables = {rule: np.array([_counts(stats) for stats in rows]) for rule, rows in counts.items() if rows}
    for rule, table in tables.items():
        spec, first, drafted, accepted, tested, committed, steps = (int(value) for value in table.sum(axis=0))
        low, high = bootstrap(_quotient(3, 4), table)
        cells[rule] = {
            "num_speculative_tokens": num_tokens,
            "num_spec_steps": spec,
            "num_draft_tokens": drafted,
            "num_accepted_draft_tokens": accepted,
            "num_tested": tested,
            "first": first / max(1, spec),
            "first_interval": wilson(first, spec),
            "chain": accepted / max(1, drafted),
            "tested": accepted / max(1, tested),
            "low": low,
            "high": high,
            "mean_acceptance_length": committed / max(1, steps),
        }
    shared = cells.get("shared noise")
    for rule, cell in cells.items():
        if shared is not None and rule != "shared noise" and cell["tested"]:
            cell[RATIOS[0]] = shared["tested"] / cell["tested"]
            cell[RATIOS[1]] = shared["chain"] / cell["chain"]
    return cells


def _counts(stats: Any) -> list[int]:
    accepted, tested = stats.accepted_per_position, stats.tested_per_position
    return [
        stats.num_spec_steps,
        accepted[0] if accepted else 0,
        stats.num_draft_tokens,
        stats.num_accepted_draft_tokens,
        sum(tested),
        stats.num_committed_tokens,
        stats.num_steps,
    ]


def _interval(cell: Mapping[str, Any]) -> str:
    return "" if cell["low"] is None else f"{cell['low']:.3f}-{cell['high']:.3f}"


def show(summary: Mapping[str, Any]) -> None:
    """Print both tables."""
    teacher = dict(summary["teacher_forced"])
    title = f"teacher-forced, T = 1, {teacher.pop('positions')} positions of {summary['num_prompts']} prompts"
    rows = [(name, f"{cell['mean']:.3f}", _interval(cell)) for name, cell in teacher.items()]
    harness.print_table(title, ("acceptance", "mean", "95 %"), rows)
    rows = [
        (
            rule,
            f"{cell['num_spec_steps']}",
            f"{cell['num_accepted_draft_tokens']}/{cell['num_draft_tokens']}",
            f"{cell['first']:.3f}",
            "{:.3f}-{:.3f}".format(*cell["first_interval"]),
            f"{cell['tested']:.3f}",
            _interval(cell),
            f"{cell['chain']:.3f}",
            f"{cell['mean_acceptance_length']:.2f}",
            *(f"{cell[key]:.3f}" if cell.get(key) else "" for key in RATIOS),
        )
        for rule, cell in summary["engine"].items()
    ]
    columns = (
        "engine, T = 1",
        "steps",
        "accepted/drafted",
        "first",
        "95 %",
        "conditional",
        "95 %",
        "of drafted",
        "tokens/step",
        "shared/this",
        "of drafted",
    )
    harness.print_table(f"chains of K = {summary['num_speculative_tokens']}", columns, rows)


def run(llm: LLM, prompts: Sequence[list[int]], args: argparse.Namespace, recorder: harness.Recorder) -> dict[str, Any]:
    """Everything, prompt by prompt."""
    from outrider import SamplingParams, SpeculationParams
    from outrider.bench.runner import PLAIN

    forced, rules = TeacherForced(llm), Rules(llm)
    table: list[list[float]] = []
    counts: dict[str, list[Any]] = {rule: [] for rule in RULES}
    summary: dict[str, Any] = {}
    try:
        for index, ids in enumerate(prompts):
            seed = args.seed + index
            common = {"temperature": 1.0, "max_tokens": args.max_new_tokens, "seed": seed}
            fixed = SpeculationParams(method="draft_model", num_speculative_tokens=args.k)
            inputs = [{"prompt_token_ids": ids}]
            (plain,) = llm.generate(inputs, SamplingParams(**common, speculation=PLAIN.speculation), use_tqdm=False)
            text = list(plain.outputs[0].token_ids)
            table.append(forced.prompt_sums(ids, text, seed))
            row: dict[str, Any] = {"prompt": index, "teacher_forced": dict(zip(COLUMNS, table[-1], strict=True))}
            for rule in RULES:
                rules.use(rule)
                (output,) = llm.generate(inputs, SamplingParams(**common, speculation=fixed), use_tqdm=False)
                counts[rule].append(output.stats)
                row[rule] = {**output.stats.to_dict(), "equal": list(output.outputs[0].token_ids) == text}
            summary = {
                "num_prompts": len(table),
                "num_speculative_tokens": args.k,
                "teacher_forced": teacher_summary(table),
                "engine": engine_summary(counts, args.k),
            }
            recorder.rows([row])
            recorder.summary(summary)
            harness.say(f"{index + 1}/{len(prompts)} prompts")
    except KeyboardInterrupt:
        harness.say("interrupted: the tables hold what was measured so far")
    return summary


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = harness.parser(__doc__ or "", model="", max_tokens=64, prompts=False)
    parser.add_argument("--draft", required=True, help="the draft model: folder, GGUF file or hub id")
    parser.add_argument("--prompts", type=Path, nargs="+", required=True, help="question files; their tasks take turns")
    parser.add_argument("--num-prompts", type=int, default=32, metavar="N", help="default: %(default)s")
    parser.add_argument("-k", type=int, default=4, help="tokens of a chain (default: %(default)s)")
    parser.add_argument("--dtype", default="float16", help="of both models (default: %(default)s)")
    parser.add_argument("--draft-context", type=int, default=2048, metavar="N", help="default: %(default)s")
    harness.add_exact(parser, "yes")
    args = parser.parse_args(argv)
    if not args.model:
        parser.error("--model: give the target")
    harness.start(args)
    from systems import open_engine

    from outrider.bench.data import load_prompts
    from outrider.bench.runner import encode

    config = {
        "method": "draft_model",
        "model": args.draft,
        "draft_dtype": args.dtype,
        "max_model_len": args.draft_context,
    }
    spread = load_prompts(args.prompts, args.num_prompts)
    llm = open_engine(args, dtype=args.dtype, exact=harness.exact_values(args)[0], configs=[config])
    prompts = [
        encode(llm, [{"role": "user", "content": prompt.turns[0]}], raw=False)
        for prompt in mixed(spread, args.num_prompts)
    ]
    summary = run(llm, prompts, args, harness.Recorder(args, llm.describe()))
    if summary:
        show(summary)


if __name__ == "__main__":
    main()
