"""Tokens per second and time per output token under load: one Outrider server whose requests name the method, beside
other servers with OpenAI's API, from 1 to 32 clients at a time.

All servers run from the start and idle while another is measured. At every number of clients each system answers the
same chats, streamed and greedy, in an order that rotates with the round; every round has other prompts. Caches and
stores of one system's requests are hidden from the others by a cache salt. Tokens per second are those of the whole
crowd, prefill included; TPOT is the mean over requests of the time after the first piece per token after the first.
Ratios are medians over rounds against plain decoding of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import harness
import httpx
from measure import mixed
from process import Server, free_port, outrider, running

LEVELS = [1, 2, 4, 8, 16, 32]


@dataclass(frozen=True, slots=True)
class Entrant:
    """A way to answer: a server, and what its requests say more."""

    label: str
    server: Server
    more: dict[str, Any]


@dataclass(slots=True)
class Cell:
    """One round of one system at one level: seconds, tokens, and the time per token of each request in ms."""

    label: str
    clients: int
    round: int
    seconds: float
    tokens: int = 0
    tpot: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second of all together."""
        return self.tokens / self.seconds


async def ask(client: httpx.AsyncClient, entrant: Entrant, body: dict[str, Any], cell: Cell) -> None:
    """One streamed chat. Pieces are only parsed once the answer is complete: the client shares the machine."""
    url, pieces, first, last = f"{entrant.server.address}/v1/chat/completions", [], 0.0, 0.0
    async with client.stream("POST", url, json=body) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{entrant.label}: {(await answer.aread()).decode()}")
        async for piece in answer.aiter_raw():
            if b'"content":"' in piece.replace(b'": "', b'":"').replace(b'"content":""', b""):
                last = time.perf_counter()
                first = first or last
            pieces.append(piece)
    text, count = "", 0
    for line in b"".join(pieces).decode().splitlines():
        if not line.startswith("data: {"):
            continue
        part = json.loads(line[6:])
        count = (part.get("usage") or {}).get("completion_tokens", count)
        for choice in part["choices"]:
            text += choice["delta"].get("content") or ""
    cell.tokens += count
    cell.texts.append(text)
    if count > 1:
        cell.tpot.append((last - first) / (count - 1) * 1000.0)


async def crowd(entrant: Entrant, prompts: Sequence[str], clients: int, number: int, tokens: int) -> Cell:
    """``prompts`` by so many clients, each of which asks again when it has its answer."""
    cell, todo = Cell(entrant.label, clients, number, 0.0), list(reversed(prompts))
    own = dict(entrant.more)
    if "speculation" in own:
        own["cache_salt"] = f"{entrant.label} {clients} {number}"

    async def client_of(client: httpx.AsyncClient) -> None:
        while todo:
            body = {"messages": [{"role": "user", "content": todo.pop()}], "max_tokens": tokens, "temperature": 0.0}
            body |= {"stream": True, "stream_options": {"include_usage": True}, **own}
            await ask(client, entrant, body, cell)

    limits = httpx.Limits(max_keepalive_connections=0)  # some servers close them between two requests
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        begin = time.perf_counter()
        await asyncio.gather(*(client_of(client) for _ in range(clients)))
        cell.seconds = time.perf_counter() - begin
    return cell


def entrants(stack: ExitStack, args: argparse.Namespace) -> list[Entrant]:
    """All systems, started."""
    methods = [{"method": name} for name in args.methods]
    options = ["--speculative-config", json.dumps(methods), "--threads", str(args.threads), "--dtype", args.dtype]
    options += ["--max-num-seqs", "32", "--kv-cache-tokens", str(args.kv_cache_tokens)]
    ours = stack.enter_context(outrider(args.model, *options))
    out = [Entrant("plain", ours, {"speculation": {"enabled": False}})]
    out += [Entrant(name, ours, {"speculation": {"method": name}}) for name in args.methods]
    if args.llama:
        port, program, weights = free_port(), args.llama[0], args.llama[1]
        command = [program, "-m", weights, "--port", str(port), "-t", str(args.threads), "-np", "32"]
        command += ["-c", str(args.kv_cache_tokens), "--no-webui", "-kvu"]
        out.append(Entrant("llama.cpp", stack.enter_context(running(command, port, "/health")), {}))
    if args.transformers:
        port = free_port()
        program = str(Path(sys.executable).with_name("transformers"))
        command = [program, "serve", args.transformers, "--port", str(port), "--continuous-batching"]
        command += ["--device", "cpu", "--dtype", "bfloat16", "--cb-num-blocks", str(args.kv_cache_tokens // 256)]
        threads = {"OMP_NUM_THREADS": str(args.threads)}
        server = stack.enter_context(running(command, port, "/health", environment=threads))
        out.append(Entrant("transformers serve", server, {"model": args.transformers}))
    return out


def table(cells: Sequence[Cell], labels: Sequence[str], levels: Sequence[int]) -> list[dict[str, Any]]:
    """A row a level and system: medians over rounds."""
    out = []
    for level in levels:
        plain = {cell.round: cell for cell in cells if (cell.label, cell.clients) == ("plain", level)}
        for label in labels:
            own = [cell for cell in cells if (cell.label, cell.clients) == (label, level)]
            if not own:
                continue
            same = sum(sorted(cell.texts) == sorted(plain[cell.round].texts) for cell in own)
            out.append(
                {
                    "clients": level,
                    "system": label,
                    "tokens/s": round(statistics.median(cell.rate for cell in own), 1),
                    "over plain": round(statistics.median(cell.rate / plain[cell.round].rate for cell in own), 3),
                    "TPOT ms": round(statistics.median(statistics.mean(cell.tpot) for cell in own), 2),
                    "equal": f"{same} of {len(own)}",
                }
            )
    return out


def main() -> int:
    """Run it and print the table."""
    parser: Any = harness.parser(__doc__ or "", max_tokens=96)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--methods", type=harness.listed, default=["suffix", "eagle3", "auto"])
    parser.add_argument("--levels", type=lambda text: [int(part) for part in text.split(",")], default=LEVELS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rival-rounds", type=int, help="the other servers leave after so many rounds (default: all)")
    parser.add_argument("--llama", nargs=2, metavar=("LLAMA-SERVER", "GGUF"), help="llama.cpp's server and weights")
    parser.add_argument("--transformers", metavar="MODEL", help="folder for `transformers serve`")
    parser.set_defaults(kv_cache_tokens=32768)
    args = parser.parse_args()
    from outrider.bench.data import load_prompts

    texts = [prompt.turns[0][:2000] for prompt in mixed(load_prompts(args.prompts), 10_000)]
    cells: list[Cell] = []
    with ExitStack() as stack:
        systems = entrants(stack, args)
        labels, recorder = [system.label for system in systems], harness.Recorder(args, {"target": args.model})
        for system in systems:
            asyncio.run(crowd(system, texts[-8:], 4, -1, 32))
        used = 0
        for level in args.levels:
            count = max(8, 2 * level)
            for number in range(args.rounds):
                chosen = [texts[(used + index) % len(texts)] for index in range(count)]
                used += count
                rivals = args.rival_rounds is None or number < args.rival_rounds
                present = [system for system in systems if rivals or "speculation" in system.more]
                for turn in range(len(present)):
                    system = present[(turn + number) % len(present)]
                    cells.append(asyncio.run(crowd(system, chosen, level, number, args.max_new_tokens)))
                    harness.say(f"{level} clients, round {number + 1}: {system.label} {cells[-1].rate:.0f} tokens/s")
                rows = [asdict(cell) | {"texts": None} for cell in cells]
                recorder.summary({"table": table(cells, labels, args.levels), "rounds": rows})
    rows = table(cells, labels, args.levels)
    print(f"{'clients':>7}  {'system':20}{'tokens/s':>9}{'over plain':>11}{'TPOT ms':>9}  rounds with equal texts")
    for row in rows:
        figures = f"{row['tokens/s']:9}{row['over plain']:11}{row['TPOT ms']:9}"
        print(f"{row['clients']:7}  {row['system']:20}{figures}  {row['equal']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
