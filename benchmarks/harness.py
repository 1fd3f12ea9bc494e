"""What the comparison scripts share: arguments, the alternating loop over systems, partial results, tables."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from measure import decode_rate, mixed, ratio

from outrider import threads as thread_settings
from outrider.bench import bundle
from outrider.bench.data import Prompt
from outrider.bench.report import number_text, summarize, tables
from outrider.bench.runner import Plan, Results, Row, Variant, encode

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.outputs import RequestStats

WARM_UP_TOKENS = 24


class System(Protocol):
    """One engine in one setting."""

    @property
    def label(self) -> str:
        """Its name in tables."""
        ...

    def answer(self, token_ids: list[int], max_tokens: int, index: int, salt: str) -> tuple[list[int], RequestStats]:
        """Answer a prompt alone: the generated ids (an EOS included) and where the time went."""
        ...


def parser(doc: str, *, model: str = "smollm2-135m", max_tokens: int = 128, prompts: bool = True) -> Any:
    """The arguments that every script takes."""
    out = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--model", default=model, help="known name, folder, GGUF file or hub id (default: %(default)s)")
    if prompts:
        out.add_argument("--prompts", type=Path, nargs="+", required=True, help="question files or folders")
    out.add_argument("--max-new-tokens", type=int, default=max_tokens, metavar="N", help="default: %(default)s")
    out.add_argument("--threads", type=int, default=1, metavar="N", help="for all systems (default: %(default)s)")
    out.add_argument("--kv-cache-tokens", type=int, default=8192, metavar="N", help="of each Outrider engine")
    out.add_argument("--seed", type=int, default=0)
    out.add_argument(
        "--json", metavar="OUT", help="bundle: a folder (with the rows of single prompts), or a .json file"
    )
    return out


def add_exact(out: argparse.ArgumentParser, default: str = "both") -> None:
    """The option that says which of Outrider's paths are measured."""
    out.add_argument("--exact", choices=("yes", "no", "both"), default=default, help="default: %(default)s")


def exact_values(args: argparse.Namespace) -> list[bool]:
    """Values of ``exact`` that were asked for."""
    return {"yes": [True], "no": [False], "both": [True, False]}[args.exact]


def listed(text: str) -> list[str]:
    """A comma-separated option."""
    return [part.strip() for part in text.split(",") if part.strip()]


def start(args: argparse.Namespace) -> None:
    """Set threads up before torch is imported; let SIGTERM end a run as Ctrl-C does, with what was measured."""
    thread_settings.prepare(args.threads)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def say(text: str) -> None:
    """A line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


class Recorder:
    """Writes a bundle again and again while a run goes on, so that a killed run keeps what it measured."""

    def __init__(self, args: argparse.Namespace, models: Mapping[str, Any]) -> None:
        self._out: str | None = args.json
        arguments = {name: value for name, value in vars(args).items() if name != "json"}
        arguments = json.loads(json.dumps(arguments, default=str))
        environment = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(("OMP_", "GOMP_"))}
        self.manifest = bundle.manifest(models, {**arguments, "script": Path(sys.argv[0]).name, **environment})
        if self._out is not None and not self._out.endswith(".json"):
            Path(self._out).mkdir(parents=True, exist_ok=True)
            (Path(self._out) / "prompts.jsonl").write_text("")

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows of single prompts."""
        if self._out is None or self._out.endswith(".json"):
            return
        with (Path(self._out) / "prompts.jsonl").open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary of all that was measured so far."""
        if self._out is not None:
            bundle.write(self._out, self.manifest, summary)


Pairs = Sequence[tuple[str, str]]


def compare(
    llm: LLM,
    systems: Sequence[System],
    prompts: Sequence[Prompt],
    args: argparse.Namespace,
    pairs: Pairs,
    recorder: Recorder,
    extra: Mapping[str, Any] | None = None,
) -> Results:
    """Answer every turn of every prompt with every system, in rotated order, after a warm-up; the first is baseline.

    Prompts go through the chat template and tokenizer of ``llm``, once, and are handed to all systems as ids. Later
    turns continue the baseline's answer. Tasks take turns, so that an interrupted run has all of them. ``pairs``:
    (system, compared with) of the ratios in the summary.
    """
    results = Results()
    first = encode(llm, [{"role": "user", "content": prompts[0].turns[0]}], raw=False)
    for system in systems:
        system.answer(first, WARM_UP_TOKENS, 0, "warm-up")
    began, rotation = time.monotonic(), 0
    try:
        for number, prompt in enumerate(mixed(prompts, len(prompts))):
            messages: list[dict[str, str]] = []
            for turn, text in enumerate(prompt.turns):
                messages.append({"role": "user", "content": text})
                ids = encode(llm, messages, raw=False)
                rows = _turn(llm, systems, prompt, turn, ids, args, number, rotation)
                rotation += 1
                results.rows += rows
                recorder.rows(row.to_dict() for row in rows)
                recorder.summary({**summary(results, systems, pairs), **(extra or {})})
                messages.append({"role": "assistant", "content": rows[0].text})
            left = (time.monotonic() - began) / (number + 1) * (len(prompts) - number - 1)
            say(f"{number + 1}/{len(prompts)} prompts, {prompt.task}, about {left:.0f} s left")
    except KeyboardInterrupt:
        say("interrupted: the tables hold what was measured so far")
    return results


def _turn(
    llm: LLM,
    systems: Sequence[System],
    prompt: Prompt,
    turn: int,
    ids: list[int],
    args: argparse.Namespace,
    index: int,
    rotation: int,
) -> list[Row]:
    shift = rotation % len(systems)
    answers = {
        system.label: system.answer(ids, args.max_new_tokens, index, system.label)
        for system in [*systems[shift:], *systems[:shift]]
    }
    reference = answers[systems[0].label][0]
    decode = llm.get_tokenizer().decode
    rows = []
    for system in systems:
        tokens, stats = answers[system.label]
        reason = "length" if len(tokens) >= args.max_new_tokens else "stop"
        rows.append(
            Row(
                prompt.prompt_id,
                prompt.task,
                turn,
                system.label,
                len(ids),
                tokens,
                decode(tokens),
                reason,
                tokens == reference,
                stats,
            )
        )
    return rows


def plan(systems: Sequence[System], args: argparse.Namespace | None = None) -> Plan:
    """The run in the terms of ``outrider.bench``."""
    max_tokens = 0 if args is None else args.max_new_tokens
    return Plan([Variant(system.label) for system in systems], max_tokens=max_tokens)


def summary(results: Results, systems: Sequence[System], pairs: Pairs) -> dict[str, Any]:
    """The summary of ``outrider bench``, and the ratios of ``pairs`` per task and over all."""
    return {**summarize(results, plan(systems)), "ratios": ratios(results.rows, pairs)}


def ratios(rows: Sequence[Row], pairs: Pairs) -> list[dict[str, Any]]:
    """One entry a pair: ratios per task and over all tasks."""
    out = []
    for mine, theirs in pairs:
        cells = {}
        for task in [*dict.fromkeys(row.task for row in rows), "all"]:
            chosen = [row for row in rows if task in ("all", row.task)]
            found = ratio(
                [row for row in chosen if row.variant == mine], [row for row in chosen if row.variant == theirs]
            )
            cells[task] = None if found is None else {name: getattr(found, name) for name in found.__slots__}
        out.append({"system": mine, "over": theirs, "tasks": cells})
    return out


def fastest(rows: Sequence[Row], labels: Sequence[str]) -> str:
    """Which of ``labels`` decoded the most tokens a second."""
    return max(labels, key=lambda label: decode_rate([row for row in rows if row.variant == label]) or 0.0)


def show(results: Results, systems: Sequence[System], pairs: Pairs) -> None:
    """Print the speed table, then the ratios of each task and what is known of them over all."""
    if not results.rows:
        say("nothing was measured")
        return
    facts = summary(results, systems, pairs)
    print_tables([tables(facts)[0]])
    tasks = list(facts["tasks"])
    rows = []
    for item in facts["ratios"]:
        cells = item["tasks"]
        everything = cells["all"] or {}
        by_task = (number_text(cells[task] and cells[task]["pooled"], 2) for task in tasks)
        names = ("pooled", "low", "high", "median", "lowest", "call")
        over_all = (number_text(everything.get(name), 2) for name in names)
        rows.append((item["system"], item["over"], *by_task, *over_all))
    columns = ("system", "over", *tasks, "all", "low", "high", "median", "lowest", "call")
    print_table(
        "ratios of tokens/s, pooled; over all tasks also the 95 % interval, median and lowest of single answers, "
        "and with prefill (call)",
        columns,
        rows,
        left=2,
    )


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> None:
    """Print one table on stdout; the first ``left`` columns hold text."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at < left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    print_tables([table])


def print_tables(rendered: Iterable[Any]) -> None:
    """Print tables on stdout, as wide as they are."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 240)
    for table in rendered:
        console.print(table)
        console.print()
