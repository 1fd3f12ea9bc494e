"""Outrider beside transformers, llama.cpp and OpenVINO GenAI: one prompt at a time, greedy, on 8-bit weights.

Every engine runs in an environment of its own, as a process that is stopped while another one answers. All get the same
prompt ids (the model's chat template, applied once), the same end ids and the same number of threads. Entrants take
turns at each prompt, in an order that rotates. A speculative text is compared with the same engine's plain text.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))  # the harness of the comparisons

import harness  # noqa: E402
import results  # noqa: E402
from entrants import KINDS, MODES, Entrant, Worker, entrants  # noqa: E402
from environments import installed  # noqa: E402
from measure import mixed  # noqa: E402
from protocol import Answer, Ask, Load  # noqa: E402
from weights import Weights, prepare  # noqa: E402

from outrider.bench.data import Prompt, load_prompts  # noqa: E402
from outrider.errors import ConfigError, OutriderError  # noqa: E402
from outrider.paths import cache_dir  # noqa: E402
from outrider.target.tokenizer import Tokenizer  # noqa: E402

WARM_UP_TOKENS = 24
SPARE_TOKENS = 64  # of the context, for drafts
PROMPTS_PER_TASK = 4


def arguments() -> argparse.ArgumentParser:
    """The options of the race."""
    out: argparse.ArgumentParser = harness.parser(__doc__ or "")
    out.set_defaults(threads=2)
    out.add_argument("--draft", metavar="MODEL", help="draft model of the mode draft: a GGUF file, or a known name")
    out.add_argument("--engines", type=harness.listed, default=list(KINDS), metavar="A,B", help=", ".join(KINDS))
    out.add_argument("--modes", type=harness.listed, metavar="A,B", help=f"default: all of {', '.join(MODES)}")
    out.add_argument("--tasks", type=harness.listed, metavar="A,B", help="only these tasks of the prompts")
    out.add_argument("--limit-per-task", type=int, default=PROMPTS_PER_TASK, metavar="N", help="default: %(default)s")
    out.add_argument("--max-tokens", type=int, dest="max_new_tokens", metavar="N", help="same as --max-new-tokens")
    out.add_argument("--rounds", type=int, default=1, metavar="N", help="default: %(default)s; medians are shown")
    out.add_argument("--context", type=int, default=4096, metavar="N", help="tokens (default: %(default)s)")
    out.add_argument("--lookup-tokens", nargs="+", default=[], metavar="ENGINE=K,K", help="drafted a step, K each")
    out.add_argument("--draft-tokens", nargs="+", default=[], metavar="ENGINE=K,K", help="drafted a step, K each")
    out.add_argument("--cache", type=Path, metavar="DIR", help="environments and weights (default: Outrider's cache)")
    out.add_argument("--outrider-dtype", default="auto", metavar="NAME", help="target and draft (default: %(default)s)")
    out.add_argument("--outrider-lookup", default="suffix", metavar="METHOD", help="default: %(default)s")
    out.add_argument("--outrider-exact", choices=("yes", "no"), default="yes", help="default: %(default)s")
    out.add_argument("--transformers-dtype", default="bfloat16", metavar="NAME", help="default: %(default)s")
    out.add_argument("--openvino-attention", choices=("PA", "SDPA"), default="PA", help="of its plain decoding")
    out.add_argument("--no-flash-attn", action="store_true", help="llama.cpp without it (it is llama.cpp's default)")
    return out


@dataclass(frozen=True, slots=True)
class Race:
    """What a run holds while it goes on."""

    args: argparse.Namespace
    entrants: list[Entrant]
    workers: dict[str, Worker]
    tokenizer: Tokenizer

    def ask(self, entrant: Entrant, token_ids: list[int], max_tokens: int, salt: str) -> Answer:
        """One answer of one entrant."""
        ask = Ask(token_ids, max_tokens, entrant.mode, entrant.num_tokens, f"{entrant.label} {salt}")
        return self.workers[entrant.engine].answer(ask)

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of the first turn, through the chat template."""
        text = prompt.turns[0]
        if not self.tokenizer.has_chat_template:
            return self.tokenizer.encode(text)
        return list(self.tokenizer.encode_chat([{"role": "user", "content": text}]))


def load_spec(args: argparse.Namespace, engine: str, target: Weights, draft: Weights | None, end_ids: Any) -> Load:
    """What a worker is told to load."""
    kind = KINDS[engine]
    modes = [mode for mode in args.modes if mode in kind.modes]
    dtypes = {"outrider": args.outrider_dtype, "outrider-source": "gguf", "transformers": args.transformers_dtype}
    dtype = dtypes.get(engine, "as the file")
    options = {
        "lookup": args.outrider_lookup,
        "exact": args.outrider_exact == "yes",
        "attention": args.openvino_attention,
        "flash_attn": not args.no_flash_attn,
    }
    draft_path = str(kind.reads(draft)) if draft is not None and "draft" in modes else None
    return Load(str(kind.reads(target)), draft_path, dtype, args.threads, args.context, sorted(end_ids), modes, options)


def prompts_of(args: argparse.Namespace) -> list[Prompt]:
    """The prompts of the chosen tasks. Raises ConfigError for a task that is not there."""
    prompts = load_prompts(args.prompts, args.limit_per_task)
    there = dict.fromkeys(prompt.task for prompt in prompts)
    lacking = [task for task in args.tasks or () if task not in there]
    if lacking:
        raise ConfigError(f"--tasks {lacking[0]}: the prompts have no such task; there are: {', '.join(there)}")
    return mixed([prompt for prompt in prompts if args.tasks is None or prompt.task in args.tasks], len(prompts))


def run(race: Race, prompts: Sequence[tuple[Prompt, list[int]]], recorder: harness.Recorder) -> list[results.Row]:
    """All rounds; an interrupt or a failing engine ends them, with what was measured."""
    rows: list[results.Row] = []
    total, began = len(prompts) * race.args.rounds, time.monotonic()
    try:
        for entrant in race.entrants:
            race.ask(entrant, prompts[0][1], WARM_UP_TOKENS, "warm-up")
        for number, new in enumerate(_turns(race, prompts), start=1):
            rows += new
            recorder.rows(row.to_dict() for row in new)
            recorder.summary(results.summary(rows, race.entrants))
            left = (time.monotonic() - began) / number * (total - number)
            harness.say(f"{number}/{total} prompts, {new[0].task}, about {left:.0f} s left")
    except KeyboardInterrupt:
        harness.say("interrupted: the tables hold what was measured so far")
    except OutriderError as error:
        harness.say(f"{error}; the tables hold what was measured so far")
    return rows


def _turns(race: Race, prompts: Sequence[tuple[Prompt, list[int]]]) -> Iterator[list[results.Row]]:
    for number in range(race.args.rounds):
        for at, (prompt, ids) in enumerate(prompts):
            shift = (number * len(prompts) + at) % len(race.entrants)
            answers = {
                entrant: race.ask(entrant, ids, race.args.max_new_tokens, f"round {number}")
                for entrant in [*race.entrants[shift:], *race.entrants[:shift]]
            }
            yield [_row(race, prompt, number, len(ids), entrant, answers) for entrant in race.entrants]


def _row(
    race: Race,
    prompt: Prompt,
    number: int,
    num_prompt: int,
    entrant: Entrant,
    answers: dict[Entrant, Answer],
) -> results.Row:
    answer, plain = answers[entrant], answers.get(Entrant(entrant.engine, "plain", None))
    compared = plain is not None and entrant.mode != "plain"
    equal = answer.token_ids == plain.token_ids if compared and plain is not None else None
    text = race.tokenizer.hf.decode(answer.token_ids)
    return results.Row(prompt.prompt_id, prompt.task, number, entrant, num_prompt, answer, text, equal)


def main(argv: Sequence[str] | None = None) -> None:
    """Prepare, race, print, write."""
    args = arguments().parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _main(args)
    except OutriderError as error:
        sys.exit(f"error: {error}")


def _main(args: argparse.Namespace) -> None:
    args.modes = args.modes or [mode for mode in MODES if mode != "draft" or args.draft is not None]
    racing = entrants(args)
    prompts = prompts_of(args)
    cache = (args.cache or cache_dir("race")).resolve()
    target = prepare(args.model, cache, harness.say)
    draft = prepare(args.draft, cache, harness.say) if "draft" in args.modes else None
    tokenizer = _tokenizer(target)
    with ExitStack() as stack:
        workers, facts = {}, {}
        for engine in dict.fromkeys(entrant.engine for entrant in racing):
            spec = load_spec(args, engine, target, draft, tokenizer.eos_ids)
            worker = Worker(engine, cache, args.threads, harness.say)
            stack.callback(worker.close)
            harness.say(f"loading {engine}")
            environment = KINDS[engine].environment
            facts[engine] = {**worker.load(spec), "model": Path(spec.model).name}
            facts[engine]["installed"] = [] if environment is None else installed(environment, cache)
            workers[engine] = worker
        race = Race(args, racing, workers, tokenizer)
        chosen = _fitting(race, prompts)
        rows = run(race, chosen, harness.Recorder(args, facts))
    if rows:
        results.show(rows, racing)
    else:
        harness.say("nothing was measured")


def _tokenizer(target: Weights) -> Tokenizer:
    generation = json.loads((target.folder / "generation_config.json").read_text())
    return Tokenizer.load(str(target.folder), eos_ids=generation["eos_token_id"])


def _fitting(race: Race, prompts: Sequence[Prompt]) -> list[tuple[Prompt, list[int]]]:
    """Prompts with their ids; those that do not fit the context are named and left out."""
    out = []
    for prompt in prompts:
        ids = race.encode(prompt)
        if len(ids) + race.args.max_new_tokens + SPARE_TOKENS <= race.args.context:
            out.append((prompt, ids))
        else:
            harness.say(f"{prompt.prompt_id} left out: {len(ids)} tokens, over --context {race.args.context}")
    if not out:
        raise ConfigError(f"--context {race.args.context} is too small for all prompts: raise it")
    return out


if __name__ == "__main__":
    main()
