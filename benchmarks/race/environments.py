"""One virtual environment an engine, with pinned versions, made on first use and recorded.

A folder ``environments/NAME`` of the cache holds it; its ``installed.json``, written last, says what was asked for and
all that came. Another Python version or another pin makes it install again.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from outrider.errors import OutriderError

RECORD = "installed.json"


@dataclass(frozen=True, slots=True)
class Environment:
    """What pip installs. ``unused``: dependencies taken out again; ``variables``: of the process that installs."""

    name: str
    requirements: tuple[str, ...]
    unused: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


_TORCH = "torch==2.13.0"
_OPENVINO = ("openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0")
ENVIRONMENTS = {
    item.name: item
    for item in (
        Environment("transformers", ("transformers==5.24.0", _TORCH)),
        Environment(
            "llama-cpp-python",
            ("llama-cpp-python==0.3.36",),
            variables={"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF"},
            note="compiles for this machine's CPU, 10 to 20 minutes",
        ),
        Environment("openvino-genai", ("openvino-genai==2026.4.1.0", *_OPENVINO)),
        Environment(
            "openvino-export",
            ("optimum-intel==2.2.0", "nncf==3.4.0", *_OPENVINO, _TORCH),
            unused=("torchvision",),  # its build may not fit the build of torch, and text models need none
            note="converts a model to OpenVINO int8; not needed afterwards",
        ),
    )
}


def python_of(name: str, cache: Path, say: Callable[[str], None]) -> Path:
    """The interpreter of an environment, which is made when it is missing or was made for other pins.

    Raises OutriderError with pip's last line when it cannot be made.
    """
    environment = ENVIRONMENTS[name]
    folder = cache / "environments" / name
    python = folder / "bin" / "python"
    wanted = {**asdict(environment), "python": platform.python_version()}
    wanted = json.loads(json.dumps(wanted))
    if python.exists() and {key: _record(folder).get(key) for key in wanted} == wanted:
        return python
    say(f"making the environment {name}" + (f" ({environment.note})" if environment.note else ""))
    _run([sys.executable, "-m", "venv", str(folder)], {})
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "-q", *environment.requirements], environment.variables)
    if environment.unused:
        _run([*pip, "uninstall", "-q", "-y", *environment.unused], {})
    freeze = _run([*pip, "freeze"], {}).split()
    (folder / RECORD).write_text(json.dumps({**wanted, "installed": freeze}, indent=1) + "\n")
    return python


def installed(name: str, cache: Path) -> list[str]:
    """All packages of an environment as ``name==version``, for the manifest."""
    return list(_record(cache / "environments" / name).get("installed", []))


def _record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _run(command: list[str], variables: Mapping[str, str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["it said nothing"]
        raise OutriderError(f"{' '.join(command)} failed ({lines[-1]}): check the network and pip's index, then retry")
    return result.stdout
