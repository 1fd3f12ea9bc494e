"""What a weight format costs in quality: perplexity, argmax and KL divergence against float32, over the prompts' text.

Every format scores the same tokens, each prompt on its own in one forward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import harness


@dataclass(slots=True)
class Score:
    """Sums over all positions of a format. ``kl``: of float32's law from the format's, in nats."""

    positions: int = 0
    nats: float = 0.0
    agreeing: int = 0
    kl: float = 0.0

    def add(self, logits: Any, reference: Any, ids: Any) -> None:
        """Count one text: logits [n, vocab] of both, ids [n]; the law after token i is scored by token i + 1."""
        law, truth = logits[:-1].log_softmax(-1), reference[:-1].log_softmax(-1)
        self.positions += len(law)
        self.nats -= float(law.gather(1, ids[1:, None]).sum())
        self.agreeing += int((law.argmax(-1) == truth.argmax(-1)).sum())
        self.kl += float((truth.exp() * (truth - law)).sum())

    @property
    def perplexity(self) -> float:
        """e to the mean negative log probability of the text's own tokens."""
        return math.exp(self.nats / self.positions)


def score(target: Any, texts: Sequence[list[int]], references: Sequence[Any] | None) -> tuple[Score, list[Any]]:
    """The score of one target and its logits; without ``references`` it is its own."""
    import torch

    from outrider.target.batch import Span

    total, logits = Score(), []
    slots = -(-max(map(len, texts)) // 16) * 16
    storage, context = target.new_storage(slots, 16), torch.arange(slots, dtype=torch.int32)
    for number, ids in enumerate(texts):
        own = target.forward([Span(ids, context, 0)], storage).logits
        total.add(own, own if references is None else references[number], torch.tensor(ids))
        if references is None:
            logits.append(own)
    return total, logits


def show(scores: dict[str, Score]) -> None:
    """Print one line per format."""
    base = scores["float32"].perplexity
    rows = [
        (
            label,
            f"{value.perplexity:.3f}",
            f"{100 * (value.perplexity / base - 1):+.2f} %",
            f"{value.agreeing / value.positions:.4f}",
            f"{value.kl / value.positions:.5f}",
        )
        for label, value in scores.items()
    ]
    title = f"{next(iter(scores.values())).positions} positions"
    harness.print_table(title, ("format", "perplexity", "change", "argmax as float32", "KL from float32"), rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = harness.parser(__doc__ or "")
    parser.add_argument("--limit-per-task", type=int, default=4, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--longest", type=int, default=400, metavar="N", help="tokens of a prompt (default: %(default)s)"
    )
    parser.add_argument("--dtypes", type=harness.listed, default=["float16", "bfloat16", "int8", "int4", "gguf"])
    args = parser.parse_args(argv)
    harness.start(args)
    from outrider import native
    from outrider.bench.data import load_prompts
    from outrider.target.model import load_target

    native.set_threads(args.threads)
    prompts = load_prompts(args.prompts, args.limit_per_task)
    reference = load_target(args.model, dtype="float32")
    texts = [list(reference.tokenizer.encode(prompt.turns[0]))[: args.longest] for prompt in prompts]
    texts = [ids for ids in texts if len(ids) > 1]
    recorder = harness.Recorder(args, {"float32": reference.describe()})
    scores: dict[str, Score] = {}
    scores["float32"], references = score(reference, texts, None)
    for dtype in args.dtypes:
        harness.say(f"scoring {dtype}")
        scores[dtype], _ = score(load_target(args.model, dtype=dtype), texts, references)
        recorder.summary({name: {**asdict(value), "perplexity": value.perplexity} for name, value in scores.items()})
    show(scores)


if __name__ == "__main__":
    main()
