"""Python in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def python(arguments: Sequence[str], count: int = 1) -> subprocess.CompletedProcess[str]:
    """What ``python ARGUMENTS`` said; ``count`` over 1: of so many processes that torchrun starts. It must succeed."""
    together = [] if count == 1 else [*TORCHRUN, str(count)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *together, *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done
