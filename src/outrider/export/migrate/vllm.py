"""vLLM: the flags that one JSON object replaced, and keys of that object that are gone (0.33.0)."""

from __future__ import annotations

import json
from typing import Any

from outrider.errors import ConfigError
from outrider.export.base import compact
from outrider.export.migrate.base import Migration, Rule, Taken, is_flag, number, plain, split_off

CONFIG = "--speculative-config"
_DEFAULT = "it is how vLLM works now"
_ONE = "one JSON object holds all of speculation since 0.9"
FLAGS = {
    "--speculative-model": Rule("model", _ONE),
    "--num-speculative-tokens": Rule("num_speculative_tokens", _ONE),
    "--speculative-draft-tensor-parallel-size": Rule("draft_tensor_parallel_size", _ONE),
    "-spec-draft-tp": Rule("draft_tensor_parallel_size", _ONE),
    "--speculative-max-model-len": Rule("max_model_len", _ONE),
    "--speculative-model-quantization": Rule("quantization", _ONE),
    "--ngram-prompt-lookup-max": Rule("prompt_lookup_max", _ONE),
    "--ngram-prompt-lookup-min": Rule("prompt_lookup_min", _ONE),
    "--speculative-disable-by-batch-size": Rule("disable_by_batch_size", _ONE),
    "--speculative-disable-mqa-scorer": Rule("", _DEFAULT, "maybe"),
    "--spec-decoding-acceptance-method": Rule("acceptance_method", _ONE),
    "--typical-acceptance-sampler-posterior-threshold": Rule("", "typical acceptance, which is lossy, was removed"),
    "--typical-acceptance-sampler-posterior-alpha": Rule("", "typical acceptance, which is lossy, was removed"),
    "--disable-logprobs-during-spec-decoding": Rule("", "logprobs are given with speculation too", "maybe"),
    "--use-v2-block-manager": Rule("", _DEFAULT, "no"),
    "--num-lookahead-slots": Rule("", "vLLM reserves the slots itself"),
    "--num-scheduler-steps": Rule("", "multi-step scheduling was removed"),
    "--disable-log-requests": Rule("", "requests are logged with --enable-log-requests only", "no"),
    "--swap-space": Rule("", "preempted requests are computed again"),
    "--device": Rule("", "the platform is found by itself"),
}
_OF_CONFIG = {name for name, rule in FLAGS.items() if rule.new}
_RENAMED = {
    "tensor_parallel_size": "draft_tensor_parallel_size",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
}
_GONE = {
    "disable_mqa_scorer": _DEFAULT,
    "disable_logprobs": "logprobs are given with speculation too",
    "posterior_threshold": "typical acceptance, which is lossy, was removed",
    "posterior_alpha": "typical acceptance, which is lossy, was removed",
    "speculative_token_tree": "drafts are chains; for trees use SGLang",
    "draft_pipeline_parallel_size": "vLLM knows no such key",
}
_NO_METHOD = {
    "medusa": "Medusa was removed with 0.33; the nearest is an EAGLE-3 head (`outrider train eagle3`)",
    "mlp_speculator": "MLP speculators were removed; the nearest is an EAGLE-3 head (`outrider train eagle3`)",
}
_STANDARD = ("strict", "rejection_sampler", "typical_acceptance_sampler", "probabilistic")


def migrate(words: list[str], out: Migration) -> list[str]:
    """The words of the current command line."""
    config: dict[str, Any] = {}
    kept: list[str] = []
    old: list[str] = []
    at: int | None = None
    raw = ""
    for part in split_off(words, FLAGS | {CONFIG: Rule(CONFIG), "-sc": Rule(CONFIG)}):
        if not isinstance(part, Taken):
            kept.append(part)
            if is_flag(part) and part != "-m":  # of python -m
                out.unchanged.append(plain(part))
        elif part.name in (CONFIG, "-sc"):
            config |= _read(part)
            at, raw = len(kept), part.value or ""
        elif part.name in _OF_CONFIG:
            old.append(part.text)
            config[FLAGS[part.name].new] = number(part.value)
            out.tell("moved", part.text, f"{CONFIG} key {FLAGS[part.name].new}", _ONE)
        else:
            out.tell("gone", part.text, "", FLAGS[part.name].why)
    if not config:
        return kept
    before = dict(config)
    current = clean(config, out)
    at = len(kept) if at is None else at
    if raw:
        out.unchanged.append(CONFIG)
    if current == before and raw and not old:
        return [*kept[:at], CONFIG, raw, *kept[at:]]
    return [*kept[:at], *([CONFIG, compact(current)] if current else []), *kept[at:]]


def _read(part: Taken) -> dict[str, Any]:
    try:
        value = json.loads(part.value or "")
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{CONFIG} is not JSON ({error.msg} at character {error.pos}): quote it with '...' within the line"
        ) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{CONFIG} takes a JSON object")
    return value


def clean(config: dict[str, Any], out: Migration) -> dict[str, Any]:
    """A speculative config as 0.33.0 takes it; empty where its method is gone."""
    for old in [key for key in config if "-" in key]:
        new = old.replace("-", "_")
        out.tell("renamed", f'"{old}"', f'"{new}"', "keys have underscores; vLLM reads both")
    config = {key.replace("-", "_"): value for key, value in config.items()}
    for old, new in _RENAMED.items():
        if old in config:
            config[new] = config.pop(old)
            out.tell("renamed", f'"{old}"', f'"{new}"', "it is about the draft alone, or its name was too long")
    for old, why in _GONE.items():
        if old in config:
            config.pop(old)
            out.tell("gone", f'"{old}"', "", why)
    _method(config, out)
    if config.get("method") in _NO_METHOD:
        out.tell(
            "gone",
            f'"method": "{config["method"]}"',
            "",
            f"{_NO_METHOD[config['method']]}. The line below serves without speculation",
        )
        return {}
    _rule(config, out)
    _limit(config, out)
    return config


def _method(config: dict[str, Any], out: Migration) -> None:
    """The method's name now: what was inferred from the model's name or the target is said."""
    given, model = config.get("method"), str(config.get("model", "")).lower()
    if given is not None and given.endswith("_mtp"):
        config["method"] = "mtp"
        out.tell("renamed", f'"method": "{given}"', '"method": "mtp"', "one name stands for all models' own modules")
    elif model in ("[ngram]", "ngram") and given in (None, "ngram"):
        config.pop("model")
        config["method"] = "ngram"
        out.tell("changed", f'"model": "{model}"', '"method": "ngram"', "n-gram lookup is a method, not a model")
    elif given is None and not model:
        config["method"] = "mtp"
        out.tell("added", "", '"method": "mtp"', "with no draft named, it was the target's own module that drafted")
    elif given is None and model:
        names = (("eagle3", "eagle3"), ("eagle", "eagle"), ("medusa", "medusa"), ("accelerator", "mlp_speculator"))
        config["method"] = next((method for part, method in names if part in model), "draft_model")
        out.tell("added", "", f'"method": "{config["method"]}"', "said instead of guessed from the model's name")
    if config.get("method") == "ngram" and "prompt_lookup_max" in config and "prompt_lookup_min" not in config:
        config["prompt_lookup_min"] = 1
        out.tell("added", "", '"prompt_lookup_min": 1', "its default was 1; now it would be prompt_lookup_max")


def _rule(config: dict[str, Any], out: Migration) -> None:
    for key in ("acceptance_method", "rejection_sample_method"):
        value = config.get(key)
        if value not in _STANDARD:
            continue
        config.pop(key)
        if value == "probabilistic":
            config["draft_sample_method"] = "probabilistic"
            out.tell("changed", f'"{key}": "{value}"', '"draft_sample_method": "probabilistic"', "how drafts are drawn")
        elif value == "typical_acceptance_sampler":
            out.tell("gone", f'"{key}": "{value}"', "", "it was lossy and was removed; the standard rule is lossless")
        else:
            out.tell("gone", f'"{key}": "{value}"', "", "it is the default rule, called standard now")


def _limit(config: dict[str, Any], out: Migration) -> None:
    limit = config.pop("disable_by_batch_size", None)
    if limit is None:
        return
    tokens = config.get("num_speculative_tokens")
    if tokens is None:
        raise ConfigError("disable_by_batch_size without num_speculative_tokens: give the whole line")
    last = max(1, int(limit))
    config["num_speculative_tokens_per_batch_size"] = [[1, last, tokens], [last + 1, last + 1, 0]]
    out.tell(
        "changed",
        f'"disable_by_batch_size": {limit}',
        '"num_speculative_tokens_per_batch_size"',
        "a schedule of draft tokens by batch size; the last level goes on for larger batches",
    )
