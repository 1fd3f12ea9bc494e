"""The stages of `outrider train` in one folder, each from where it was left."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.text import Text

from outrider.bench.data import Prompt, load_prompts
from outrider.errors import ConfigError
from outrider.heads import files
from outrider.heads.base import DraftHead, TargetWeights
from outrider.heads.config import RECURRENT, HeadKind, config_for, fused_layers
from outrider.heads.kinds import make
from outrider.llm import LLM
from outrider.target.model import load_target
from outrider.train import vocabulary
from outrider.train.adapter import RANK, Adapter
from outrider.train.answers import AnswerFile, Sample
from outrider.train.ask import ask
from outrider.train.board import Board
from outrider.train.card import CHANGED, cards
from outrider.train.curves import draw
from outrider.train.evaluate import calibrate, evaluate
from outrider.train.facts import agree
from outrider.train.features import FeatureStore, extract, row_bytes
from outrider.train.fit import Fit, FitOptions, Judge, Line, Report, num_held_out
from outrider.train.joint import JointFit, JointOptions
from outrider.train.listener import SILENT, Listener
from outrider.train.preflight import Preflight, preflight, size_of, with_joint
from outrider.train.regenerate import Sampling, regenerate
from outrider.train.second import SecondStage, digest_of, record_canary
from outrider.train.start import read_target, with_vocabulary
from outrider.train.view import chosen, view
from outrider.train.workers import Workers

STAGES = ("regenerate", "features", "fit", "joint", "evaluate")
_VOCABULARY = 8192  # tokens that a head can draft, unless the plan says
_JUDGED, _EVALUATED = 16, 48  # held-out prompts that are answered after an epoch, and at the end
_TOKENS = 96  # of each of those answers
_LOOKED_AT = 64  # prompts whose length is taken where none is answered


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """What is trained on what, and where it goes. ``num_layers``: of each head of medusa and hydra; ``start``: a head
    to go on from, whose shape stays, and its vocabulary unless ``draft_vocab_size`` asks for one; ``self_prompts``:
    how many the target writes itself; ``tensorboard``: the log goes there too; ``joint``: train the target too."""

    kind: HeadKind
    target: str
    prompts: Sequence[Path]
    out: Path
    limit_per_task: int | None = None
    draft_vocab_size: int | None = None
    num_layers: int = 1
    start: Path | None = None
    self_prompts: int = 0
    tensorboard: bool = False
    joint: JointOptions | None = None
    sampling: Sampling = field(default_factory=Sampling)
    fit: FitOptions = field(default_factory=FitOptions)


class Run:
    """A plan and what its folder holds. ``options``: of ``LLM`` for the target."""

    def __init__(self, plan: TrainPlan, listener: Listener, **options: Any) -> None:
        self._workers = Workers.join()
        self.plan, self._options = plan, options
        self._listener = listener if self._workers.first else SILENT
        plan.out.mkdir(parents=True, exist_ok=True)
        self._answers = AnswerFile(plan.out / "answers.jsonl")
        self._store = FeatureStore(plan.out / "features")
        self._folder = plan.out / plan.kind
        self._second = SecondStage(plan.target, plan.out / "medusa2", self._listener)

    @property
    def speaks(self) -> bool:
        """Whether this process, of several, is the one that says what was done."""
        return self._workers.first

    def leave(self) -> None:
        """The run is over; under `torchrun` this ends the process."""
        self._workers.leave()

    def run(self, stages: Sequence[str]) -> list[Path]:
        """Run ``stages`` in their order. Returns the folders that they wrote: a new target, and last the head."""
        for stage in STAGES:
            if stage in stages:
                if stage == "fit":
                    self._fit()
                elif stage == "joint":
                    self._joint(None if "fit" in stages else self.plan.start)
                else:
                    self._workers.once(getattr(self, f"_{stage}"))
        if self.plan.joint and {"joint", "evaluate"} & set(stages):
            return [self._second.target, self._second.folder / "head"]
        return [self._folder / "head"] if {"fit", "evaluate"} & set(stages) else []

    def preflight(self) -> Preflight:
        """What the run takes. Raises ConfigError for what cannot work."""
        plan, target = self.plan, load_target(self.plan.target)
        prompts, samples = self._prompts(), self._samples()
        turns = [prompt.turns[0] for prompt in prompts[:_LOOKED_AT]] or [""]
        lengths = [len(target.tokenizer.encode_chat([{"role": "user", "content": turn}])) for turn in turns]
        head = self._untrained(target.config, target.fingerprint, target.max_model_len)
        ids = self._vocabulary(head, samples, target.tokenizer.eos_ids) if samples else None
        count = len(prompts) if self._own.exists() else len(prompts) + plan.self_prompts
        size = size_of(samples, len(self._answers), count, sum(lengths) / len(turns), plan.sampling.max_tokens)
        coverage, layers = None if ids is None else ids.coverage, len(fused_layers(target.num_layers))
        each = row_bytes(head.config.hidden_size, layers)
        found = preflight(head, target, size, coverage, plan.fit, plan.out, each, self._store.num_rows)
        return found if plan.joint is None else with_joint(found, head, target, plan.fit, plan.joint, plan.out)

    def views(self, count: int) -> Iterator[Text]:
        """What ``count`` of the texts teach. Raises ConfigError when nothing is answered yet."""
        samples = self._samples()
        if not samples:
            raise ConfigError(f"--view: {self._answers.path} holds no answers yet; run --stage regenerate first")
        target = load_target(self.plan.target)
        head = self._untrained(target.config, target.fingerprint, target.max_model_len)
        ids = self._vocabulary(head, samples, target.tokenizer.eos_ids).ids
        for sample in chosen(samples, count):
            yield view(sample, target.tokenizer, ids, self.plan.fit.longest)

    @property
    def _own(self) -> Path:
        """The prompts that the target wrote."""
        return self.plan.out / "prompts.jsonl"

    def _prompts(self) -> list[Prompt]:
        """Those that are given and those of the target that are there, shuffled: the first ones are held out."""
        plan = self.plan
        prompts = load_prompts(plan.prompts, plan.limit_per_task) if plan.prompts else []
        if plan.self_prompts and self._own.exists():
            prompts += load_prompts([self._own])
        random.Random(plan.sampling.seed).shuffle(prompts)
        return prompts

    def _samples(self) -> list[Sample]:
        """All in which the target wrote something."""
        return [each for answered in self._answers for each in answered.samples if each.num_answer_tokens > 0]

    def _untrained(self, config: Any, fingerprint: str, max_model_len: int) -> DraftHead:
        plan = self.plan
        stack = {} if plan.kind in RECURRENT else {"num_heads": plan.fit.num_steps, "num_layers": plan.num_layers}
        facts = {"trained_length": plan.fit.longest, "trained_steps": plan.fit.num_steps, **stack}
        size = plan.draft_vocab_size or _VOCABULARY
        return make(config_for(plan.kind, config, fingerprint, size, max_model_len, **facts))

    def _vocabulary(
        self, head: DraftHead, samples: Sequence[Sample], eos_ids: frozenset[int]
    ) -> vocabulary.DraftVocabulary:
        return vocabulary.choose(samples, head.config.draft_vocab_size, head.config.vocab_size, sorted(eos_ids))

    def _regenerate(self) -> None:
        plan, note = self.plan, self._listener.note
        with LLM(plan.target, max_num_seqs=32, **self._options) as llm:
            if plan.self_prompts:
                ask(llm, plan.self_prompts, plan.sampling.seed, self._own, self._progress("prompts"))
            prompts = self._prompts()
            self._answers.describe(
                target=llm.fingerprint,
                template=_template(llm),
                prompts=_digest(prompts),
                temperatures=list(plan.sampling.temperatures),
                max_tokens=plan.sampling.max_tokens,
                seed=plan.sampling.seed,
            )
            skipped = regenerate(llm, prompts, plan.sampling, self._answers, self._progress("regenerate"))
        if skipped:
            note(f"{skipped} of {len(prompts)} prompts are longer than the target's context and were left out")

    def _features(self) -> None:
        target = load_target(self.plan.target)
        layers = fused_layers(target.num_layers)  # whatever the head: one store serves all kinds
        self._store.describe(target=target.fingerprint, dtype=target.dtype_name, layers=list(layers))
        extract(target, self._samples(), layers, self._store, self._progress("features"))

    def _fit(self) -> None:
        plan, samples, target = self.plan, self._samples(), read_target(self.plan.target)
        self._store.verify()
        head = self._untaught(target, samples) if plan.start is None else self._begun(target, samples, plan.start)
        folder = self._folder / "fit"
        folder.mkdir(parents=True, exist_ok=True)
        self._workers.once(lambda: agree(folder / "fit.json", "a fit", self._fit_facts(head, plan.fit)))
        fit = Fit(head, target, self._store, plan.fit, folder, self._workers)
        held_out = [sample.prompt for sample in samples[: fit.num_held_out][:_JUDGED]]

        def judge(head: DraftHead) -> dict[str, float]:
            files.save(head, folder / "head")
            return asdict(evaluate(plan.target, plan.kind, folder / "head", held_out, _TOKENS, **self._options))

        self._logged(fit, folder, judge)
        self._workers.once(lambda: self._finish(fit.head, samples[0]))

    def _logged(self, fit: Fit, folder: Path, judge: Judge | None = None) -> None:
        """Run ``fit`` under the eyes of all who listen, and draw its curves."""
        plan = self.plan
        with ExitStack() as stack:
            report = self._listener.line
            if plan.tensorboard and self._workers.first:
                report = _to_both(report, stack.enter_context(Board(folder / "tensorboard")))
            fit.run(report, judge)
        self._workers.once(lambda: self._draw(folder / "log.jsonl"))

    def _draw(self, log: Path) -> None:
        try:
            _, page = draw(log, f"{log.parent.parent.name} for {self.plan.target}")
            self._listener.note(f"curves: {page}")
        except ConfigError as error:  # they are no reason to lose a head
            self._listener.note(str(error))

    def _finish(self, head: DraftHead, sample: Sample) -> None:
        record_canary(load_target(self.plan.target), head.cpu(), sample)
        files.save(head, self._folder / "head")

    def _joint(self, start: Path | None) -> None:
        """Go on from the head ``start``, or from the one that ``fit`` wrote, with the target."""
        plan, samples, joint = self.plan, self._samples(), self.plan.joint
        assert joint is not None
        start = start or self._folder / "head"
        if not start.exists():
            raise ConfigError(f"--stage joint: {start} is not there yet; run --stage fit first, or give --init HEAD")
        self._listener.note(CHANGED)
        self._store.verify()
        target = read_target(plan.target)
        head = self._begun(target, samples, start)
        folder, options = self._second.folder / "fit", replace(plan.fit, epochs=joint.epochs)
        folder.mkdir(parents=True, exist_ok=True)
        more = {"init": digest_of(head), "weight": joint.weight, "rank": RANK}
        facts = self._fit_facts(head, options) | more
        self._workers.once(lambda: agree(folder / "fit.json", "a joint fit", facts))
        adapter = Adapter(plan.target, options.seed, self._workers.device(options.device))
        fit = JointFit(head, adapter, target, self._store, options, folder, joint.weight, self._workers)
        self._logged(fit, folder)
        self._workers.once(lambda: self._second.finish(fit, samples))

    def _fit_facts(self, head: DraftHead, options: FitOptions) -> dict[str, Any]:
        """All that the weights of a fit follow from."""
        plan = self.plan
        kept = {key: value for key, value in asdict(options).items() if key not in ("device", "share", "shard")}
        return {
            "texts": self._store.num_texts,
            "target": self._store.facts["target"],
            "vocabulary": hashlib.sha256(head.target_ids.numpy().tobytes()).hexdigest()[:16],
            "layers": plan.num_layers,
            "init": None if plan.start is None else str(plan.start),
            **kept,
        }

    def _untaught(self, target: TargetWeights, samples: Sequence[Sample]) -> DraftHead:
        """A head as the target's weights give it."""
        longest = int(target.config.max_position_embeddings)
        head = self._untrained(target.config, self._store.facts["target"], longest)
        head.set_vocabulary(self._vocabulary(head, samples, target.eos_ids).ids)
        head.start(target, torch.Generator().manual_seed(self.plan.fit.seed))
        return head

    def _begun(self, target: TargetWeights, samples: Sequence[Sample], start: Path) -> DraftHead:
        """The head ``start`` as a fit goes on from it."""
        plan, fingerprint = self.plan, self._store.facts["target"]
        head = files.load(start)
        if (head.config.kind, head.config.target) != (plan.kind, fingerprint):
            raise ConfigError(
                f"--init {start} is a head of kind {head.config.kind} for {head.config.target}, not of kind "
                f"{plan.kind} for {fingerprint}"
            )
        facts = {"trained_length": plan.fit.longest, "trained_steps": plan.fit.num_steps}
        head.config = head.config.model_copy(update=facts)
        if plan.draft_vocab_size is None:
            return head
        ids = vocabulary.choose(samples, plan.draft_vocab_size, head.config.vocab_size, sorted(target.eos_ids)).ids
        return with_vocabulary(head, ids, target)

    def _evaluate(self) -> None:
        plan, samples = self.plan, self._samples()
        held_out = samples[: num_held_out(len(samples), plan.fit)]
        prompts = [sample.prompt for sample in held_out[:_EVALUATED]]
        folder, target = self._folder, plan.target
        if plan.joint:
            folder, target = self._second.folder, str(self._second.target)
        place = folder / "head"
        measured: tuple[Any, ...] = (target, plan.kind, place, prompts, _TOKENS)
        sampled = calibrate(*measured, **self._options)
        head = files.load(place)
        best = max(sampled, key=lambda temperature: sampled[temperature])
        head.config = head.config.model_copy(update={"draft_temperature": best})
        files.save(head, place)
        found = evaluate(*measured, **self._options)
        facts = asdict(found) | {"prompts": len(prompts), "max_tokens": _TOKENS, "by_draft_temperature": sampled}
        (folder / "evaluation.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        if plan.joint:
            cards(folder)
        self._listener.note(f"mean acceptance length on {len(prompts)} held-out prompts: {found.text()}")

    def _progress(self, stage: str) -> Callable[[int, int], None]:
        return lambda done, total: self._listener.progress(stage, done, total)


def _to_both(report: Report, board: Board) -> Report:
    def both(line: Line, total: int) -> None:
        report(line, total)
        board.add(line)

    return both


def _digest(prompts: Sequence[Prompt]) -> str:
    """What tells one list of prompts from another."""
    return hashlib.sha256(json.dumps([prompt.turns for prompt in prompts]).encode()).hexdigest()[:16]


def _template(llm: LLM) -> str:
    """What tells one chat template from another."""
    tokens = llm.get_tokenizer().encode_chat([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16]
