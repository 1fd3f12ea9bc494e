"""``outrider train``: a draft head from prompts, in stages that can be run and resumed alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, get_args

import typer

from outrider.cli import options
from outrider.cli.common import console
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.target.progress import LateBar
    from outrider.train.fit import Line
    from outrider.train.listener import Listener
    from outrider.train.run import Run

T = TypeVar("T")


def train(
    head: Annotated[str, typer.Argument(metavar="HEAD", help="eagle3, eagle, mtp, medusa, hydra or hydra_plus.")],
    target: Annotated[str, typer.Option("--target", metavar="MODEL", help="The model that is drafted for.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Where everything goes; the head in FOLDER/HEAD/head, with --joint FOLDER/medusa2.",
        ),
    ],
    prompts: Annotated[
        list[Path] | None,
        typer.Option("--prompts", metavar="FILE", help=options.PROMPTS_HELP),
    ] = None,
    self_prompts: Annotated[
        int,
        typer.Option("--self-prompts", metavar="N", min=0, help="Prompts that the target writes itself."),
    ] = 0,
    stage: Annotated[
        list[str] | None,
        typer.Option(
            "--stage", help="Run this stage alone: regenerate, features, fit, joint, evaluate; may be repeated."
        ),
    ] = None,
    limit_per_task: options.Limit = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=8, help="Longest answer.")] = 256,
    draft_vocab: Annotated[
        int | None,
        typer.Option("--draft-vocab", min=1, help="Tokens that the head can draft: 8192, or those of --init."),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Times that each answer is seen.")] = 5,
    rows: Annotated[int, typer.Option("--batch-rows", min=16, help="Tokens of a batch.")] = 4096,
    longest: Annotated[int, typer.Option("--longest", min=8, help="Tokens of a text that are used.")] = 512,
    steps: Annotated[int, typer.Option("--ttt-steps", min=1, max=16, help="Tokens that the head is unrolled for.")] = 4,
    layers: Annotated[int, typer.Option("--layers", min=1, max=8, help="Blocks of each medusa or hydra head.")] = 1,
    start: Annotated[
        Path | None,
        typer.Option("--init", metavar="HEAD", help="A head to go on from, not the target's weights."),
    ] = None,
    learn_prompts: Annotated[
        bool,
        typer.Option("--learn-prompts", help="Learn the target's law over the prompts too, not the answers alone."),
    ] = False,
    loss: Annotated[str, typer.Option("--loss", help="ce, lk or hybrid: cross entropy, acceptance, or both.")] = "ce",
    lr: Annotated[float, typer.Option("--lr", min=0.0, help="Highest learning rate.")] = 1e-3,
    seed: Annotated[int, typer.Option("--seed", help="Of answers, order and initial weights.")] = 0,
    device: Annotated[str, typer.Option("--device", help="Where the head is fitted: cpu or cuda.")] = "cpu",
    shard: Annotated[
        bool, typer.Option("--shard", help="Under torchrun: spread weights and optimiser over the processes (FSDP2).")
    ] = False,
    joint: Annotated[
        int | None,
        typer.Option("--joint", metavar="EPOCHS", min=1, help="Medusa-2: then train the target too. It is CHANGED."),
    ] = None,
    joint_weight: Annotated[
        float | None,
        typer.Option("--joint-weight", min=0.0, help="--joint: of the heads' loss, beside the target's KL; 0.2."),
    ] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log to TensorBoard too.")] = False,
    threads: options.Threads = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the run takes, and stop.")] = False,
    shown: Annotated[
        int | None, typer.Option("--view", min=1, help="Show so many texts, coloured by what is learnt, and stop.")
    ] = None,
) -> None:
    """Train a draft head: the target answers the prompts, its hidden states are kept, the head is fitted to them."""
    from outrider.threads import prepare

    prepare(threads)
    from outrider.heads.config import KINDS, HeadKind
    from outrider.train.fit import FitOptions
    from outrider.train.joint import JointOptions
    from outrider.train.objective import LossName
    from outrider.train.regenerate import Sampling
    from outrider.train.run import STAGES, Run, TrainPlan

    kind: HeadKind = _one_of("head", head, KINDS)
    chosen: LossName = _one_of("--loss", loss, get_args(LossName))
    if unknown := set(stage or ()) - set(STAGES):
        raise ConfigError(f"--stage {sorted(unknown)[0]!r} is not known; choose among: {', '.join(STAGES)}")
    if not prompts and not self_prompts:
        raise ConfigError("give --prompts FILE, or --self-prompts N (4000 is a start) to have the target write them")
    together = None
    if joint is not None:
        _check_joint(kind, shard)
        together = JointOptions(joint) if joint_weight is None else JointOptions(joint, joint_weight)
    elif joint_weight is not None or "joint" in (stage or ()):
        raise ConfigError("--stage joint and --joint-weight need --joint EPOCHS, which trains the target too")
    plan = TrainPlan(
        kind,
        target,
        prompts or [],
        out,
        limit_per_task,
        draft_vocab,
        layers,
        start,
        self_prompts,
        tensorboard,
        together,
        Sampling(max_tokens=max_tokens, seed=seed),
        FitOptions(
            epochs, rows, longest, steps, lr, seed=seed, loss=chosen, device=device, shard=shard, prompts=learn_prompts
        ),
    )
    bars = ExitStack()
    job = Run(plan, _listener(bars), threads=threads)
    if shown is not None:
        _show(job, shown)
        return
    if job.speaks and (stage is None or dry_run):
        print("\n".join(job.preflight().lines()), file=sys.stderr)
    if dry_run:
        return
    with bars:
        written = job.run(stage or [each for each in STAGES if each != "joint" or together])
    if job.speaks and written:
        print(*written, sep="\n")
    job.leave()


def _check_joint(kind: str, shard: bool) -> None:
    if kind != "medusa":
        raise ConfigError(f"--joint is Medusa-2, and {kind!r} is no medusa head: train medusa, or leave it out")
    if shard:
        raise ConfigError("--joint does not go with --shard: leave one of them out")


def _one_of(what: str, given: str, choices: Sequence[T]) -> T:
    for choice in choices:
        if choice == given:
            return choice
    raise ConfigError(f"{what} {given!r} is not known; choose one of: {', '.join(map(str, choices))}")


def _show(job: Run, count: int) -> None:
    from outrider.train.view import LEGEND

    out = console(stderr=False)
    out.print(LEGEND)
    for text in job.views(count):
        out.rule()
        out.print(text)


def _listener(bars: ExitStack) -> Listener:
    """Bars, lines and notes on stderr."""
    from outrider.target.progress import late_bar
    from outrider.train.listener import Listener

    shown: dict[str, LateBar] = {}

    def progress(name: str, done: int, total: int) -> None:
        if name not in shown:
            bars.close()
            shown[name] = bars.enter_context(late_bar(name))
        shown[name].update(done, total)

    def line(row: Line, total: int) -> None:
        acceptance = " ".join(f"{value:.3f}" for value in row.acceptance)
        moved = "" if row.kl is None else f" KL {row.kl:.4f}"
        engine = "".join(f" {name} {value:.2f}" for name, value in row.engine.items())
        print(
            f"{row.split}: step {row.step}/{total} epoch {row.epoch} loss {row.loss:.4f}{moved} "
            f"acceptance {acceptance} length {row.length:.2f} ({row.seconds:.0f} s)"
            f"{'; engine:' if engine else ''}{engine}",
            file=sys.stderr,
            flush=True,
        )

    def note(text: str) -> None:
        bars.close()
        print(text, file=sys.stderr)

    return Listener(progress, line, note)
