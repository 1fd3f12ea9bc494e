"""Tokens per second of requests that run together: Outrider against transformers' continuous batching.

Each round takes other prompts and runs all systems on them in rotated order; the time of a round is that of the whole
call, prefill included. A round has three times as many requests as run together, so that a request that ends makes
room for the next one, as under load; --requests says otherwise. The warm-up takes the longest prompts, so that no
system meets fresh memory in a timed round. transformers runs `generate_batch` with a manager that stays alive between
rounds and a cache of the size that the round needs (left to its defaults it fills 60 % of the free memory with zeros
on every call), and padded batches through `generate`. An EOS ends an answer on all sides unless --ignore-eos; only
tokens up to it are counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import harness
from measure import all_threads, common_length, cut_at_end, mixed

if TYPE_CHECKING:
    from systems import Loaded

    from outrider import LLM, SpeculationParams

PAGE = 256  # tokens of a page of transformers' cache


class BatchSystem(Protocol):
    """One engine in one setting, for many prompts at a time."""

    label: str

    def answer(self, prompts: list[list[int]], salt: str) -> tuple[list[list[int]], float]:
        """The generated ids of each prompt and the seconds of the call."""
        ...


@dataclass(slots=True)
class OutriderBatch:
    """One Outrider engine with one way to speculate."""

    label: str
    llm: LLM
    speculation: SpeculationParams
    args: argparse.Namespace

    def answer(self, prompts: list[list[int]], salt: str) -> tuple[list[list[int]], float]:
        """See ``BatchSystem``."""
        from outrider import SamplingParams

        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=self.args.max_new_tokens,
            ignore_eos=self.args.ignore_eos,
            speculation=self.speculation,
        )
        inputs = [{"prompt_token_ids": ids, "cache_salt": f"{self.label}/{salt}"} for ids in prompts]
        began = time.perf_counter()
        outputs = self.llm.generate(inputs, sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs], time.perf_counter() - began


@dataclass(slots=True)
class ContinuousBatching:
    """``model.generate_batch``. The call's end is the moment when the last request finished: stopping the manager's
    thread does not count."""

    label: str
    loaded: Loaded
    end_ids: frozenset[int]
    args: argparse.Namespace
    longest_prompt: int

    def answer(self, prompts: list[list[int]], salt: str) -> tuple[list[list[int]], float]:
        """See ``BatchSystem``. Raises RuntimeError when a request failed."""
        import torch
        from systems import generation_config
        from transformers import ContinuousBatchingConfig

        pages = -(-(self.longest_prompt + self.args.max_new_tokens) // PAGE) + 1
        settings = ContinuousBatchingConfig(
            num_blocks=pages * self.args.concurrency,
            allow_block_sharing=False,
            max_batch_tokens=self.args.max_batch_tokens or None,
        )
        end_ids = None if self.args.ignore_eos else self.end_ids
        config = generation_config(self.loaded, end_ids, self.args.max_new_tokens)
        began = time.perf_counter()
        with all_threads(), torch.inference_mode():
            answers = self.loaded.model.generate_batch(
                prompts, generation_config=config, continuous_batching_config=settings, persistent_manager=True
            )
        failed = [answer.error for answer in answers.values() if answer.error is not None]
        if failed or len(answers) != len(prompts):
            raise RuntimeError(f"generate_batch answered {len(answers)} of {len(prompts)} requests: {failed[:1]}")
        ended = max(answer.lifespan[1] for answer in answers.values())
        return [list(answer.generated_tokens) for answer in answers.values()], ended - began


@dataclass(slots=True)
class PaddedBatch:
    """``model.generate`` over left-padded batches, as transformers is used without continuous batching."""

    label: str
    loaded: Loaded
    end_ids: frozenset[int]
    args: argparse.Namespace
    pad_id: int

    def answer(self, prompts: list[list[int]], salt: str) -> tuple[list[list[int]], float]:
        """See ``BatchSystem``."""
        import torch
        from systems import generation_config

        end_ids = None if self.args.ignore_eos else self.end_ids
        config = generation_config(self.loaded, end_ids, self.args.max_new_tokens)
        config.pad_token_id = self.pad_id
        rows: list[list[int]] = []
        began = time.perf_counter()
        for at in range(0, len(prompts), self.args.concurrency):
            batch = prompts[at : at + self.args.concurrency]
            width = max(map(len, batch))
            ids = torch.tensor([[self.pad_id] * (width - len(row)) + row for row in batch])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in batch])
            with all_threads(), torch.inference_mode():
                out = self.loaded.model.generate(ids, attention_mask=mask, generation_config=config)
            rows += out[:, width:].tolist()
        seconds = time.perf_counter() - began
        return [cut_at_end(row, end_ids or frozenset()) for row in rows], seconds


@dataclass(slots=True)
class Cell:
    """What one system did over the rounds."""

    num_tokens: int = 0
    seconds: float = 0.0
    rates: list[float] = field(default_factory=list)  # tokens/s of each round
    num_equal: int = 0  # answers with the tokens of the first system
    num_answers: int = 0
    num_common: int = 0  # tokens before the first difference from it

    def add(self, answers: Sequence[Sequence[int]], seconds: float, reference: Sequence[Sequence[int]]) -> None:
        """Count one round."""
        tokens = sum(map(len, answers))
        self.num_tokens += tokens
        self.seconds += seconds
        self.rates.append(tokens / seconds)
        self.num_answers += len(answers)
        for mine, other in zip(answers, reference, strict=True):
            self.num_equal += list(mine) == list(other)
            self.num_common += common_length(mine, other)

    @property
    def rate(self) -> float:
        """Tokens per second, pooled over rounds."""
        return self.num_tokens / self.seconds

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "tokens_per_second": self.rate}


def run(
    systems: Sequence[BatchSystem],
    rounds: Sequence[list[list[int]]],
    warm_up: list[list[int]],
    recorder: harness.Recorder,
) -> dict[str, Cell]:
    """All rounds by all systems, in rotated order, after a warm-up. A system that fails is left out, with its error."""
    live = [system for system in systems if _warmed(system, warm_up, recorder)]
    cells = {system.label: Cell() for system in live}
    try:
        for number, prompts in enumerate(rounds):
            shift = number % len(live)
            answers = {s.label: s.answer(prompts, f"{number}") for s in [*live[shift:], *live[:shift]]}
            for system in live:
                cells[system.label].add(*answers[system.label], answers[live[0].label][0])
            recorder.rows(
                {"round": number, "system": label, "seconds": seconds, "token_ids": rows}
                for label, (rows, seconds) in answers.items()
            )
            recorder.summary({"throughput": {label: cell.to_dict() for label, cell in cells.items()}})
            harness.say(f"round {number + 1}/{len(rounds)} done")
    except KeyboardInterrupt:
        harness.say("interrupted: the table holds what was measured so far")
    return {label: cell for label, cell in cells.items() if cell.rates}


def _warmed(system: BatchSystem, prompts: list[list[int]], recorder: harness.Recorder) -> bool:
    try:
        system.answer(prompts, "warm-up")
    except (RuntimeError, ValueError, NotImplementedError, AttributeError, TypeError) as error:
        recorder.manifest.setdefault("failed", {})[system.label] = repr(error)
        harness.say(f"{system.label} cannot run here and is left out: {error!r}")
        return False
    return True


def show(cells: dict[str, Cell], title: str) -> None:
    """Print throughput and ratios to each system of transformers."""
    theirs = [label for label in cells if label.startswith("transformers")]
    plain = next(iter(cells.values()))
    rows = [
        (
            label,
            f"{cell.rate:.1f}",
            f"{statistics.median(cell.rates):.1f}",
            f"{cell.rate / plain.rate:.2f}x",
            *(f"{cell.rate / cells[other].rate:.2f}x" for other in theirs),
            f"{cell.num_equal}/{cell.num_answers}",
            f"{cell.num_common / max(1, cell.num_tokens):.2f}",
        )
        for label, cell in cells.items()
    ]
    columns = ("system", "tokens/s", "median", "over plain", *(f"over {label}" for label in theirs))
    harness.print_table(title, (*columns, "text equal", "common part"), rows)


def make_systems(args: argparse.Namespace, longest: int) -> tuple[list[Any], dict[str, Any]]:
    """All systems, Outrider's plain first, and facts of the models for the manifest."""
    from systems import load_transformers, suffix_of

    from outrider import LLM, SpeculationParams
    from outrider.bench.runner import PLAIN

    systems: list[Any] = []
    facts: dict[str, Any] = {}
    tokens = (longest + args.max_new_tokens + 16) * args.concurrency
    for exact in harness.exact_values(args):
        llm = LLM(
            args.model,
            dtype=args.dtype,
            exact=exact,
            threads=args.threads,
            seed=args.seed,
            speculative_config=[{"method": method} for method in args.methods],
            max_num_seqs=args.concurrency,
            enable_prefix_caching=False,
            kv_cache_tokens=max(args.kv_cache_tokens, tokens),
        )
        facts[f"outrider{suffix_of(exact)}"] = llm.describe()
        systems.append(OutriderBatch(f"outrider plain{suffix_of(exact)}", llm, PLAIN.speculation, args))
        for method in args.methods:
            label = f"outrider {method}{suffix_of(exact)}"
            systems.append(OutriderBatch(label, llm, SpeculationParams(method=method), args))
    end_ids = systems[0].llm.get_tokenizer().eos_ids
    loaded = load_transformers(args.model, args.transformers_dtype)
    facts["transformers"] = loaded.facts()
    pad_id = loaded.model.generation_config.pad_token_id
    pad_id = min(end_ids) if pad_id is None else pad_id
    systems.append(ContinuousBatching("transformers generate_batch", loaded, end_ids, args, longest))
    systems.append(PaddedBatch("transformers padded", loaded, end_ids, args, pad_id))
    return systems, facts


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = harness.parser(__doc__ or "", max_tokens=64)
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="default: %(default)s")
    parser.add_argument("--requests", type=int, metavar="N", help="of a round (default: three times --concurrency)")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="default: %(default)s")
    parser.add_argument("--methods", type=harness.listed, default=["suffix"], metavar="A,B", help="default: suffix")
    parser.add_argument("--dtype", default="bfloat16", help="of Outrider (default: %(default)s)")
    parser.add_argument("--transformers-dtype", default="bfloat16", help="default: %(default)s")
    parser.add_argument(
        "--max-batch-tokens",
        type=int,
        default=512,
        metavar="N",
        help="rows of a step of generate_batch (default: %(default)s, as Outrider's; 0: its own default, slower here)",
    )
    parser.add_argument("--ignore-eos", action="store_true", help="all answers have --max-new-tokens tokens")
    harness.add_exact(parser)
    args = parser.parse_args(argv)
    harness.start(args)
    from outrider.bench.data import load_prompts
    from outrider.target.load import resolve
    from outrider.target.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(resolve(args.model).location)
    size = 3 * args.concurrency if args.requests is None else args.requests
    count = size * args.rounds
    chosen = mixed(load_prompts(args.prompts), count)
    if len(chosen) < count:
        parser.error(f"--prompts holds {len(chosen)} prompts: {count} are needed for {args.rounds} rounds of {size}")
    ids = [list(tokenizer.encode_chat([{"role": "user", "content": prompt.turns[0]}])) for prompt in chosen]
    groups = [ids[at : at + size] for at in range(0, count, size)]
    warm_up = sorted(ids, key=len)[-args.concurrency :]
    systems, facts = make_systems(args, max(map(len, ids)))
    cells = run(systems, groups, warm_up, harness.Recorder(args, facts))
    if cells:
        show(cells, f"throughput of {size} requests, {args.concurrency} at a time, prefill included")


if __name__ == "__main__":
    main()
