"""The prefix index: finds blocks that already hold the KV of a prompt's first tokens.

Full committed blocks form a hash chain: key = blake2b(key of the parent, tokens of the block), and the chain of a salt
starts at blake2b(salt). A hit also compares the tokens and the parent entry itself, so that a collision of digests can
never hand out the KV of other tokens or of another salt.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from outrider.cache.pool import BlockPool
from outrider.errors import CacheError


class PrefixEntry:
    """One indexed block: its place in the chain and the tokens whose KV it holds."""

    __slots__ = ("alive", "block", "children", "key", "parent", "tokens")

    def __init__(self, key: bytes, parent: PrefixEntry | None, tokens: bytes, block: int) -> None:
        self.key = key
        self.parent = parent
        self.tokens = tokens
        self.block = block
        self.children: set[PrefixEntry] = set()
        self.alive = True


def digest(parent: bytes, content: bytes) -> bytes:
    """16-byte key of ``content`` after a chain with the key ``parent``."""
    return blake2b(content, digest_size=16, key=parent).digest()


class PrefixIndex:
    """Maps chains of full blocks to block ids of one pool. Entries leave when the pool evicts their block.

    ``num_query_tokens`` and ``num_hit_tokens`` count what admitted prompts asked for and got (``record``).
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._entries: dict[bytes, PrefixEntry] = {}
        self._by_block: dict[int, PrefixEntry] = {}
        self._roots: dict[str, PrefixEntry] = {}
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        pool.watch_evictions(self._drop)

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        """Blocks of the longest indexed prefix of ``tokens`` in whole blocks, never all of ``tokens``.

        The last token is always left to recompute, since its logits are needed. The blocks are not held yet: share
        them before anything else is allocated.
        """
        size = self._pool.block_size
        entry = self._roots.get(salt)
        blocks: list[int] = []
        for index in range((len(tokens) - 1) // size):
            if entry is None:
                break
            packed = array("q", tokens[index * size : (index + 1) * size]).tobytes()
            entry = self._lookup(entry, packed)
            if entry is not None:
                blocks.append(entry.block)
        return blocks

    def entry(self, block: int) -> PrefixEntry:
        """The entry of an indexed block."""
        return self._by_block[block]

    def record(self, num_query_tokens: int, num_hit_tokens: int) -> None:
        """Count one admitted prompt."""
        self.num_query_tokens += num_query_tokens
        self.num_hit_tokens += num_hit_tokens

    def root(self, salt: str = "") -> PrefixEntry:
        """The entry at which the chains of ``salt`` start."""
        entry = self._roots.get(salt)
        if entry is None:
            name = salt.encode()
            entry = PrefixEntry(digest(b"", name), None, name, -1)
            self._roots[salt] = entry
        return entry

    def insert(self, parent: PrefixEntry, tokens: Sequence[int], block: int) -> PrefixEntry | None:
        """Index the full held ``block``, which holds the KV of ``tokens`` after the chain of ``parent``.

        Returns the chain's next entry, which is an older block when the same tokens are indexed already, or None when
        the chain cannot go on (another chain has the same digest, or ``block`` is indexed or unfit to be).
        """
        if len(tokens) != self._pool.block_size:
            raise CacheError(f"KV cache: {len(tokens)} tokens given for a full block of {self._pool.block_size}")
        if not parent.alive:
            raise CacheError("KV cache: the parent of this block was evicted from the prefix index: start at root()")
        packed = array("q", tokens).tobytes()
        known = self._lookup(parent, packed)
        if known is not None:
            return known
        key = digest(parent.key, packed)
        if key in self._entries or block in self._by_block or not self._pool.indexable(block):
            return None
        entry = PrefixEntry(key, parent, packed, block)
        self._pool.index(block)
        self._entries[key] = self._by_block[block] = entry
        parent.children.add(entry)
        return entry

    def _lookup(self, parent: PrefixEntry, packed: bytes) -> PrefixEntry | None:
        entry = self._entries.get(digest(parent.key, packed))
        return entry if entry is not None and entry.parent is parent and entry.tokens == packed else None

    def _drop(self, block: int) -> None:
        """Forget ``block`` and its descendants, which no walk can reach any more."""
        entry = self._by_block[block]
        parent = entry.parent
        if parent is not None:
            parent.children.discard(entry)
            if parent.parent is None and not parent.children:
                parent.alive = False
                del self._roots[parent.tokens.decode()]
        stack = [entry]
        while stack:
            entry = stack.pop()
            stack.extend(entry.children)
            entry.alive = False
            del self._entries[entry.key], self._by_block[entry.block]
            self._pool.unindex(entry.block)
