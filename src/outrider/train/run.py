"""The four stages of `outrider train` in one folder, each from where it was left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.bench.data import load_prompts
from outrider.heads import files
from outrider.heads.config import eagle3_config
from outrider.heads.eagle3 import Eagle3
from outrider.llm import LLM
from outrider.target.model import load_target
from outrider.train import vocabulary
from outrider.train.answers import AnswerFile, Sample
from outrider.train.features import FeatureStore, extract
from outrider.train.fit import Fit, FitOptions, Line
from outrider.train.regenerate import Sampling, regenerate
from outrider.train.start import initialise, read_target

STAGES = ("regenerate", "features", "fit")


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """What is trained on what, and where it goes."""

    target: str
    prompts: Sequence[Path]
    out: Path
    limit_per_task: int | None = None
    draft_vocab_size: int = 8192
    sampling: Sampling = field(default_factory=Sampling)
    fit: FitOptions = field(default_factory=FitOptions)


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told: ``progress(stage, done, total)``, ``line`` a line of the log, ``note`` a fact."""

    progress: Callable[[str, int, int], None]
    line: Callable[[Line, int], None]
    note: Callable[[str], None]


def run(plan: TrainPlan, stages: Sequence[str], listener: Listener, **options: Any) -> None:
    """Run ``stages`` in their order. ``options``: of ``LLM`` for the target."""
    plan.out.mkdir(parents=True, exist_ok=True)
    answers = AnswerFile(plan.out / "answers.jsonl")
    store = FeatureStore(plan.out / "features")
    if "regenerate" in stages:
        _regenerate(plan, answers, listener, options)
    if "features" in stages:
        _features(plan, answers, store, listener)
    if "fit" in stages:
        _fit(plan, answers, store, listener)


def _regenerate(plan: TrainPlan, answers: AnswerFile, listener: Listener, options: dict[str, Any]) -> None:
    prompts = load_prompts(plan.prompts, plan.limit_per_task)
    with LLM(plan.target, max_num_seqs=32, **options) as llm:
        skipped = regenerate(
            llm, prompts, plan.sampling, answers, lambda done, total: listener.progress("regenerate", done, total)
        )
    if skipped:
        listener.note(f"{skipped} of {len(prompts)} prompts are longer than the target's context and were left out")


def _features(plan: TrainPlan, answers: AnswerFile, store: FeatureStore, listener: Listener) -> None:
    target = load_target(plan.target)
    layers = eagle3_config(target.config, "", 1, target.max_model_len).hidden_layers
    store.describe(target=target.fingerprint, dtype=target.dtype_name, layers=list(layers))
    extract(target, samples_of(answers), layers, store, lambda done, total: listener.progress("features", done, total))


def samples_of(answers: AnswerFile) -> list[Sample]:
    """All samples in which the target wrote something."""
    return [sample for answered in answers for sample in answered.samples if sample.num_answer_tokens > 0]


def _fit(plan: TrainPlan, answers: AnswerFile, store: FeatureStore, listener: Listener) -> None:
    target = read_target(plan.target)
    config = eagle3_config(
        target.config, store.facts["target"], plan.draft_vocab_size, int(target.config.max_position_embeddings)
    )
    update = {"trained_length": plan.fit.longest, "trained_steps": plan.fit.num_steps}
    head = Eagle3(config.model_copy(update=update))
    chosen = vocabulary.choose(samples_of(answers), config.draft_vocab_size, config.vocab_size, sorted(target.eos_ids))
    listener.note(f"draft vocabulary: {len(chosen.ids)} tokens cover {chosen.coverage:.2%} of the answers")
    head.set_vocabulary(chosen.ids)
    initialise(head, target, plan.fit.seed)
    folder = plan.out / "fit"
    folder.mkdir(exist_ok=True)
    Fit(head, target, store, plan.fit, folder).run(listener.line)
    files.save(head, plan.out / "head")
