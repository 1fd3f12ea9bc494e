"""Finding a model and loading it through transformers.

A model is a known name (``outrider models``), a local folder with safetensors, a local GGUF file, or a hub id.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from outrider.errors import ModelError
from outrider.target import gguf, known
from outrider.target.hub import hub_options
from outrider.target.quiet import quiet
from outrider.target.support import refuse_unsupported
from outrider.target.tokenizer import Tokenizer
from outrider.target.weights import check_finite, check_range

__all__ = ["LoadedModel", "ModelSource", "check_range", "load_model", "load_network", "load_tokenizer", "resolve"]

logger = logging.getLogger(__name__)
MODULES = "num_nextn_predict_layers"  # of a config: how many MTP modules its checkpoint carries
VARIANT = "outrider_variant"  # of a config: which weights of its shape these are, where heads are for them alone
PICKLES = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from. ``folder``: a local Hugging Face folder, None for a hub id. ``options``: for hub calls.

    ``checked``: its weights are known to be finite. ``file``: the GGUF file that the folder was made from.
    """

    name: str
    kind: Literal["known", "folder", "gguf", "hub"]
    folder: Path | None
    checked: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    file: Path | None = None

    @property
    def location(self) -> str:
        """What transformers is given."""
        return str(self.folder) if self.folder is not None else self.name


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, in eval mode without gradients, and its tokenizer.

    ``fingerprint``: equal for equal weights at one place; no dtype or device in it.
    """

    config: Any
    model: nn.Module
    tokenizer: Tokenizer
    generation_config: Any
    source: ModelSource
    fingerprint: str
    trust_remote_code: bool = False


def resolve(model: str, *, revision: str | None = None, progress: Callable[[str], None] | None = None) -> ModelSource:
    """Find ``model``; fetches a known model and converts a GGUF file on first use, a hub model is only looked up.

    Raises ModelError that names what was tried and what to do.
    """
    if not model.strip():
        raise ModelError("model is empty: name a known model, a folder, a GGUF file or a hub id")
    path = Path(model).expanduser()
    if model in known.KNOWN:
        file = known.get(model, progress or _say)
        return ModelSource(model, "known", gguf.converted_folder(file), checked=True, file=file)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"model={model!r} is a file but not a .gguf file: give a GGUF file or a model folder")
        return ModelSource(model, "gguf", gguf.converted_folder(path), checked=True, file=path)
    if path.is_dir():
        _check_folder(model, path)
        return ModelSource(model, "folder", path)
    if model.startswith(("/", ".", "~")) or path.suffix == ".gguf":
        raise ModelError(f"model={model!r} does not exist: check the path")
    return ModelSource(model, "hub", None, options=hub_options(model, revision))


def load_model(
    model: str,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    revision: str | None = None,
    trust_remote_code: bool = False,
    attn_implementation: str = "outrider",
    tensor_parallel_size: int = 1,
) -> LoadedModel:
    """Load ``model`` (see ``resolve``) and its tokenizer; of several processes, each gets its part of the weights.

    Raises ModelError when it cannot be found, is broken, not finite, beyond the range of ``dtype``, or unsupported.
    """
    source = resolve(model, revision=revision)
    net = load_network(
        source,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
        attn_implementation=attn_implementation,
        tensor_parallel_size=tensor_parallel_size,
    )
    with quiet():
        tokenizer = Tokenizer.load(
            source.location, eos_ids=_eos_ids(net), trust_remote_code=trust_remote_code, **source.options
        )
    return LoadedModel(
        config=net.config,
        model=net,
        tokenizer=tokenizer,
        generation_config=net.generation_config,
        source=source,
        fingerprint=fingerprint_of(source, net.config),
        trust_remote_code=trust_remote_code,
    )


def load_tokenizer(model: str, *, revision: str | None = None, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of ``model`` without its weights, and without the ids that end an answer by its config."""
    source = resolve(model, revision=revision)
    with quiet():
        return Tokenizer.load(source.location, trust_remote_code=trust_remote_code, **source.options)


def load_network(
    source: ModelSource,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    trust_remote_code: bool = False,
    attn_implementation: str = "outrider",
    tensor_parallel_size: int = 1,
) -> Any:
    """The transformers model of ``source`` alone; raises what ``load_model`` raises."""
    from transformers import AutoModelForCausalLM

    from outrider.target import general

    general.register()
    options = {"trust_remote_code": trust_remote_code, **source.options}
    if tensor_parallel_size > 1:
        from transformers.distributed import DistributedConfig

        options["distributed_config"] = DistributedConfig(tp_size=tensor_parallel_size)
    config = load_config(source, trust_remote_code=trust_remote_code)
    with quiet(), _as_model_error(source.name):
        read_dtype = torch.float32 if dtype == torch.float16 else dtype  # the range is checked before it is cut
        net, info = AutoModelForCausalLM.from_pretrained(
            source.location,
            config=config,
            dtype=read_dtype,
            attn_implementation=attn_implementation,
            use_safetensors=True,
            output_loading_info=True,
            **options,
        )
    _check_keys(source.name, info, config)
    if not source.checked:
        check_finite(source.name, net)
    check_range(net, dtype)
    return net.eval().requires_grad_(False).to(device=device, dtype=dtype)


def load_config(source: ModelSource, *, trust_remote_code: bool = False) -> Any:
    """The config of ``source``; raises ModelError when it cannot be read or its architecture is not supported."""
    from transformers import AutoConfig

    with quiet(), _as_model_error(source.name):
        config = AutoConfig.from_pretrained(source.location, trust_remote_code=trust_remote_code, **source.options)
        refuse_unsupported(source.name, config)
    return config


def _check_folder(model: str, path: Path) -> None:
    files = sorted(path.iterdir())
    if any(file.suffix == ".safetensors" for file in files) and (path / "config.json").exists():
        return
    ggufs = [file.name for file in files if file.suffix == ".gguf"]
    if ggufs:
        raise ModelError(f"model={model!r} is a folder with GGUF files: name one of them ({', '.join(ggufs)})")
    pickles = [file.name for file in files if file.suffix in PICKLES]
    if pickles:
        raise ModelError(
            f"model={model!r} holds pickled weights ({pickles[0]}), which can run code when read: "
            "only safetensors and GGUF are loaded; convert it with save_pretrained"
        )
    missing = "config.json" if any(file.suffix == ".safetensors" for file in files) else "safetensors file"
    raise ModelError(f"model={model!r} is a folder without a {missing}: give the folder that save_pretrained wrote")


def _check_keys(name: str, info: dict[str, Any], config: Any) -> None:
    lacking = sorted(map(str, info["missing_keys"])) or sorted(str(key[0]) for key in info["mismatched_keys"])
    if lacking:
        raise ModelError(
            f"model={name!r} lacks {len(lacking)} tensors or has them in another shape ({lacking[0]}): "
            "its files do not fit its config.json; fetch it again"
        )
    if extra := sorted(str(key) for key in info["unexpected_keys"] if not _is_module(str(key), config)):
        logger.warning("model=%r: %d tensors are not part of its architecture (%s)", name, len(extra), extra[0])


def _is_module(key: str, config: Any) -> bool:
    """Whether a tensor is of a module behind the last layer, which drafts (see ``MODULES``)."""
    parts = key.split(".")
    behind = parts[:2] == ["model", "layers"] and int(parts[2]) >= int(config.num_hidden_layers)
    return behind and bool(getattr(config, MODULES, 0))


def checkpoint_folder(source: ModelSource) -> Path | None:
    """Where a model's own files lie; None where it was made from a GGUF file, or is not on this disk."""
    if source.folder is not None:
        return None if source.kind in ("gguf", "known") else source.folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source.name, revision=source.options.get("revision"), local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _eos_ids(net: Any) -> set[int]:
    out: set[int] = set()
    for config in (net.config, net.generation_config):
        value = getattr(config, "eos_token_id", None)
        out.update(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return out


def shape_name(config: Any) -> str:
    """A model by its shape, whatever its weights' format, and by the ``VARIANT`` where its config names one."""
    shape = f"{config.model_type}-{config.num_hidden_layers}x{config.hidden_size}-v{config.vocab_size}"
    variant = getattr(config, VARIANT, None)
    return shape if variant is None else f"{shape}-{variant}"


def fingerprint_of(source: ModelSource, config: Any) -> str:
    """See ``LoadedModel``."""
    if source.folder is None:
        facts = f"{source.name}@{getattr(config, '_commit_hash', None)}"
    elif (marker := source.folder / gguf.MARKER).exists():
        facts = str(json.loads(marker.read_text())["digest"])
    else:
        files = [*sorted(source.folder.glob("*.safetensors")), source.folder / "config.json"]
        facts = "|".join(f"{file.resolve()}:{file.stat().st_size}:{file.stat().st_mtime_ns}" for file in files)
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


@contextmanager
def _as_model_error(name: str) -> Iterator[None]:
    """Turn what transformers and safetensors raise into a one-line ModelError."""
    from safetensors import SafetensorError

    try:
        yield
    except ModelError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"model={name!r} cannot be loaded ({reason}): check its config.json and its files") from None


def _say(text: str) -> None:
    print(text, file=sys.stderr)
