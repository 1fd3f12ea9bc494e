"""TensorRT-LLM: the option that names the YAML file, and keys of its section `speculative_config` (1.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from outrider.errors import ConfigError
from outrider.export.migrate.base import Migration, Rule, is_flag, plain, split_off

FLAGS = {
    "--extra-llm-api-options": Rule("--config", "one name for all commands; the old one still works"),
}
_TYPES = {
    "Eagle": ("Eagle3", "the PyTorch backend means EAGLE-3 heads by both"),
    "DraftTarget": ("Draft_Target", "its spelling in the class"),
    "UserProvided": ("User_Provided", "its spelling in the class"),
}
_NO_TYPE = {
    "Lookahead": "lookahead went with the TensorRT backend; the nearest is NGram",
    "Medusa": "Medusa heads went with the TensorRT backend; the nearest is Eagle3 (`outrider train eagle3`)",
}
_RENAMED = {
    "speculative_model_dir": "speculative_model",
    "pytorch_weights_path": "speculative_model",
    "pytorch_eagle_weights_path": "speculative_model",
    "prompt_lookup_num_tokens": "max_draft_len",
}
_GONE = {
    "use_sa_spec": "the suffix automaton is a section of its own, sa_config, after 1.2",
    "sa_spec_threshold": "the suffix automaton is a section of its own, sa_config, after 1.2",
    "max_batch_size": "a tree has no batch size of its own; set max_batch_size beside speculative_config",
}


def migrate(words: list[str], out: Migration) -> list[str]:
    """The words of the current command line; the file that it names is read and migrated where it is here."""
    kept: list[str] = []
    for part in split_off(words, FLAGS | {"--config": Rule("--config")}):
        if isinstance(part, str):
            kept.append(part)
            if is_flag(part):
                out.unchanged.append(plain(part))
            continue
        assert part.value is not None
        kept += ["--config", part.value]
        if part.name != "--config":
            out.tell("renamed", part.text, f"--config {part.value}", FLAGS[part.name].why)
        _file(Path(part.value), out)
    return kept


def _file(path: Path, out: Migration) -> None:
    if not path.is_file():
        out.tell("unknown", str(path), str(path), "the file is not here: its speculative_config was not looked at")
        return
    try:
        whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML ({error})") from None
    if not isinstance(whole, dict) or not isinstance(whole.get("speculative_config"), dict):
        return
    config = clean(whole["speculative_config"], out)
    if config:
        whole["speculative_config"] = config
    else:
        del whole["speculative_config"]
    out.files[path.name] = yaml.safe_dump(whole, sort_keys=False)


def clean(config: dict[str, Any], out: Migration) -> dict[str, Any]:
    """A section as 1.2 takes it; empty where its type is gone."""
    config = dict(config)
    kind = config.get("decoding_type")
    if kind in _NO_TYPE:
        out.tell("gone", f"decoding_type: {kind}", "", f"{_NO_TYPE[kind]}. The file below has no speculation")
        return {}
    if kind in _TYPES:
        new, why = _TYPES[kind]
        config["decoding_type"] = new
        out.tell("renamed", f"decoding_type: {kind}", f"decoding_type: {new}", why)
    for old, new in _RENAMED.items():
        if old in config:
            config[new] = config.pop(old)
            out.tell("renamed", old, new, "its name now")
    for old, why in _GONE.items():
        if old in config:
            config.pop(old)
            out.tell("gone", old, "", why)
    if config.get("decoding_type") == "MTP" and "max_draft_len" in config and "num_nextn_predict_layers" not in config:
        config["num_nextn_predict_layers"] = config["max_draft_len"]
        out.tell("added", "", "num_nextn_predict_layers", "1.2 reads MTP's length from it")
    return config
