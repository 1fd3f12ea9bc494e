"""The weights of the race: one Q8_0 file a model, and what each engine reads of it.

| engine | reads |
|---|---|
| outrider | the Q8_0 file (through the folder that Outrider converts it into, or directly) |
| outrider-source, llama-cpp-source | the file that the Q8_0 file was made from, in its own blocks |
| llama-cpp-python, openvino-gguf | the Q8_0 file |
| transformers | the folder that Outrider converted the Q8_0 file into, in bfloat16 |
| openvino-genai | an int8 folder (per channel, asymmetric) that optimum-intel exported from that folder |
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from environments import python_of
from quantise import quantise

from outrider.errors import ModelError
from outrider.target import known
from outrider.target.gguf import file_digest
from outrider.target.load import resolve


@dataclass(frozen=True, slots=True)
class Weights:
    """One model in the cache. ``source``: what ``file`` was made from; ``say`` is told what takes long."""

    source: Path
    file: Path
    cache: Path
    say: Callable[[str], None]

    @property
    def folder(self) -> Path:
        """The safetensors folder of the Q8_0 file."""
        folder = resolve(str(self.file)).folder
        assert folder is not None
        return folder

    def openvino(self) -> Path:
        """The OpenVINO int8 folder, exported on first use. Raises ModelError with the exporter's last line."""
        out = self.file.with_name(f"{self.file.stem}-openvino-int8")
        if out.exists():
            return out
        exporter = python_of("openvino-export", self.cache, self.say).with_name("optimum-cli")
        self.say(f"exporting {self.file.name} to OpenVINO int8 (once)")
        part = out.with_name(f"{out.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        options = ["--task", "text-generation-with-past", "--weight-format", "int8"]
        command = [str(exporter), "export", "openvino", "--model", str(self.folder), *options, str(part)]
        result = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
        if result.returncode:
            lines = result.stderr.strip().splitlines() or ["it said nothing"]
            raise ModelError(f"--model {self.file.name}: OpenVINO export failed ({lines[-1]})")
        return part.rename(out)


def prepare(model: str, cache: Path, say: Callable[[str], None]) -> Weights:
    """The Q8_0 file of ``model`` (a GGUF file, or a known name), made on first use.

    Raises ModelError when ``model`` is neither.
    """
    source = known.get(model, say) if model in known.KNOWN else Path(model).expanduser()
    if not source.is_file() or source.suffix != ".gguf":
        raise ModelError(f"model {model!r}: give a GGUF file, or one of {', '.join(known.KNOWN)}")
    folder = cache / "weights" / file_digest(source)[:16]
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{source.stem}-q8_0.gguf"
    if not out.exists():
        say(f"writing {out.name} (once)")
        quantise(source, out)
    return Weights(source, out, cache, say)
