"""``outrider demo``: three prompts without and with speculation, then what it gained and whether the texts agree."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from outrider.cli import options
from outrider.cli.common import console, open_llm, print_json, speculative_configs
from outrider.tables import plain_table

if TYPE_CHECKING:
    from rich.console import Console

    from outrider.cli.stream import Answer
    from outrider.llm import LLM

_BEST = ("eagle3", "suffix")  # the first that the model allows: a head comes with us, or nothing is needed
PROMPTS = {
    "question": "What causes the seasons on Earth? Explain it in one short paragraph.",
    "code": (
        "Complete this Python code:\n\n"
        'class Stack:\n    """A last-in, first-out container."""\n\n'
        "    def __init__(self):\n        self.items = []\n\n"
        '    def push(self, item):\n        """Put item on top of the stack."""\n        self.items.append(item)\n\n'
        "    def pop(self):\n"
    ),
    "summary": (
        "Summarize this text in two sentences:\n\n"
        "The stagecoach was the fastest way to travel overland before the railway. Along the main roads an innkeeper "
        "kept fresh horses every ten to fifteen miles, so that a coach stopped only for the minutes it took to change "
        "the team. An outrider rode ahead of the coach: he paid the tolls, had the gates opened and ordered the fresh "
        "horses, so that everything was ready when the coach arrived. When the outrider had guessed the wrong road, "
        "the coach lost no time, because it simply went on along its own road with the horses that it had. When he "
        "had guessed right, which was most of the time, the coach saved the wait at every stop."
    ),
}


@dataclass(frozen=True, slots=True)
class Round:
    """One prompt answered without and with speculation."""

    name: str
    plain: Answer
    drafted: Answer

    @property
    def identical(self) -> bool:
        """Whether both runs made the same tokens."""
        return self.plain.token_ids == self.drafted.token_ids

    @property
    def speedup(self) -> float:
        """Tokens per second with speculation over those without, prefill apart."""
        return self.drafted.tokens_per_second / (self.plain.tokens_per_second or float("nan"))


def demo(
    model: options.Model = options.DEFAULT_MODEL,
    method: options.Method = None,
    draft: options.Draft = None,
    max_tokens: options.MaxTokens = 128,
    threads: options.Threads = None,
    dtype: options.Dtype = "auto",
    exact: options.Exact = True,
    as_json: options.Json = False,
) -> None:
    """Show what speculation gains on a question, a code completion and a text to summarize."""
    from outrider.cli.stream import colours

    configs = speculative_configs([method] if method else _BEST, None, draft)
    settings = {"dtype": dtype, "exact": exact, "enable_prefix_caching": False}  # both runs do their own prefill
    with open_llm(model, threads=threads, configs=configs, skip_refused=method is None, **settings) as llm:
        facts = llm.describe()
        name = next(config.method for config in configs if config.method not in llm.refused)
        if as_json:
            import os

            with open(os.devnull, "w") as nowhere:
                rounds = _rounds(llm, name, max_tokens, nowhere)
            print_json({"model": facts, "method": name, "rounds": [_row(item) for item in rounds]})
            return
        note = ": tokens that were drafted are coloured" if colours(sys.stdout) else ""
        print(f"{model}, {name}{note}", file=sys.stderr)
        rounds = _rounds(llm, name, max_tokens, sys.stdout)
    _table(console(stderr=False), rounds, name)


def _rounds(llm: LLM, method: str, max_tokens: int, out: Any) -> list[Round]:
    from outrider.cli.generate import messages
    from outrider.cli.stream import play
    from outrider.config import SamplingParams, SpeculationParams

    def run(text: str, speculation: SpeculationParams, sink: Any, length: int) -> Answer:
        sampling = SamplingParams(temperature=0.0, max_tokens=length, speculation=speculation)
        return play(llm.stream(messages=messages(text), sampling_params=sampling), sink, llm.get_tokenizer().decode)

    plain, drafted = SpeculationParams(enabled=False), SpeculationParams(method=method)
    import io

    for speculation in (plain, drafted):  # kernels and tables are made on first use
        run("Count to ten.", speculation, io.StringIO(), 16)
    rounds = []
    for name, text in PROMPTS.items():
        _heading(out, f"{name}: {text.splitlines()[0]}")
        answers = []
        for label, speculation in (("without speculation", plain), (f"with {method}", drafted)):
            _heading(out, label, strong=False)
            answers.append(run(text, speculation, out, max_tokens))
            out.write(f"\n{_dim(out, answers[-1].line())}\n")
        rounds.append(Round(name, *answers))
    return rounds


def _heading(out: Any, text: str, strong: bool = True) -> None:
    from outrider.cli.stream import colours

    if not colours(out):
        out.write(f"\n{text}\n")
    else:
        out.write(f"\n\x1b[1m{text}\x1b[0m\n" if strong else f"\n{_dim(out, text)}\n")


def _dim(out: Any, text: str) -> str:
    from outrider.cli.stream import colours

    return f"\x1b[2m{text}\x1b[0m" if colours(out) else text


def _row(item: Round) -> dict[str, object]:
    return {
        "prompt": item.name,
        "num_tokens": len(item.plain.token_ids),
        "plain_tokens_per_second": item.plain.tokens_per_second,
        "tokens_per_second": item.drafted.tokens_per_second,
        "speedup": item.speedup,
        "mean_acceptance_length": item.drafted.mean_acceptance_length,
        "identical": item.identical,
        "text": item.plain.text,
    }


def _table(out: Console, rounds: list[Round], method: str) -> None:
    table = plain_table()
    table.add_column("prompt")
    for title in ("plain tokens/s", f"{method} tokens/s", "speed-up", "mean acc. length"):
        table.add_column(title, justify="right")
    table.add_column("same text")
    for item in rounds:
        row = _row(item)
        table.add_row(
            item.name,
            f"{row['plain_tokens_per_second']:.1f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['speedup']:.2f}x",
            f"{row['mean_acceptance_length']:.2f}",
            "yes" if item.identical else "[red]no[/]",
        )
    out.print()
    out.print(table)
    same = all(item.identical for item in rounds)
    out.print(f"\nboth texts identical: {'yes' if same else 'no'}")
