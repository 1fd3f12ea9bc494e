"""GGUF files: checked, and converted once into a safetensors folder in the cache.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. transformers maps the tensors; the folder holds
float32, because the dequantised values of 4-bit blocks (``scale * code + minimum``) are exact in nothing narrower.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.errors import ModelError
from outrider.paths import cache_dir
from outrider.target.gguf_rotary import set_rotary
from outrider.target.progress import LateBar, late_bar
from outrider.target.quiet import quiet
from outrider.target.support import refuse_unsupported

CONVERTER_VERSION = 1
MARKER = "outrider.json"  # written last: facts about the source file, and that every weight is finite
# Texts that end an answer in the common chat formats; a file names only one of its own as `eos_token_id`.
END_TEXTS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "<eos>", "</s>"}
)
CONTROL = 3  # `tokenizer.ggml.token_type` of a control token
SAME_MATRIX = 0.3  # relative distance below which two quantised matrices come from one


def file_digest(path: Path) -> str:
    """SHA-256 of the file, remembered by path, size and modification time."""
    stat = path.stat()
    key = hashlib.sha256(f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}".encode()).hexdigest()
    note = cache_dir("digests") / key
    if note.exists():
        return note.read_text()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    note.write_text(digest)
    return digest


def converted_folder(path: Path) -> Path:
    """The safetensors folder of a GGUF file, converted on first use.

    Raises ModelError when the file is broken, of an unsupported architecture, lacks tensors, or holds NaN.
    """
    folder = cache_dir("converted") / f"{file_digest(path)[:32]}-v{CONVERTER_VERSION}"
    if (folder / MARKER).exists():
        return folder
    header = read_header(path)
    scratch = Path(tempfile.mkdtemp(prefix="partial-", dir=folder.parent))
    try:
        with quiet(), late_bar(f"converting {path.name} (once)") as bar:
            _convert(path, header, scratch, bar)
        scratch.chmod(0o755)
        scratch.rename(folder)
    except OSError:
        if not (folder / MARKER).exists():  # else another process was faster
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says beside its weights. ``rotary``: the values of its ``rope_*`` tensors."""

    metadata: dict[str, Any]
    rotary: dict[str, list[float]]


def read_header(path: Path) -> Header:
    """The header of a GGUF file. Raises ModelError when the file is broken or truncated."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        rotary = {tensor.name: tensor.data.tolist() for tensor in reader.tensors if tensor.name.startswith("rope_")}
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, OSError) as error:
        raise ModelError(f"model={str(path)!r} is broken or truncated ({_reason(error)}): fetch it again") from None
    return Header(metadata, rotary)


def end_ids(metadata: dict[str, Any]) -> list[int]:
    """Ids that end an answer: those the file names, and its control tokens that common chat formats end with."""
    found = {
        int(metadata[key]) for key in (f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot")) if key in metadata
    }
    tokens, kinds = metadata.get("tokenizer.ggml.tokens", []), metadata.get("tokenizer.ggml.token_type", [])
    found |= {
        i for i, (text, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind == CONTROL and text in END_TEXTS
    }
    return sorted(found)


def _convert(path: Path, header: Header, folder: Path, bar: LateBar) -> None:
    from safetensors.torch import save_file

    model = _read_model(path, header, bar)
    state = model.state_dict()
    if _tie(model, state):
        model.config.tie_word_embeddings = True
    bad = [name for name, weight in state.items() if not bool(torch.isfinite(weight).all())]
    if bad:
        raise ModelError(f"model={str(path)!r} holds NaN or infinity in {bad[0]}: fetch it again or use another file")
    weights = {name: weight.contiguous() for name, weight in state.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _save_config(model, header.metadata, folder)
    _save_tokenizer(path, header.metadata, folder)
    facts = {"source": path.name, "converter": CONVERTER_VERSION, "finite": True, "digest": file_digest(path)}
    (folder / MARKER).write_text(json.dumps(facts, indent=1))


def _read_model(path: Path, header: Header, bar: LateBar) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    architecture = header.metadata.get("general.architecture", "unknown")
    try:
        config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        refuse_unsupported(str(path), config)
        set_rotary(path, header.metadata, header.rotary, config)
        with _tensors_counted_by(bar):
            model, info = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, config=config, dtype=torch.float32, output_loading_info=True
            )
    except ModelError:
        raise
    except (ValueError, NotImplementedError, KeyError, IndexError, OSError, RuntimeError) as error:
        raise ModelError(
            f"model={str(path)!r} (architecture {architecture}) cannot be read ({_reason(error)}): "
            "use the model's safetensors folder"
        ) from None
    lacking = sorted(map(str, info["missing_keys"])) or sorted(str(key[0]) for key in info["mismatched_keys"])
    if lacking:
        raise ModelError(
            f"model={str(path)!r} lacks the tensor {lacking[0]}, or has it in another shape: fetch it again"
        )
    return model


def _reason(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


@contextmanager
def _tensors_counted_by(bar: LateBar) -> Iterator[None]:
    """Report transformers' tensor loop to ``bar`` in place of its own one."""
    from transformers import modeling_gguf_pytorch_utils as loader

    def counted(items: Any, **_: Any) -> Iterator[Any]:
        for done, item in enumerate(items):
            bar.update(done, len(items))
            yield item

    own, loader.tqdm = loader.tqdm, counted
    try:
        yield
    finally:
        loader.tqdm = own


def _tie(model: Any, state: dict[str, Tensor]) -> bool:
    """Drop the second of two copies of one matrix: the head is kept, it is quantised more finely. True when tied."""
    names = [n for n, module in model.named_modules() if module is model.get_input_embeddings()]
    embed, head = f"{names[0]}.weight", "lm_head.weight"
    if head not in state:
        return bool(model.config.tie_word_embeddings)
    if not model.config.tie_word_embeddings:
        if state[embed].shape != state[head].shape:
            return False
        rows = torch.linspace(0, len(state[head]) - 1, 256).long()
        first, second = state[embed][rows], state[head][rows]
        if not (first - second).norm() <= SAME_MATRIX * second.norm():  # so that NaN counts as different
            return False
        state[embed] = state[head]
    del state[head]
    return True


def _save_config(model: Any, metadata: dict[str, Any], folder: Path) -> None:
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config["architectures"] = [type(model).__name__]
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generation = {"eos_token_id": end_ids(metadata), "transformers_version": config["transformers_version"]}
    for key, field in (("bos_token_id", "bos"), ("pad_token_id", "padding")):
        if f"tokenizer.ggml.{field}_token_id" in metadata:
            generation[key] = int(metadata[f"tokenizer.ggml.{field}_token_id"])
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1))


def _save_tokenizer(path: Path, metadata: dict[str, Any], folder: Path) -> None:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if metadata.get("tokenizer.ggml.pre") == "smollm":  # transformers knows no split for it
        parts = [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(parts)
    tokenizer.save_pretrained(folder)
