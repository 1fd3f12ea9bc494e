"""Which replica has computed the beginning of a prompt: names of prefixes, and who has seen which."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

R = TypeVar("R", bound=Hashable)

_BLOCK = 128  # characters that get a name together
_FIELDS = ("tools", "instructions", "messages", "input", "prompt")  # in the order in which templates write them


def names(body: bytes, whose: bytes = b"") -> tuple[bytes, ...]:
    """A name for every block of the prompt in a request's ``body``; each stands for all that comes before it too.

    ``whose``: what callers that share cached prefixes have in common, such as their key. A body without a prompt has
    none, nor has the last, incomplete block of a prompt unless it is the only one.
    """
    try:
        fields = json.loads(body)
    except ValueError:
        return ()
    given = [fields[name] for name in _FIELDS if fields.get(name)] if isinstance(fields, dict) else []
    if not given:
        return ()
    text = json.dumps(given, ensure_ascii=False).encode("utf-8", "surrogatepass")
    chain = hashlib.blake2b(whose + str(fields.get("cache_salt")).encode("utf-8", "surrogatepass"), digest_size=8)
    out = []
    for start in range(0, max(len(text) - _BLOCK + 1, 1), _BLOCK):
        chain.update(text[start : start + _BLOCK])
        out.append(chain.digest())
    return tuple(out)


class Prefixes(Generic[R]):
    """What each replica has seen lately. ``capacity``: blocks to remember a replica."""

    def __init__(self, capacity: int = 65536) -> None:
        self._capacity = capacity
        self._seen: dict[R, OrderedDict[bytes, None]] = {}

    def note(self, replica: R, prefix: Iterable[bytes]) -> None:
        """``replica`` computes ``prefix`` now."""
        seen = self._seen.setdefault(replica, OrderedDict())
        for name in prefix:
            seen[name] = None
            seen.move_to_end(name)
        while len(seen) > self._capacity:
            seen.popitem(last=False)

    def keep(self, replicas: Iterable[R]) -> None:
        """Forget all others."""
        kept = set(replicas)
        self._seen = {replica: seen for replica, seen in self._seen.items() if replica in kept}

    def num_known(self, replica: R, prefix: Iterable[bytes]) -> int:
        """Blocks of ``prefix`` that ``replica`` has seen."""
        seen, known = self._seen.get(replica, ()), 0
        for name in prefix:
            if name not in seen:
                break
            known += 1
        return known

    def best(self, replicas: Sequence[R], prefix: Sequence[bytes], load: Mapping[R, int], margin: int) -> R:
        """The replica that knows most of ``prefix`` among those with at most ``margin`` requests more than the idlest.

        Equals go by load; then the first block decides, so that a burst of one prompt, and other routers, agree.
        """
        allowed = min(load.get(replica, 0) for replica in replicas) + margin
        free = [replica for replica in replicas if load.get(replica, 0) <= allowed]
        first = prefix[0] if prefix else b""

        def rank(replica: R) -> tuple[int, int, bytes]:
            drawn = hashlib.blake2b(first + str(replica).encode(), digest_size=8).digest()
            return self.num_known(replica, prefix), -load.get(replica, 0), drawn

        return max(free, key=rank)
