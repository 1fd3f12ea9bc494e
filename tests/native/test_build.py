"""Building and loading the kernels: lesser processors, threads, forks, no compiler, broken compilers, bad caches."""

from __future__ import annotations

import ast
import os
import platform
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from outrider import native
from outrider.native import build
from outrider.target.packed import NativeKernel

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
@pytest.mark.parametrize("arch", ["x86-64-v4", "x86-64-v3", "x86-64"])
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names of x86 processors")
def test_lesser_processors_compute_the_same_product(arch: str) -> None:
    out = python(
        """
        import torch
        from outrider import native
        from outrider.target.packed import NativeKernel
        assert native.library() is not None, native.status().reason
        generator = torch.Generator().manual_seed(0)
        weight, x = torch.randn(70, 100, generator=generator), torch.randn(9, 100, generator=generator)
        for name in ("float16", "int8", "int4"):
            kernel = NativeKernel(native.library(), weight, None, name)
            out = kernel(x)
            assert torch.equal(torch.cat([kernel(row[None]) for row in x]), out), name
            print([round(value, 3) for value in out.flatten()[::97].tolist()])
        print(native.status().reason, flush=True)
        """,
        OUTRIDER_ARCH=arch,
    )
    *figures, reason = out.strip().splitlines()
    assert f"compiled for {arch}" in reason
    library = native.library()
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(70, 100, generator=generator), torch.randn(9, 100, generator=generator)
    for name, line in zip(("float16", "int8", "int4"), figures, strict=True):
        here = NativeKernel(library, weight, None, name)(x).flatten()[::97].tolist()
        assert ast.literal_eval(line) == pytest.approx(here, abs=2e-3)


def test_an_unknown_processor_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_ARCH", "no-such-processor")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    assert "no-such-processor" in unavailable()


@needs_compiler
def test_a_forked_process_has_threads_of_its_own() -> None:
    out = python(
        """
        import os, torch
        from outrider import native
        from outrider.target.packed import NativeKernel
        native.set_threads(2)
        kernel = NativeKernel(native.library(), torch.ones(512, 512), None, "float32")
        before = kernel(torch.ones(1, 512))
        child = os.fork()
        same = torch.equal(kernel(torch.ones(1, 512)), before)
        if child == 0:
            os._exit(0 if same else 1)
        print(same, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert out.split() == ["True", "0"]


@needs_compiler
def test_two_python_threads_may_compute_at_once() -> None:
    kernel = NativeKernel(native.library(), torch.randn(640, 512), None, "int8")
    x = torch.randn(8, 512)
    native.set_threads(2)
    try:
        want = kernel(x)
        with ThreadPoolExecutor(4) as pool:
            assert all(torch.equal(got, want) for got in pool.map(lambda _: kernel(x), range(400)))
    finally:
        native.set_threads(1)


def test_the_kernels_compile_where_there_is_a_compiler() -> None:
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("no compiler")
    assert native.status().available, native.status().reason


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
