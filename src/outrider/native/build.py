"""Compile the kernels with the machine's own compiler, load them through a plain C interface."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
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
        self.attend = lib.outrider_attend
        self.attend.argtypes = (ctypes.POINTER(Attend),)
        self.attend.restype = None
        self.gumbel_argmax = lib.outrider_gumbel_argmax
        self.gumbel_argmax.argtypes = (pointer, i64, ctypes.c_uint32, ctypes.c_uint32)
        self.gumbel_argmax.restype = i64


def _compiler() -> str | None:
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    except OSError:
        return platform.processor()


def _share_openmp() -> None:
    """Load torch's own OpenMP globally, so that the kernels join its thread pool: two pools would fight for cores."""
    import torch

    folder = Path(torch.__file__).parent
    for place in (folder / "lib", folder.parent / "torch.libs"):
        for path in sorted(place.glob("libgomp*.so*")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            return
    ctypes.CDLL("libgomp.so.1", mode=ctypes.RTLD_GLOBAL)


def _compile(compiler: str, out: Path) -> None:
    for architecture in (("-march=native",), ()):
        with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
            try:
                objects = []
                for source, flags in _FLAGS.items():
                    objects.append(str(Path(scratch, source + ".o")))
                    command = [compiler, *_COMMON, *architecture, *flags, "-c", str(_HERE / source), "-o", objects[-1]]
                    subprocess.run(command, check=True, capture_output=True, text=True)
                linked = Path(scratch, out.name)
                command = [compiler, "-shared", *objects, "-o", str(linked)]  # OpenMP comes from torch
                subprocess.run(command, check=True, capture_output=True, text=True)
                linked.replace(out)
                return
            except subprocess.CalledProcessError as error:
                failure = error.stderr.strip().splitlines()[-1:] or ["no message"]
                log.info("compiler refused the kernels with %s: %s", architecture, failure[0])
    raise OSError(f"{compiler} could not compile the kernels: {failure[0]}")


@functools.cache
def _load() -> tuple[Library | None, Status]:
    if os.environ.get("OUTRIDER_NATIVE", "1") == "0":
        return None, Status(False, "switched off by OUTRIDER_NATIVE=0")
    compiler = _compiler()
    if compiler is None:
        return None, Status(False, "no C++ compiler found (set CXX or install g++)")
    try:
        version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True).stdout
        digest = hashlib.sha256("\0".join((version, _cpu(), repr((_COMMON, _FLAGS)))).encode())
        for source in _FLAGS:
            digest.update((_HERE / source).read_bytes())
        path = cache_dir() / "native" / f"outrider-{digest.hexdigest()[:16]}.so"
        if not path.exists():
            log.info("compiling the native kernels (once, some seconds)")
            path.parent.mkdir(parents=True, exist_ok=True)
            _compile(compiler, path)
        _share_openmp()
        return Library(path), Status(True, f"compiled with {version.splitlines()[0]}")
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        return None, Status(False, f"{error}")


def library() -> Library | None:
    """The kernels, or None (then ``status()`` says why and torch does the work)."""
    return _load()[0]


def status() -> Status:
    """Whether the kernels are in use, and why."""
    return _load()[1]
