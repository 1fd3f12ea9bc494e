"""Holds settings and command lines against the recorded schemas of the engines; each function returns complaints."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "schemas"
_TYPES = {"int": int, "float": (int, float), "bool": bool, "str": str, "list": list, "map": dict}


@cache
def schema(engine: str) -> dict[str, Any]:
    """The recorded schema."""
    return json.loads((FOLDER / f"{engine}.json").read_text(encoding="utf-8"))


def check_fields(values: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Unknown names, wrong kinds, values that are none of the choices or out of bounds."""
    out = []
    for key, value in values.items():
        if key not in fields:
            out.append(f"{key} is no field")
            continue
        known = fields[key]
        kind = _TYPES.get(known["kind"])
        if kind is not None and (not isinstance(value, kind) or (isinstance(value, bool) and known["kind"] != "bool")):
            out.append(f"{key}={value!r} is no {known['kind']}")
        elif "choices" in known and value not in known["choices"]:
            out.append(f"{key}={value!r} is none of {known['choices']}")
        elif ("gt" in known and value <= known["gt"]) or ("ge" in known and value < known["ge"]):
            out.append(f"{key}={value!r} is out of bounds")
    return out


def vllm_config(config: Mapping[str, Any]) -> list[str]:
    """A speculative config, with the rules of the class that need no model."""
    out = check_fields(config, schema("vllm")["fields"])
    if not config.get("num_speculative_tokens"):
        out.append("num_speculative_tokens is missing")
    alone = ("ngram", "ngram_gpu", "suffix", "mtp", "dspark")
    if config.get("method") not in alone and not config.get("model"):
        out.append("model is missing")
    if config.get("prompt_lookup_min", 1) > config.get("prompt_lookup_max", 99):
        out.append("prompt_lookup_min is over prompt_lookup_max")
    heterogeneous = config.get("use_heterogeneous_vocab", False)
    greedy = config.get("draft_sample_method", "greedy") == "greedy"
    if heterogeneous and (config.get("method") != "draft_model" or not greedy):
        out.append("use_heterogeneous_vocab goes with greedy drafts of draft_model")
    end = 0
    for first, last, tokens in config.get("num_speculative_tokens_per_batch_size", ()):
        if first != end + 1 or last < first or not 0 <= tokens <= config["num_speculative_tokens"]:
            out.append(f"level {[first, last, tokens]}")
        end = last
    return out


def sglang_config(config: Mapping[str, Any], files: Mapping[str, str]) -> list[str]:
    """Fields of ServerArgs, with the rules of `speculative_hook.py`."""
    out = check_fields(config, schema("sglang")["fields"])
    algorithms = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO")
    if config.get("speculative_algorithm") not in algorithms:
        out.append(f"algorithm {config.get('speculative_algorithm')}")
    three = [f"speculative_{name}" for name in ("num_steps", "eagle_topk", "num_draft_tokens")]
    given = [key for key in three if key in config]
    if config.get("speculative_algorithm") != "NGRAM" and given and len(given) != 3:
        out.append(f"{given} without the others")
    if config.get("speculative_eagle_topk") == 1:
        if config["speculative_num_draft_tokens"] != config["speculative_num_steps"] + 1:
            out.append("num_draft_tokens is not num_steps + 1")
    elif config.get("speculative_use_rejection_sampling"):
        out.append("rejection sampling takes topk 1")
    if name := config.get("speculative_adaptive_config"):
        slots = {key: slot for key, slot in json.loads(files[name]).items() if key.isdigit()}
        steps = {step for slot in slots.values() for step in slot["candidate_steps"]}
        if not slots or config["speculative_num_steps"] not in steps or min(steps) < 0 or "1" not in slots:
            out.append(f"adaptive file {slots}")
        if config["speculative_eagle_topk"] != 1 or config["speculative_algorithm"] not in ("EAGLE", "EAGLE3", "NEXTN"):
            out.append("the adaptive mode takes chains of EAGLE, EAGLE3 and NEXTN")
    return out


def trtllm_config(config: Mapping[str, Any], version: str) -> list[str]:
    """The section `speculative_config`."""
    known = schema("trtllm")["versions"][version]
    kind = config.get("decoding_type")
    if kind not in known["types"]:
        return [f"decoding_type {kind!r} is none of {list(known['types'])}"]
    fields = {key: {"kind": value} for key, value in (known["base"] | known["types"][kind]).items()}
    out = check_fields({key: value for key, value in config.items() if key != "decoding_type"}, fields)
    needs = kind in ("Eagle3", "Eagle", "Draft_Target")
    if needs and not (config.get("speculative_model") or config.get("speculative_model_dir")):
        out.append("speculative_model is missing")
    longest = config.get("max_draft_len") or config.get("num_nextn_predict_layers")
    if not longest:
        out.append("max_draft_len is missing")
    if schedule := config.get("draft_len_schedule"):
        first = 1 if version == "1.2" else min(schedule)
        if schedule.get(first) != longest or max(schedule.values()) > longest or "max_concurrency" in config:
            out.append(f"draft_len_schedule {schedule}")
    return out


def openvino_config(config: Mapping[str, Any]) -> list[str]:
    """Arguments of GenerationConfig, with the rules of its ``validate``."""
    out = check_fields(config, schema("openvino")["fields"])
    if config.get("num_assistant_tokens") and config.get("assistant_confidence_threshold"):
        out.append("num_assistant_tokens and assistant_confidence_threshold exclude each other")
    if "tree_depth" in config and config["num_assistant_tokens"] < config["tree_depth"]:
        out.append("num_assistant_tokens is under tree_depth")
    return out


def transformers_config(config: Mapping[str, Any]) -> list[str]:
    """Names of GenerationConfig's settings."""
    return check_fields(config, schema("transformers")["fields"])


def command_line(engine: str, line: str | Sequence[str]) -> list[str]:
    """Flags that the engine does not know, and for vLLM what its speculative config does not know."""
    words = shlex.split(line) if isinstance(line, str) else list(line)
    known = set(schema(engine)["flags"])
    gone = schema(engine).get("gone", {})
    out = []
    for index, word in enumerate(words):
        name = word.partition("=")[0]
        if not name.startswith("-") or not name.lstrip("-")[:1].isalpha() or words[index - 1].startswith("python"):
            continue
        spelled = name if engine == "llamacpp" else ("--" + name[2:].replace("_", "-") if name[:2] == "--" else name)
        if spelled in gone:
            out.append(f"{name}: {gone[spelled]}")
        elif spelled not in known and not (spelled.startswith("--no-") and "--" + spelled[5:] in known):
            out.append(f"{name} is no flag of {engine}")
        elif spelled in ("--speculative-config", "-sc"):
            value = word.partition("=")[2] or words[index + 1]
            out += vllm_config(json.loads(value))
    return out
