"""Run every export through the engines' own classes, where they import without a GPU.

    python tools/engine_check.py cases > cases.json            # here: every method, rule, tree and schedule
    OTHER/bin/python tools/engine_check.py check cases.json    # in an environment with vllm, openvino-genai, ...

The second needs nothing of Outrider. vLLM 0.33.0's class runs with `pip install --no-deps vllm==0.33.0`, torch for the
CPU and the packages that its imports ask for; of SGLang (`--no-deps` too) the parser of its flags of speculation does;
openvino-genai and transformers run as they are. What does not import is left out, and it is said.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

Case = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Write cases, or check them; 1 where a class refuses one."""
    if arguments == ["cases"]:
        print(json.dumps(list(cases())))
        return 0
    if len(arguments) != 2 or arguments[0] != "check":
        print(__doc__, file=sys.stderr)
        return 2
    found: list[Case] = json.loads(Path(arguments[1]).read_text(encoding="utf-8"))
    checks: dict[str, Callable[[], Callable[[Case], None]]] = {
        "vllm": vllm,
        "sglang": sglang,
        "transformers": transformers,
        "openvino": openvino,
    }
    refused: list[Case] = []
    for engine, make in checks.items():
        try:
            check = make()
        except Exception as error:  # whatever an import of another project raises
            print(f"{engine}: left out, it does not import ({type(error).__name__}: {error})")
            continue
        mine = [case for case in found if case["engine"] == engine]
        for case in mine:
            try:
                check(case)
            except Exception as error:
                refused.append(case)
                print(f"{engine}: REFUSED {case['name']}: {case['config']}: {type(error).__name__}: {error}")
        print(f"{engine}: {len(mine)} configurations, {sum(case['engine'] == engine for case in refused)} refused")
    return 1 if refused else 0


def cases() -> Iterator[Case]:
    """Every export that is not refused."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from export.deployments import SCHEDULE, deployment  # type: ignore[import-not-found]
    from outrider.drafters.registry import REGISTRY
    from outrider.errors import ConfigError
    from outrider.export.registry import ENGINES

    tree = {"tree_kind": "dynamic", "tree_topk": 4, "tree_depth": 3, "tree_nodes": 16}
    variants: list[tuple[str, dict[str, Any], dict[str, Any]]] = [("plain", {}, {}), ("tree", tree, {})]
    variants += [(f"K={k}", {"num_speculative_tokens": k}, {}) for k in (1, 5, 12)]
    variants += [(f"rule {rule}", {"verifier": rule}, {}) for rule in ("rejection", "block", "threshold")]
    variants += [("vocabulary", {"vocabulary": "tli"}, {}), ("threshold", {"draft_confidence_threshold": 0.4}, {})]
    variants += [("schedule", {}, {"load_schedule": SCHEDULE})]
    variants += [("hot", {}, {"temperature": 0.7, "max_model_len": 4096})]
    variants += [("exit", {"exit_layer": 4}, {}), ("two GPUs", {}, {"tensor_parallel_size": 2})]
    for method in REGISTRY:
        for name, speculative, served in variants:
            for engine in ENGINES.values():
                try:
                    out = engine.export(deployment(method, speculative, **served))
                except ConfigError:
                    continue
                assistant = json.loads(out.files.get("assistant_generation_config.json", "{}"))
                yield {
                    "engine": engine.name,
                    "name": f"{method}, {name}",
                    "config": out.config,
                    "assistant": assistant,
                    "command": out.command,
                    "files": out.files,
                    "tensor_parallel_size": served.get("tensor_parallel_size", 1),
                }


def vllm() -> Callable[[Case], None]:
    """The class with configs of small models on disk, as `vllm serve` makes it; no weights are read."""
    from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig  # type: ignore[import-not-found]
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup  # type: ignore[import-not-found]

    module = sys.modules[SpeculativeConfig.__module__]
    module.has_arctic_inference = lambda: True  # type: ignore[attr-defined]
    folder = Path(tempfile.mkdtemp())
    places = {name: _model(folder / name, **facts) for name, facts in _MODELS.items()}

    def target(name: str) -> Any:
        place = places[name]
        return ModelConfig(model=place, tokenizer=place, skip_tokenizer_init=True, dtype="float16", max_model_len=1024)

    targets = {"mtp": target("with_module"), "": target("target")}

    def check(case: Case) -> None:
        config = dict(case["config"])
        if "model" in config:
            config["model"] = places[config["method"]]
        made = SpeculativeConfig(
            **config,
            target_model_config=targets.get(config["method"], targets[""]),
            target_parallel_config=ParallelConfig(),
        )
        if made.method != config["method"] or made.num_speculative_tokens != config["num_speculative_tokens"]:
            raise ValueError(f"read as {made.method}, {made.num_speculative_tokens} tokens")
        schedule = made.num_speculative_tokens_per_batch_size
        if schedule is not None:
            build_dynamic_sd_schedule_lookup([list(level) for level in schedule], 512, made.num_speculative_tokens)

    return check


_MODELS: dict[str, dict[str, Any]] = {
    "target": {},
    "draft_model": {"num_hidden_layers": 1},
    "eagle3": {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 500},
    "eagle": {"architectures": ["EagleLlamaForCausalLM"], "num_hidden_layers": 1},
    "with_module": {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "num_nextn_predict_layers": 1},
}


def _model(folder: Path, **facts: Any) -> str:
    """A folder with a small model's config.json."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4}
    common = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "vocab_size": 1000}
    folder.mkdir()
    whole = common | sizes | {"max_position_embeddings": 2048, "torch_dtype": "float16"} | facts
    (folder / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    return str(folder)


def sglang() -> Callable[[Case], None]:
    """The flags of speculation, by the parser that SGLang builds from their fields (the other fields need triton)."""
    place = importlib.util.find_spec("sglang")
    if place is None or not place.submodule_search_locations:
        raise ModuleNotFoundError("no package sglang")
    root = Path(place.submodule_search_locations[0])
    for name, folder in (("sglang", root), ("sglang.srt", root / "srt")):  # their own imports want a GPU's packages
        package = ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    fields = importlib.import_module("sglang.srt.arg_groups.fields.spec")
    parser = Parser()
    importlib.import_module("sglang.srt.arg_groups.arg_utils").add_cli_args_from_dataclass(parser, fields.Spec)

    def check(case: Case) -> None:
        taken, rest = parser.parse_known_args(case["command"][3:])
        for key, value in case["config"].items():
            if key.startswith("speculative") and getattr(taken, key) != value:
                raise ValueError(f"{key} is read as {getattr(taken, key)!r}")
        unknown = [word for word in rest if word.startswith("--spec")]
        if unknown:
            raise ValueError(f"not taken: {unknown}")

    return check


class Parser(argparse.ArgumentParser):
    """A parser that raises."""

    def error(self, message: str) -> Any:
        """Raise ValueError."""
        raise ValueError(message)


def transformers() -> Callable[[Case], None]:
    """GenerationConfig's ``validate``, strictly, of the call's settings and of the assistant's."""
    from transformers import GenerationConfig

    def check(case: Case) -> None:
        for values in (case["config"], case["assistant"]):
            made = GenerationConfig(**values)
            made.validate(strict=True)
            unknown = [key for key, value in values.items() if getattr(made, key, None) != value]
            if unknown:
                raise ValueError(f"not taken: {unknown}")

    return check


def openvino() -> Callable[[Case], None]:
    """GenerationConfig's ``validate``; the class takes unknown names, so that they are looked for."""
    import openvino_genai  # type: ignore[import-not-found]

    def check(case: Case) -> None:
        made = openvino_genai.GenerationConfig(**case["config"])
        made.validate()
        unknown = [key for key in case["config"] if not hasattr(made, key)]
        if unknown:
            raise ValueError(f"not taken: {unknown}")

    return check


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
