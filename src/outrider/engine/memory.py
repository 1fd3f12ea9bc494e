"""How much memory the KV caches get: one budget for target and draft models.

    free   = memory that is left once the weights of target and draft models are loaded
    logits = 4 bytes * vocabulary * rows with logits in the widest step
    tokens = (share * free - logits) / (KV bytes per token of the target + of every draft model)

and never more tokens than all sequences can have at once. Every draft model's pool holds the same tokens as the
target's (no more than its own context a sequence), and room for the rows of one draft a sequence. These are the pools'
own blocks; what the drafts' leave idle is lent to the target's (``cache.budget``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from outrider.errors import ConfigError

CACHE_SHARE = 0.25  # of the memory that is free after loading
LOGIT_BYTES = 4
_UNKNOWN = 4 << 30  # where the system does not tell


def logits_bytes(vocab_size: int, max_num_seqs: int, draft_tokens: int) -> int:
    """Bytes of the raw logits of a step in which every sequence verifies ``draft_tokens`` nodes."""
    return LOGIT_BYTES * vocab_size * max_num_seqs * (1 + draft_tokens)


def affordable_tokens(free: int, reserved: int, bytes_per_token: Sequence[int]) -> int:
    """Tokens that fit into the cache's share of ``free`` bytes after ``reserved``, at ``bytes_per_token`` a model."""
    return max(0, int(free * CACHE_SHARE) - reserved) // sum(bytes_per_token)


def cache_tokens(wanted: int | None, *, affordable: int, max_model_len: int, max_num_seqs: int, block_size: int) -> int:
    """Tokens of the target's pool, whole blocks. ``wanted``: as the user said, or None for what is affordable.

    Raises ConfigError when that is less than two blocks.
    """
    if wanted is None:
        wanted = min(affordable, max_model_len * max_num_seqs)
        if wanted < 2 * block_size:
            raise ConfigError(
                f"the free memory holds a cache of {wanted} tokens only: free some, or set kv_cache_tokens to go ahead"
            )
    if wanted < 2 * block_size:
        raise ConfigError(f"kv_cache_tokens={wanted} holds less than two blocks of {block_size}: raise it")
    return round_up(wanted, block_size)


def draft_cache_tokens(
    tokens: int, *, max_model_len: int, max_num_seqs: int, draft_tokens: int, block_size: int
) -> int:
    """Tokens of a draft model's pool beside a target's pool of ``tokens``; ``max_model_len``: the draft's own."""
    context = min(tokens, round_up(max_model_len, block_size) * max_num_seqs)
    return context + (round_up(draft_tokens, block_size) + block_size) * max_num_seqs


def round_up(tokens: int, block_size: int) -> int:
    """``tokens`` in whole blocks."""
    return -(-tokens // block_size) * block_size


def free_memory(device: torch.device) -> int:
    """Bytes that may be taken on ``device``; on the CPU what is free or reclaimable within the control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_available(), _group_room())


def _available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return _UNKNOWN


def _group_room(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory left to this process's control group; a very large number when it has no limit."""
    try:
        limit, used = (root / "memory.max").read_text().strip(), (root / "memory.current").read_text()
        return 1 << 62 if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return 1 << 62
