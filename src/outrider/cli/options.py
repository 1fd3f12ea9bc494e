"""Options that several commands share, with one spelling, one help text and one panel each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from outrider.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"

_SPECULATION = "Speculation"
_MODEL = "Model"
_SAMPLING = "Sampling"
_OUTPUT = "Output"

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A known name, a folder, a .gguf file or a hub id.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", rich_help_panel=_OUTPUT)]
Record = Annotated[
    bool,
    typer.Option("--json", help="The record as JSON on stdout; the page only with -o.", rich_help_panel=_OUTPUT),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Say on stderr what was chosen and why.", rich_help_panel=_OUTPUT)
]

MetricsPrefix = Annotated[
    str,
    typer.Option(
        "--metrics-prefix",
        metavar="TEXT",
        help="What metrics' names begin with; `vllm:` for dashboards made for vLLM.",
        rich_help_panel="Server",
    ),
]
Method = Annotated[
    str | None,
    typer.Option("--method", metavar="NAME", help="Drafting method (see `methods`).", rich_help_panel=_SPECULATION),
]
Methods = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="A,B",
        help="Methods, comma separated, or `all`; NAME:K fixes num_speculative_tokens. Without it those of "
        "--speculative-config, or ngram,suffix.",
        rich_help_panel=_SPECULATION,
    ),
]
NumTokens = Annotated[
    int | None,
    typer.Option(
        "-k",
        "--num-speculative-tokens",
        min=0,
        max=256,
        help="Fixed number of draft tokens a step; without it the planner decides.",
        rich_help_panel=_SPECULATION,
    ),
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="MODEL",
        help="Draft model, for methods that need one; for specinfer several, comma separated.",
        rich_help_panel=_SPECULATION,
    ),
]
Config = Annotated[
    list[str] | None,
    typer.Option(
        "--speculative-config",
        metavar="JSON",
        help="vLLM's keys; an object, or a list of objects to load several methods; may be repeated.",
        rich_help_panel=_SPECULATION,
    ),
]
Prediction = Annotated[
    str | None,
    typer.Option(
        "--prediction",
        metavar="TEXT",
        help="Expected output (@FILE reads it), for --method prediction.",
        rich_help_panel=_SPECULATION,
    ),
]

Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="auto, float32, float16, bfloat16, int8, int4 or gguf (the blocks of a GGUF file).",
        rich_help_panel=_MODEL,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Compute threads; without it they are measured.", rich_help_panel=_MODEL),
]
Exact = Annotated[
    bool,
    typer.Option("--exact/--no-exact", help="Bits of a row do not depend on other rows.", rich_help_panel=_MODEL),
]
TensorParallel = Annotated[
    int,
    typer.Option(
        "--tensor-parallel-size",
        min=1,
        help="Processes that the model is spread over; start them with torchrun.",
        rich_help_panel=_MODEL,
    ),
]
Context = Annotated[
    int | None,
    typer.Option("--max-model-len", min=2, help="Context length; the model's own by default.", rich_help_panel=_MODEL),
]
Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit of a hub id.", rich_help_panel=_MODEL)
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that a hub repository brings.", rich_help_panel=_MODEL)
]

Temperature = Annotated[
    float, typer.Option("-t", "--temperature", min=0.0, help="0 is greedy.", rich_help_panel=_SAMPLING)
]
TopK = Annotated[int, typer.Option("--top-k", min=-1, help="0 is off.", rich_help_panel=_SAMPLING)]
TopP = Annotated[float, typer.Option("--top-p", min=0.0, max=1.0, help="1 is off.", rich_help_panel=_SAMPLING)]
MinP = Annotated[float, typer.Option("--min-p", min=0.0, max=1.0, help="0 is off.", rich_help_panel=_SAMPLING)]
Penalty = Annotated[float, typer.Option("--repetition-penalty", min=0.01, help="1 is off.", rich_help_panel=_SAMPLING)]
Seed = Annotated[int, typer.Option("--seed", help="Same seed, same text, with any method.", rich_help_panel=_SAMPLING)]
MaxTokens = Annotated[int, typer.Option("-n", "--max-tokens", min=1, help="Longest answer.", rich_help_panel=_SAMPLING)]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", help="Stop at this text; may be repeated.", rich_help_panel=_SAMPLING)
]
StructuredOutputs = Annotated[
    str | None,
    typer.Option(
        "--structured-outputs",
        metavar="JSON",
        help='What the answer must be: {"json": SCHEMA}, {"regex": ...}, {"choice": [...]}, ...; @FILE reads it.',
        rich_help_panel=_SAMPLING,
    ),
]
System = Annotated[str | None, typer.Option("--system", help="System message.", rich_help_panel=_SAMPLING)]
Raw = Annotated[bool, typer.Option("--raw", help="No chat template.", rich_help_panel=_SAMPLING)]

PROMPTS_HELP = "Prompt file or folder; may be repeated (.jsonl, .jsonl.gz, .txt)."
Prompts = Annotated[list[Path], typer.Option("--prompts", metavar="FILE", help=PROMPTS_HELP)]
Limit = Annotated[
    int | None, typer.Option("--limit-per-task", min=1, help="Prompts of each task, spread over the task.")
]


def check_metrics_prefix(prefix: str) -> None:
    """Raise ConfigError for one that no metric's name can begin with."""
    if not re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", prefix):
        raise ConfigError(f"--metrics-prefix {prefix!r}: use letters, digits, '_' and ':', such as vllm:")
