"""Names of prefixes, and the replica that is chosen for one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider.server.replicas.prefixes import Prefixes, names

LONG = "a sentence that goes on for quite some while. " * 20


def chat(*contents: str, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": content} for content in contents]
    return json.dumps({**fields, "messages": messages}).encode()


def common(left: bytes, right: bytes) -> int:
    """Blocks that two bodies share."""
    pairs = zip(names(left), names(right), strict=False)
    return next(
        (number for number, (one, two) in enumerate(pairs) if one != two), min(len(names(left)), len(names(right)))
    )


def test_a_conversation_that_goes_on_keeps_the_names_of_its_beginning() -> None:
    before, after = chat(LONG, model="m", seed=1), chat(LONG, "and then?", temperature=0, model="m")
    assert common(before, after) >= len(names(before)) - 1 > 4


def test_another_beginning_shares_no_name() -> None:
    assert common(chat("x" + LONG), chat(LONG)) == 0


def test_the_end_may_differ() -> None:
    assert 0 < common(chat(LONG + "a"), chat(LONG + "b")) <= len(names(chat(LONG)))


@pytest.mark.parametrize("field", ["prompt", "input", "instructions", "tools"])
def test_every_kind_of_prompt_counts(field: str) -> None:
    assert names(json.dumps({field: [LONG]}).encode()) != names(json.dumps({field: ["x" + LONG]}).encode())


def test_who_shares_no_cache_shares_no_name() -> None:
    assert not set(names(chat(LONG), b"Bearer a")) & set(names(chat(LONG), b"Bearer b"))
    assert not set(names(chat(LONG, cache_salt="a"))) & set(names(chat(LONG, cache_salt="b")))


@pytest.mark.parametrize("body", [b"", b"no json", b"[1]", b'{"prompt": ""}', b'"text"', b"\xff"])
def test_a_body_without_a_prompt_has_no_names(body: bytes) -> None:
    assert names(body) == ()


def test_a_short_prompt_has_one_name_and_half_a_surrogate_is_text() -> None:
    assert len(names(chat("hi"))) == 1
    assert len(names(b'{"prompt": "\\ud800"}')) == 1


PREFIX = (b"1", b"2", b"3")
IDLE: dict[str, int] = {}


def test_the_longest_known_prefix_wins() -> None:
    prefixes: Prefixes[str] = Prefixes()
    prefixes.note("a", PREFIX[:1])
    prefixes.note("b", PREFIX)
    prefixes.note("c", (b"x", *PREFIX[1:]))
    assert [prefixes.num_known(replica, PREFIX) for replica in "abc"] == [1, 3, 0]
    assert prefixes.best("abc", PREFIX, IDLE, 4) == "b"


@pytest.mark.parametrize(("load", "chosen"), [(4, "b"), (5, "a")])
def test_one_that_is_much_busier_is_passed_over(load: int, chosen: str) -> None:
    prefixes: Prefixes[str] = Prefixes()
    prefixes.note("b", PREFIX)
    assert prefixes.best("ab", PREFIX, {"b": load, "a": 0}, 4) == chosen


def test_what_nobody_knows_goes_to_the_idlest() -> None:
    assert Prefixes[str]().best("abc", PREFIX, {"a": 2, "b": 1, "c": 2}, 4) == "b"


def test_equals_are_spread_by_the_first_block_and_every_router_agrees() -> None:
    chosen = [Prefixes[str]().best("abcd", (bytes([first]), b"tail"), IDLE, 4) for first in range(64)]
    assert chosen == [Prefixes[str]().best("dbca", (bytes([first]),), IDLE, 4) for first in range(64)]
    assert all(chosen.count(replica) > 4 for replica in "abcd")


def test_the_oldest_is_forgotten_and_so_are_replicas_that_are_gone() -> None:
    prefixes: Prefixes[str] = Prefixes(capacity=3)
    prefixes.note("a", PREFIX)
    prefixes.note("a", (b"1",))
    prefixes.note("a", (b"4",))
    assert (prefixes.num_known("a", PREFIX), prefixes.num_known("a", (b"4",))) == (1, 1)
    prefixes.keep("b")
    assert prefixes.num_known("a", (b"4",)) == 0
