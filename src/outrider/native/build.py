"""Compile the kernels with the machine's own compiler, load them through a plain C interface."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from outrider.native import abi
from outrider.paths import cache_dir

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_COMMON = ("-O3", "-std=c++17", "-fPIC", "-pthread", "-fno-math-errno")
# The noise must round after every operation; the kernels may fuse, since each row runs the same code.
_FUSED = ("-ffp-contract=fast",)
_FLAGS = {"pool.cpp": _FUSED, "linear.cpp": _FUSED, "decoder.cpp": _FUSED, "noise.cpp": ("-ffp-contract=off",)}


@dataclass(frozen=True, slots=True)
class Status:
    """Whether the kernels are in use, and why (not)."""

    available: bool
    reason: str


class Library:
    """The loaded kernels; each attribute is a C function (signatures in the .cpp files)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lib = ctypes.CDLL(str(path))
        abi.declare(lib)
        self.linear, self.attend, self.forward = lib.outrider_linear, lib.outrider_attend, lib.outrider_forward
        self.argmax, self.topk, self.likeliest = lib.outrider_argmax, lib.outrider_topk, lib.outrider_likeliest
        self.norm, self.chain = lib.outrider_norm, lib.outrider_chain
        self.gumbel_argmax, self.gumbel_topk = lib.outrider_gumbel_argmax, lib.outrider_gumbel_topk


def _compiler() -> list[str]:
    """The compiler and its own options. Raises OSError when there is none."""
    wanted = shlex.split(os.environ.get("CXX", ""))
    for name in wanted[:1] or ("g++", "c++", "clang++"):
        if found := shutil.which(name):
            return [found, *wanted[1:]]
    if wanted:
        raise OSError(f"CXX={wanted[0]} is not on the PATH: set it to a C++ compiler, or unset it")
    raise OSError("no C++ compiler found: install g++, or set CXX")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    except OSError:
        return platform.processor()


def _run(command: list[str]) -> str:
    """What ``command`` prints. Raises OSError with the first line of its complaint."""
    result = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        blamed = next((line for line in lines if "error" in line), lines[0] if lines else f"exit {result.returncode}")
        raise OSError(f"{command[0]} could not compile the kernels ({blamed.strip()}): set CXX to another compiler")
    return result.stdout


def _compile(compiler: list[str], out: Path) -> None:
    """Compile into a folder of our own and move the result to ``out`` at once: others may do the same just now."""
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        linked = Path(scratch, out.name)
        if wanted := os.environ.get("OUTRIDER_ARCH"):
            _build(compiler, (f"-march={wanted}",), linked)
            linked.replace(out)
            return
        try:
            _build(compiler, ("-march=native",), linked)
        except OSError as error:
            log.info("%s; once more for any processor", error)
            _build(compiler, (), linked)
        linked.replace(out)


def _build(compiler: list[str], architecture: tuple[str, ...], out: Path) -> None:
    objects = []
    for source, flags in _FLAGS.items():
        objects.append(f"{out}.{source}.o")
        _run([*compiler, *_COMMON, *architecture, *flags, "-c", str(_HERE / source), "-o", objects[-1]])
    _run([*compiler, "-shared", "-pthread", *objects, "-o", str(out)])


def _path(compiler: list[str], version: str) -> Path:
    """Where the kernels of this compiler, processor and source lie; the folder is made."""
    digest = hashlib.sha256(
        "\0".join((*compiler, version, _cpu(), repr((_COMMON, _FLAGS)), os.environ.get("OUTRIDER_ARCH", ""))).encode()
    )
    for source in sorted((*_HERE.glob("*.cpp"), *_HERE.glob("*.h"))):
        digest.update(source.read_bytes())
    try:
        return cache_dir("native") / f"outrider-{digest.hexdigest()[:16]}.so"
    except OSError as error:
        raise OSError(f"the cache cannot be written ({error}): set OUTRIDER_CACHE to a folder of yours") from error


def _open(compiler: list[str], path: Path) -> Library:
    if path.exists():
        try:
            return Library(path)
        except (OSError, AttributeError) as error:  # a damaged file, or another machine's
            log.info("%s does not load (%s); compiling it anew", path, error)
    if not os.access(path.parent, os.W_OK):
        raise OSError(f"{path.parent} cannot be written: set OUTRIDER_CACHE to a folder of yours")
    log.info("compiling the native kernels (once, some seconds)")
    _compile(compiler, path)
    return Library(path)


@functools.cache
def _load() -> tuple[Library | None, Status]:
    if os.environ.get("OUTRIDER_NATIVE", "1") == "0":
        return None, Status(False, "switched off by OUTRIDER_NATIVE=0")
    try:
        compiler = _compiler()
        version = _run([*compiler, "--version"])
        kernels = _open(compiler, _path(compiler, version))
        arch = os.environ.get("OUTRIDER_ARCH", "this processor")
        return kernels, Status(True, f"compiled for {arch} with {(version.splitlines() or compiler)[0]}")
    except (OSError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return None, Status(False, reason)


def library() -> Library | None:
    """The kernels, or None (then ``status()`` says why and torch does the work)."""
    return _load()[0]


def status() -> Status:
    """Whether the kernels are in use, and why."""
    return _load()[1]
