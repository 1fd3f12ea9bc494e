"""Native kernels: a small C++ library, compiled on first use for this processor and kept in the cache folder.

``library()`` gives it, or None where there is no compiler; ``status()`` says which and why. Nothing above this room
may need it: every kernel has a torch twin.
"""

from __future__ import annotations

from outrider.native.build import Library, library, status

__all__ = ["Library", "library", "set_threads", "status", "threads"]

_threads: int | None = None


def threads() -> int:
    """Threads of a forward: what was set last, or torch's number."""
    if _threads is not None:
        return _threads
    import torch

    return int(torch.get_num_threads())


def set_threads(count: int) -> None:
    """Let forwards use ``count`` threads: the kernels' own, and then torch gets one, or else torch's.

    torch's threads would spin on the cores of the kernels' after every operation that uses more than one.
    """
    import torch

    global _threads
    _threads = count
    torch.set_num_threads(1 if library() is not None else count)
