"""Many mixed requests at once against the text of plain decoding: a server in a process of its own, a cache so small
that sequences are preempted, clients that leave in the middle, structured outputs among the rest.

Every answer that was not left must be, to the letter, what plain decoding says offline for its seed. At the end no
block of any cache may be held, and the server's memory must not have grown since the first third of the requests.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import harness
import httpx
from measure import mixed
from process import Server, outrider

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "string", "maxLength": 60}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40},
    {"temperature": 1.0, "min_p": 0.05, "presence_penalty": 0.6},
    {"temperature": 0.8, "repetition_penalty": 1.2, "n": 2},
    {"temperature": 0.0, "logit_bias": {"11": -5.0}, "stop": ["\n\n"]},
]
GRAMMARS: list[dict[str, Any]] = [
    {"json": SCHEMA},
    {"regex": "[A-Z][a-z]{2,10}( [a-z]{2,10}){3,9}\\."},
    {"choice": ["yes, certainly", "no, never", "it depends"]},
]


@dataclass(slots=True)
class Asked:
    """One request. ``leaves``: characters after which its client is gone; ``texts``: what came, None where it left."""

    body: dict[str, Any]
    leaves: int | None = None
    texts: list[str] | None = None
    error: str = ""


@dataclass(slots=True)
class Watch:
    """Memory in MiB by requests done."""

    done: int = 0
    memory: list[float] = field(default_factory=list)


def requests(prompts: list[str], count: int, seed: int) -> list[Asked]:
    """``count`` requests of mixed lengths and parameters; one in ten is structured, one in six is left."""
    rng = random.Random(seed)
    out = []
    for number in range(count):
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": prompts[number % len(prompts)][: rng.choice((80, 400, 1500))]}],
            "max_tokens": rng.choice((8, 24, 48, 96)),
            "seed": rng.getrandbits(32),
            "stream": rng.random() < 0.5,
            **rng.choice(SAMPLING),
        }
        if number % 10 == 0:
            body["structured_outputs"] = rng.choice(GRAMMARS)
        leaves = rng.randrange(1, 40) if rng.random() < 1 / 6 else None
        if leaves is not None:
            body["stream"] = True
        out.append(Asked(body, leaves))
    return out


async def ask(client: httpx.AsyncClient, server: Server, asked: Asked) -> None:
    """Send one request and read its answer, or a part of it."""
    url = f"{server.address}/v1/chat/completions"
    if not asked.body["stream"]:
        answer = await client.post(url, json=asked.body)
        if answer.status_code == 200:
            asked.texts = [choice["message"]["content"] for choice in answer.json()["choices"]]
        else:
            asked.error = answer.text
        return
    texts = [""] * asked.body.get("n", 1)
    async with client.stream("POST", url, json=asked.body) as answer:
        async for line in answer.aiter_lines():
            if not line or line == "data: [DONE]":
                continue
            part = json.loads(line.removeprefix("data: "))
            if "error" in part:
                asked.error = line
                return
            for choice in part["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
            if asked.leaves is not None and len(texts[0]) >= asked.leaves:
                return
    asked.texts = texts


async def storm(server: Server, every: list[Asked], concurrency: int) -> Watch:
    """All requests, ``concurrency`` at a time."""
    gate, watch = asyncio.Semaphore(concurrency), Watch()
    limits = httpx.Limits(max_connections=None)

    async def one(client: httpx.AsyncClient, asked: Asked) -> None:
        async with gate:
            await ask(client, server, asked)
        watch.done += 1
        watch.memory.append(server.memory())
        if watch.done % 50 == 0:
            harness.say(f"{watch.done}/{len(every)} answered or left, {watch.memory[-1]:.0f} MiB")

    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        await asyncio.gather(*(one(client, asked) for asked in every))
    return watch


def settled(server: Server, seconds: int = 30) -> dict[str, Any]:
    """What the server counts once nothing runs any more."""
    for _ in range(seconds * 10):
        stats = server.stats()
        if not stats["requests"]["running"] and not stats["requests"]["waiting"]:
            break
        time.sleep(0.1)
    return stats


def plain_texts(model: str, every: list[Asked], threads: int) -> list[list[str]]:
    """What plain decoding says offline."""
    from outrider import LLM, SamplingParams

    with LLM(model, threads=threads, max_num_seqs=16) as llm:
        params = []
        defaults = llm.get_default_sampling_params()
        for asked in every:
            own = {key: value for key, value in asked.body.items() if key not in ("messages", "stream")}
            if "logit_bias" in own:
                own["logit_bias"] = {int(token): value for token, value in own["logit_bias"].items()}
            params.append(SamplingParams(**{**defaults.model_dump(exclude_unset=True), **own}))
        outputs = llm.chat([asked.body["messages"] for asked in every], params)
    return [[sample.text for sample in output.outputs] for output in outputs]


def main() -> int:
    """Run it; the exit status says whether all held."""
    parser: Any = harness.parser(__doc__ or "")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--method", default="auto")
    args: argparse.Namespace = parser.parse_args()
    harness.start(args)
    from outrider.bench.data import load_prompts

    prompts = [prompt.turns[0] for prompt in mixed(load_prompts(args.prompts), 200)]
    every = requests(prompts, args.requests, args.seed)
    options = ["--method", args.method, "--threads", str(args.threads), "--max-num-seqs", str(args.concurrency)]
    with outrider(args.model, *options, "--kv-cache-tokens", str(args.kv_cache_tokens)) as server:
        watch = asyncio.run(storm(server, every, args.concurrency))
        stats = settled(server)
    finished = [asked for asked in every if asked.texts is not None]
    harness.say(f"{len(finished)} finished: now plain decoding of the same, offline")
    wrong = [
        asked for asked, want in zip(finished, plain_texts(args.model, finished, args.threads), strict=True)
        if asked.texts != want
    ]  # fmt: skip
    third = len(watch.memory) // 3
    report = {
        "requests": len(every),
        "finished": len(finished),
        "left by their client": sum(asked.leaves is not None and asked.texts is None for asked in every),
        "errors": [asked.error for asked in every if asked.error],
        "structured": sum("structured_outputs" in asked.body for asked in finished),
        "texts unlike plain decoding": len(wrong),
        "preemptions": stats["num_preemptions"],
        "blocks held": {name: pool["num_used"] for name, pool in stats["kv_cache"].items()},
        "MiB after a third": round(max(watch.memory[:third])),
        "MiB at the end": round(watch.memory[-1]),
    }
    print(json.dumps(report, indent=2))
    for asked in wrong[:3]:
        print(json.dumps({"asked": asked.body, "got": asked.texts}), file=sys.stderr)
    held = sum(report["blocks held"].values())
    return int(bool(wrong or report["errors"] or held))


if __name__ == "__main__":
    raise SystemExit(main())
