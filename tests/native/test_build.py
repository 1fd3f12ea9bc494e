"""Building and loading the kernels: one OpenMP, no compiler, broken compilers, two processes, caches that fail."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import native
from outrider.native import build

SOURCE = str(Path(native.__file__).parents[2])


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    build._load.cache_clear()
    yield
    monkeypatch.undo()
    build._load.cache_clear()


needs_compiler = pytest.mark.skipif(native.library() is None, reason=native.status().reason)


def python(code: str, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": SOURCE, **environment}
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def unavailable() -> str:
    build._load.cache_clear()
    status = native.status()
    assert native.library() is None
    assert not status.available
    assert status.reason
    assert "\n" not in status.reason
    return status.reason


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


@needs_compiler
def test_the_kernels_use_torchs_own_openmp_and_its_threads() -> None:
    out = python(
        """
        import ctypes, os, torch
        from pathlib import Path
        from outrider import native
        library = native.library()
        maps = Path("/proc/self/maps").read_text().splitlines()
        print(len({line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line or "libomp" in line}))
        address = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
        for line in maps:
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            if low <= address < high:
                print(Path(line.split()[-1]).resolve().is_relative_to(Path(torch.__file__).resolve().parents[1]))
        torch.set_num_threads(2)
        x = torch.randn(1 << 20)
        x.exp()
        before = len(os.listdir("/proc/self/task"))
        gated = torch.empty(1 << 19)
        library.silu_mul(x.data_ptr(), gated.data_ptr(), 64, 1 << 13, 2)
        print(before, len(os.listdir("/proc/self/task")) - before)
        """,
        OMP_NUM_THREADS="2",
    )
    libraries, inside, threads = out.strip().splitlines()
    assert libraries == "1"
    assert inside == "True"
    before, more = map(int, threads.split())
    assert before >= 2
    assert more == 0


@needs_compiler
def test_the_library_brings_no_openmp_of_its_own() -> None:
    library = native.library()
    assert library is not None
    assert b"libgomp.so" not in library.path.read_bytes()


def test_native_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_NATIVE", "0")
    assert unavailable() == "switched off by OUTRIDER_NATIVE=0"


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert unavailable() == "no C++ compiler found: install g++, or set CXX"


def test_a_compiler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    assert unavailable() == "CXX=no-such-compiler is not on the PATH: set it to a C++ compiler, or unset it"


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failing = 'echo warning: old >&2; echo "error: no such thing" >&2; exit 1'
    text = f'case "$1" in --version) echo fake 1.0;; *) {failing};; esac'
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", text))
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    assert "(error: no such thing): set CXX to another compiler" in unavailable()
    assert list((tmp_path / "cache" / "native").iterdir()) == []


def test_a_compiler_that_writes_nonsense_is_no_crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = 'for last; do :; done; [ "$1" = --version ] || echo nonsense > "$last"'
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", text))
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    unavailable()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_cache_that_cannot_be_written_is_named(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    if kind == "file":
        place.touch()
    else:
        (place / "native").mkdir(parents=True)
        monkeypatch.setattr(build.os, "access", lambda path, mode: mode != os.W_OK)  # root may write anywhere
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", "echo fake 1.0"))
    monkeypatch.setenv("OUTRIDER_CACHE", str(place))
    reason = unavailable()
    assert "set OUTRIDER_CACHE to a folder of yours" in reason
    assert str(place) in reason


@needs_compiler
def test_a_damaged_file_is_compiled_anew_and_two_processes_may_compile_at_once(tmp_path: Path) -> None:
    code = "from outrider import native; print(native.status().available, native.library().path)"
    env = {**os.environ, "PYTHONPATH": SOURCE, "OUTRIDER_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = {process.communicate()[0] for process in both}
    assert len(said) == 1
    available, path = said.pop().split()
    assert available == "True"
    assert os.listdir(tmp_path / "native") == [Path(path).name]
    good = Path(path).read_bytes()
    Path(path).write_bytes(b"")
    assert python(code, OUTRIDER_CACHE=str(tmp_path)).split() == ["True", path]
    assert Path(path).stat().st_size == len(good)


@needs_compiler
def test_a_compiler_that_does_not_know_the_processor_still_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = build._compiler()[0]
    text = f'case "$*" in *-march=native*) echo "error: bad -march" >&2; exit 1;; esac; exec {real} "$@"'
    monkeypatch.setenv("CXX", script(tmp_path / "cxx", text))
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    assert native.library() is not None, native.status().reason
