"""Cached prefixes with and without speculation: conversations under one long system prompt, in two turns each, several
at a time. Every method has a server of its own and gets the same requests.

Printed are prompt tokens found in the cache, over all prompt tokens, and the mean difference to plain decoding in
tokens a request; a block of the cache has 16.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import harness
import httpx
from measure import mixed
from process import Server, outrider

BLOCK = 16
RULES = [
    "Answer in the language of the question.",
    "Keep to what was asked, and say so where you do not know.",
    "Never invent a source, a number or a name.",
    "Show the steps of a calculation before its result.",
    "Write code in blocks, with the language named.",
    "Use plain words; explain a term where you first use it.",
    "Do not repeat the question.",
    "Give dates as year, month and day.",
]
SYSTEM = "You are a careful assistant of a public library.\n" + "\n".join(
    f"Rule {number + 1}: {rule}" for number, rule in enumerate(RULES * 5)
)


async def conversation(client: httpx.AsyncClient, server: Server, first: str, second: str, tokens: int) -> list[int]:
    """Two turns; the cached tokens of each."""
    messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    out = []
    for text in (first, second):
        messages.append({"role": "user", "content": text})
        body = {"messages": messages, "max_tokens": tokens, "temperature": 0.0}
        answer = (await client.post(f"{server.address}/v1/chat/completions", json=body)).json()
        out.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    return out


async def run(server: Server, texts: list[str], concurrency: int, tokens: int) -> list[int]:
    """Cached tokens of all requests in order."""
    gate = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(timeout=600) as client:
        await conversation(client, server, "Hello.", "Thank you.", 8)  # the system prompt is there from now on

        async def one(number: int) -> list[int]:
            async with gate:
                return await conversation(client, server, texts[number], "Say that again in one sentence.", tokens)

        return [count for pair in await asyncio.gather(*map(one, range(len(texts)))) for count in pair]


def main() -> int:
    """Run it; the exit status says whether every method stays within a block of plain decoding."""
    parser: Any = harness.parser(__doc__ or "", max_tokens=48)
    parser.add_argument("--methods", type=harness.listed, default=["suffix", "eagle3", "auto"])
    parser.add_argument("--conversations", type=int, default=24)
    parser.add_argument("--concurrency", type=int, default=4)
    args = parser.parse_args()
    from outrider.bench.data import load_prompts

    texts = [prompt.turns[0][:800] for prompt in mixed(load_prompts(args.prompts), args.conversations)]
    cached, rates = {}, {}
    for method in ("plain", *args.methods):
        options = ["--method", method, "--threads", str(args.threads), "--kv-cache-tokens", str(args.kv_cache_tokens)]
        with outrider(args.model, *options) as server:
            cached[method] = asyncio.run(run(server, texts, args.concurrency, args.max_new_tokens))
            counts = server.stats()["prefix_cache"]
            rates[method] = counts["hit_tokens"] / counts["query_tokens"]
    report = {
        method: {
            "hit rate": round(rates[method], 4),
            "tokens fewer a request than plain": round(
                sum(a - b for a, b in zip(cached["plain"], cached[method], strict=True)) / len(cached[method]), 2
            ),
            "largest difference": max(abs(a - b) for a, b in zip(cached["plain"], cached[method], strict=True)),
        }
        for method in cached
    }
    print(json.dumps(report, indent=2))
    return int(any(abs(each["tokens fewer a request than plain"]) > BLOCK for each in report.values()))


if __name__ == "__main__":
    raise SystemExit(main())
