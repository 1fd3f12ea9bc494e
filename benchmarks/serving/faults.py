"""What clients do wrong, while others are served: each fault gets its status, and nobody else notices.

Eight clients stream the same chats throughout. Meanwhile come a wrong key, half a character, a body of 10 MB, one that
is no JSON, a reader that does not read, and 10,000 requests at once against a queue of 512. At last SIGTERM comes under
load. The streams must say what they say on a quiet server; those that begin while the queue is full may get 429.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import harness
import httpx
from process import Server, outrider

KEY = {"Authorization": "Bearer right"}
STREAM: dict[str, Any] = {"max_tokens": 64, "temperature": 0.0, "stream": True}
FULL = "status 429"
QUESTIONS = [
    "Why is the sky blue?",
    "Write a limerick about rain.",
    "Count from one to ten.",
    "What is a prime number?",
]


async def stream(client: httpx.AsyncClient, server: Server, question: str) -> str:
    """The text of one streamed chat, or what went wrong."""
    body = STREAM | {"messages": [{"role": "user", "content": question}]}
    text = ""
    async with client.stream("POST", f"{server.address}/v1/chat/completions", json=body, headers=KEY) as answer:
        if answer.status_code != 200:
            return f"status {answer.status_code}"
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                part = json.loads(line[6:])
                text += "".join(choice["delta"].get("content") or "" for choice in part.get("choices", ()))
                text += json.dumps(part["error"]) if "error" in part else ""
    return text


async def post(client: httpx.AsyncClient, server: Server, content: bytes, headers: dict[str, str] = KEY) -> str:
    """Status and kind of a body's answer."""
    url = f"{server.address}/v1/completions"
    try:
        answer = await client.post(url, content=content, headers={**headers, "Content-Type": "application/json"})
    except httpx.TransportError as error:
        return type(error).__name__
    kind = "" if answer.status_code == 200 else f" {answer.json()['error']['type']}"
    retry = " with Retry-After" if "retry-after" in answer.headers else ""
    return f"{answer.status_code}{kind}{retry}"


async def stuck(server: Server) -> str:
    """A client that asks for a long answer and reads nothing of it."""
    _, writer = await asyncio.open_connection("127.0.0.1", int(server.address.rsplit(":", 1)[1]), limit=1)
    body = json.dumps(
        {"prompt": "On and on", "max_tokens": 400, "n": 8, "stream": True, "logprobs": 20, "ignore_eos": True}
    )
    head = [
        "POST /v1/completions HTTP/1.1",
        "Host: x",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    writer.write("\r\n".join([*head, f"Authorization: {KEY['Authorization']}", "", body]).encode())
    await asyncio.sleep(5)
    writer.close()
    return "kept for later, then gone"


async def run(server: Server) -> tuple[dict[str, str], bool]:
    """What each fault got, and whether the streams beside it said what they always say."""
    limits = httpx.Limits(max_connections=None)
    small = json.dumps({"prompt": "The", "max_tokens": 1}).encode()
    got = {}
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        want = [await stream(client, server, question) for question in QUESTIONS]
        told: list[tuple[int, str]] = []
        going = True

        async def steady(number: int) -> None:
            while going:
                text = await stream(client, server, QUESTIONS[number % 4])
                if text == FULL:
                    await asyncio.sleep(1)
                else:
                    told.append((number % 4, text))

        streams = [asyncio.create_task(steady(number)) for number in range(8)]
        await asyncio.sleep(1)
        got["wrong key"] = await post(client, server, small, {"Authorization": "Bearer wrong"})
        got["half a character"] = await post(client, server, b'{"prompt": "\xc3"}')
        got["lone surrogate"] = await post(client, server, b'{"prompt": "\\ud800"}')
        got["no JSON"] = await post(client, server, b"prompt=The")
        got["10 MB"] = await post(client, server, json.dumps({"prompt": "x" * 10_000_000}).encode())
        got["reader that does not read"] = await stuck(server)
        flood = Counter(await asyncio.gather(*(post(client, server, small) for _ in range(10_000))))
        got["10,000 at once"] = ", ".join(f"{count} x {kind}" for kind, count in sorted(flood.items()))
        going = False
        await asyncio.gather(*streams)
        equal = all(text == want[number] for number, text in told)
        harness.say(f"{len(told)} streams beside the faults")
        last = [asyncio.create_task(stream(client, server, question)) for question in QUESTIONS * 2]
        await asyncio.sleep(0.3)
        os.kill(server.pid, signal.SIGTERM)
        await asyncio.sleep(0.1)
        got["new request after SIGTERM"] = await post(client, server, small)
        equal = await asyncio.gather(*last) == want * 2 and equal
    return got, equal


def main() -> int:
    """Run it; the exit status says whether the streams were left alone."""
    parser: Any = harness.parser(__doc__ or "", prompts=False)
    args = parser.parse_args()
    with outrider(args.model, "--threads", str(args.threads), "--api-key", "right") as server:
        begin = time.monotonic()
        got, equal = asyncio.run(run(server))
        harness.say(f"{time.monotonic() - begin:.0f} s")
    for fault, status in got.items():
        print(f"{fault:28} {status}")
    print(f"{'streams beside them':28} {'as on a quiet server' if equal else 'NOT as on a quiet server'}")
    return int(not equal)


if __name__ == "__main__":
    raise SystemExit(main())
