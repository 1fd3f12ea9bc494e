"""Compile the kernels with the machine's own compiler, load them through a plain C interface."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from outrider.paths import cache_dir

log = logging.getLogger(__name__)

_HERE = Path(__file__).parent
_COMMON = ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-fno-math-errno")
# The noise must round after every operation; the kernels may fuse, since each row runs the same code.
_FLAGS = {"kernels.cpp": ("-ffp-contract=fast",), "noise.cpp": ("-ffp-contract=off",)}

_OPENMP = re.compile(r"lib(gomp|iomp5|omp)[-\w]*\.so[.\d]*")


_LINEAR = {  # by the dtype of the packed weight
    "float32": "outrider_linear",
    "float16": "outrider_linear_half",
    "bfloat16": "outrider_linear_bfloat16",
}


class Attend(ctypes.Structure):
    """Arguments of ``outrider_attend``; the fields and their shapes are documented in kernels.cpp."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("q_stride", ctypes.c_int64),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("kv_stride", ctypes.c_int64),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("context_len", ctypes.c_void_p),
        ("path", ctypes.c_void_p),
        ("path_start", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("q_heads", ctypes.c_int64),
        ("kv_heads", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("rotary", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("threads", ctypes.c_int32),
        ("write", ctypes.c_int32),
    )


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
        pointer, i64, i32, f32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
        self.add_rms_norm = lib.outrider_add_rms_norm
        self.add_rms_norm.argtypes = (pointer, pointer, pointer, pointer, i64, i64, f32)
        self.add_rms_norm.restype = None
        self.silu_mul = lib.outrider_silu_mul
        self.silu_mul.argtypes = (pointer, pointer, i64, i64, i32)
        self.silu_mul.restype = None
        self.linear = {dtype: lib[name] for dtype, name in _LINEAR.items()}
        for function in self.linear.values():
            function.argtypes = (pointer, pointer, pointer, pointer, i64, i64, i64, i32)
            function.restype = None
        self.attend = lib.outrider_attend
        self.attend.argtypes = (ctypes.POINTER(Attend),)
        self.attend.restype = None
        self.gumbel_argmax = lib.outrider_gumbel_argmax
        self.gumbel_argmax.argtypes = (pointer, i64, ctypes.c_uint32, ctypes.c_uint32)
        self.gumbel_argmax.restype = i64
        self.gumbel_topk = lib.outrider_gumbel_topk
        self.gumbel_topk.argtypes = (pointer, i64, ctypes.c_uint32, ctypes.c_uint32, i64, pointer)
        self.gumbel_topk.restype = i64


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


def _share_openmp() -> None:
    """Make torch's own OpenMP visible to the kernels, so that they join its threads: two pools would fight for cores.

    Raises OSError when torch's OpenMP is not found.
    """
    import torch

    folder = Path(torch.__file__).parent
    found = [path for path in _mapped() if _OPENMP.fullmatch(path.name)]
    for place in (folder / "lib", folder.parent / "torch.libs"):
        found.extend(path for path in sorted(place.glob("lib*omp*.so*")) if _OPENMP.fullmatch(path.name))
    if not found:
        raise OSError("torch's OpenMP library is not found, and a second one would take its cores")
    found.sort(key=lambda path: not path.is_relative_to(folder.parent))  # others may have brought their own as well
    ctypes.CDLL(str(found[0]), mode=ctypes.RTLD_GLOBAL)


def _mapped() -> list[Path]:
    """The libraries that this process has loaded, where the system tells."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    return list(dict.fromkeys(Path(line.split(maxsplit=5)[5]) for line in lines if ".so" in line))


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
    _run([*compiler, "-shared", *objects, "-o", str(out)])  # without OpenMP, which comes from torch


def _path(compiler: list[str], version: str) -> Path:
    """Where the kernels of this compiler, processor and source lie; the folder is made."""
    digest = hashlib.sha256("\0".join((*compiler, version, _cpu(), repr((_COMMON, _FLAGS)))).encode())
    for source in _FLAGS:
        digest.update((_HERE / source).read_bytes())
    try:
        return cache_dir("native") / f"outrider-{digest.hexdigest()[:16]}.so"
    except OSError as error:
        raise OSError(f"the cache cannot be written ({error}): set OUTRIDER_CACHE to a folder of yours") from error


def _open(compiler: list[str], path: Path) -> Library:
    _share_openmp()
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
        return kernels, Status(True, f"compiled with {(version.splitlines() or compiler)[0]}")
    except (OSError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return None, Status(False, reason)


def library() -> Library | None:
    """The kernels, or None (then ``status()`` says why and torch does the work)."""
    return _load()[0]


def status() -> Status:
    """Whether the kernels are in use, and why."""
    return _load()[1]
