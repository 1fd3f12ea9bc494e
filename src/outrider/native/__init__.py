"""Native kernels: a small C++ library, compiled on first use for this processor and kept in the cache folder.

``library()`` gives it, or None where there is no compiler; ``status()`` says which and why. Nothing above this room
may need it: every kernel has a torch twin.
"""

from outrider.native.build import Library, library, status

__all__ = ["Library", "library", "status"]
