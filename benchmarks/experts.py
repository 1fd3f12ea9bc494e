"""Speculation on a mixture of experts: a random Qwen3-MoE, plain decoding against drafts that are right as often as
they are told to be, with the planner on.

The model has seeded random weights, so nothing is downloaded; answers are drawn at temperature 1 and have no structure,
so that rows share no more experts than chance has it, which is the hardest case. Each acceptance is an engine of its
own, which knows nothing of the others. Its drafter knows the plain answer: it costs no time, so what is measured is the
choice of the planner and what rows cost. Plain and drafted rounds alternate within an engine, and a drafted round is
compared with the plain ones before and behind it; what two plain rounds in a row differ by is the noise of a round.
The bar: no acceptance below 0.97 of plain.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import harness

if TYPE_CHECKING:
    from outrider import LLM

BAR = 0.97
PROMPT_TOKENS = 64


def write_model(folder: Path, args: argparse.Namespace) -> int:
    """Write a random Qwen3-MoE and a byte-level tokenizer into ``folder``; the bytes of its weights in float16."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={text: at for at, text in enumerate(["</s>", *alphabet])}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(folder)
    config = Qwen3MoeConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        intermediate_size=args.hidden,
        moe_intermediate_size=args.expert_width,
        num_hidden_layers=args.layers,
        num_experts=args.experts,
        num_experts_per_tok=args.chosen,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        norm_topk_prob=True,
        eos_token_id=0,
    )
    torch.manual_seed(args.seed)
    model = Qwen3MoeForCausalLM(config).half()
    model.save_pretrained(folder)
    return 2 * sum(weight.numel() for weight in model.parameters())


@dataclass(slots=True)
class Cell:
    """Rounds of plain decoding and of drafts, at one acceptance and batch size."""

    acceptance: float
    num_sequences: int
    plain: list[float] = field(default_factory=list)  # tokens/s of each round, one more than of drafted ones
    drafted: list[float] = field(default_factory=list)
    num_steps: int = 0
    num_drafted: int = 0
    equal: bool = True
    curve: dict[int, float] = field(default_factory=dict)  # milliseconds by rows

    @property
    def ratios(self) -> list[float]:
        """Of each drafted round, over the mean time of the plain rounds before and behind it."""
        around = pairwise(self.plain)
        return [mine * (1 / first + 1 / last) / 2 for mine, (first, last) in zip(self.drafted, around, strict=True)]

    @property
    def ratio(self) -> float:
        """Their median."""
        return statistics.median(self.ratios)

    @property
    def noise(self) -> float:
        """What two plain rounds in a row differ by, in the median."""
        return statistics.median(abs(last / first - 1.0) for first, last in pairwise(self.plain))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "ratio": self.ratio, "noise": self.noise}


def answer(
    llm: LLM, prompts: Sequence[list[int]], tokens: int, predictions: Sequence[list[int]] | None
) -> tuple[list[list[int]], float, int, int]:
    """Answers, tokens per second of decoding, steps and drafted tokens of all."""
    from outrider import SamplingParams, SpeculationParams

    params = [
        SamplingParams(
            max_tokens=tokens,
            seed=number,
            ignore_eos=True,
            detokenize=False,
            prediction=None if predictions is None else predictions[number],
            speculation=SpeculationParams(enabled=predictions is not None),
        )
        for number in range(len(prompts))
    ]
    inputs = [{"prompt_token_ids": ids} for ids in prompts]
    began = time.perf_counter()
    outputs = llm.generate(inputs, params, use_tqdm=False)
    seconds = time.perf_counter() - began
    stats = [output.stats for output in outputs]
    seconds -= sum(each.prefill_seconds for each in stats)
    texts = [list(output.outputs[0].token_ids) for output in outputs]
    steps = sum(each.num_steps for each in stats)
    return texts, sum(len(text) - 1 for text in texts) / seconds, steps, sum(each.num_draft_tokens for each in stats)


def measure(folder: Path, acceptance: float, args: argparse.Namespace, recorder: harness.Recorder) -> list[Cell]:
    """All batch sizes at one acceptance, on a fresh engine."""
    from outrider import LLM
    from outrider.target.costs import spread_tokens

    rates = [acceptance] * args.longest
    llm = LLM(
        str(folder),
        dtype=args.dtype,
        threads=args.threads,
        seed=args.seed,
        speculative_config={"method": "synthetic", "synthetic_acceptance_rates": rates},
        enable_prefix_caching=False,
        kv_cache_tokens=args.kv_cache_tokens,
    )
    recorder.manifest.setdefault("engine", llm.describe())
    curve = llm._engine.planner.curve
    cells = []
    for count in args.batches:
        cell = Cell(acceptance, count, curve={n: round(1e3 * curve(n), 3) for n in (1, 2, 4, 8, 16, 32, 64)})
        for number in range(-1, args.rounds + 1):  # the first round warms up, the last one has the plain part alone
            ids = [spread_tokens(PROMPT_TOKENS + (number + 1) * count + at, args.vocab) for at in range(count)]
            texts, rate, _, _ = answer(llm, ids, args.max_new_tokens, None)
            if number >= 0:
                cell.plain.append(rate)
            if number == args.rounds:
                break
            drafted, rate, steps, proposed = answer(llm, ids, args.max_new_tokens, texts)
            cell.equal &= texts == drafted
            if number >= 0:
                cell.drafted.append(rate)
                cell.num_steps += steps
                cell.num_drafted += proposed
        cells.append(cell)
    return cells


def show(cells: Sequence[Cell]) -> None:
    """Print the ratios and the curve."""
    rows = [
        (
            f"{cell.acceptance:.2f}",
            f"{cell.num_sequences}",
            f"{statistics.median(cell.plain):.1f}",
            f"{statistics.median(cell.drafted):.1f}",
            f"{cell.ratio:.3f}",
            f"{min(cell.ratios):.3f}",
            f"{cell.noise:.3f}",
            f"{cell.num_drafted / cell.num_steps:.2f}",
            "yes" if cell.equal else "no",
        )
        for cell in cells
    ]
    columns = ("acceptance", "batch", "plain", "drafted", "ratio", "lowest", "noise", "K (mean)", "text equal")
    harness.print_table("tokens/s of decoding (median of rounds), and the median ratio", columns, rows)
    curve = cells[0].curve
    ratios = [(str(n), f"{ms:.2f}", f"{ms / curve[1]:.2f}") for n, ms in curve.items()]
    harness.print_table("cost of n rows, as measured at load", ("rows", "ms", "t(n)/t(1)"), ratios)
    lowest = min(cell.ratio for cell in cells)
    print(f"lowest ratio {lowest:.3f}: {'holds' if lowest >= BAR else 'misses'} the bar of {BAR}")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rates, batches = ["0.05", "0.3", "0.5", "0.7", "0.9"], ["1", "4"]
    parser.add_argument("--acceptances", type=harness.listed, default=rates, metavar="A,B", help="of a drafted token")
    parser.add_argument("--batches", type=harness.listed, default=batches, metavar="N,N", help="sequences together")
    parser.add_argument("--max-new-tokens", type=int, default=32, metavar="N", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--kv-cache-tokens", type=int, default=4096, metavar="N", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="OUT", help="bundle: a folder, or a .json file")
    parser.add_argument("--rounds", type=int, default=12, metavar="N", help="default: %(default)s")
    parser.add_argument("--longest", type=int, default=8, metavar="N", help="longest draft (default: %(default)s)")
    parser.add_argument("--dtype", default="float16", help="default: %(default)s")
    parser.add_argument("--layers", type=int, default=8, metavar="N", help="default: %(default)s")
    parser.add_argument("--hidden", type=int, default=512, metavar="N", help="default: %(default)s")
    parser.add_argument("--experts", type=int, default=32, metavar="N", help="a layer (default: %(default)s)")
    parser.add_argument("--chosen", type=int, default=4, metavar="N", help="of a row (default: %(default)s)")
    parser.add_argument("--expert-width", type=int, default=512, metavar="N", help="default: %(default)s")
    parser.add_argument("--vocab", type=int, default=8192, metavar="N", help="default: %(default)s")
    args = parser.parse_args(argv)
    args.batches = [int(count) for count in args.batches]
    harness.start(args)
    with tempfile.TemporaryDirectory() as name:
        num_bytes = write_model(Path(name), args)
        harness.say(f"a random Qwen3-MoE of {num_bytes / 1e6:.0f} MB")
        recorder = harness.Recorder(args, {"model": {"bytes": num_bytes}})
        cells: list[Cell] = []
        try:
            for acceptance in map(float, args.acceptances):
                cells += measure(Path(name), acceptance, args, recorder)
                recorder.summary({"cells": [cell.to_dict() for cell in cells]})
                late = ", ".join(f"{cell.ratio:.3f}" for cell in cells[-len(args.batches) :])
                harness.say(f"acceptance {acceptance}: {late} of plain")
        except KeyboardInterrupt:
            harness.say("interrupted: the table holds what was measured so far")
    if cells:
        show(cells)


if __name__ == "__main__":
    main()
