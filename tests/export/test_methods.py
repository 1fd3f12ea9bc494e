"""Every method for every engine: a configuration that the engine's own schema takes, or a refusal that helps."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from export import schema
from export.deployments import DRAFT, HEAD, SCHEDULE, TARGET, deployment
from outrider.drafters.registry import REGISTRY
from outrider.errors import ConfigError
from outrider.export import nearest
from outrider.export.base import Exported
from outrider.export.registry import ENGINES

ABLE = {
    ("vllm", "0.33.0"): {"ngram", "suffix", "draft_model", "eagle3", "eagle", "mtp"},
    ("sglang", "0.5.23"): {"ngram", "draft_model", "eagle3", "eagle", "eagle2", "mtp"},
    ("trtllm", "1.2"): {"ngram", "draft_model", "eagle3", "mtp"},
    ("trtllm", "main"): {"ngram", "suffix", "draft_model", "eagle3", "mtp"},
    ("llamacpp", "llama-cpp-python-0.3.36"): {"ngram", "draft_model", "eagle3", "mtp"},
    ("transformers", "5.24.0"): {"ngram", "draft_model", "mtp", "layer_skip"},
    ("openvino", "2026.4.1"): {"ngram", "draft_model", "eagle3"},
}


def complaints(out: Exported) -> list[str]:
    """What the engine's schema says of an export."""
    if out.engine == "vllm":
        whole = yaml.safe_load(out.files["vllm.yaml"])
        assert whole["speculative-config"] == json.loads(json.dumps(out.config))
        assert whole["model"] == TARGET
        return schema.vllm_config(out.config) + schema.command_line("vllm", out.command)
    if out.engine == "sglang":
        whole = yaml.safe_load(out.files["sglang.yaml"])
        assert {key.replace("-", "_") for key in whole} >= set(out.config)
        return schema.sglang_config(out.config, out.files) + schema.command_line("sglang", out.command)
    if out.engine == "trtllm":
        whole = yaml.safe_load(out.files["trtllm.yaml"])
        assert whole["speculative_config"] == out.config
        assert out.command[-1] == "trtllm.yaml"
        return schema.trtllm_config(out.config, out.version)
    if out.engine == "llamacpp":
        kinds = schema.schema("llamacpp")["fields"]["--spec-type"]["choices"]
        return schema.command_line("llamacpp", out.command) + [kind for kind in [out.method] if kind not in kinds]
    if out.engine == "transformers":
        assistant = json.loads(out.files.get("assistant_generation_config.json", "{}"))
        compile(out.files["generate.py"], "generate.py", "exec")
        return schema.transformers_config(out.config) + schema.transformers_config(assistant)
    compile(out.files["generate.py"], "generate.py", "exec")
    return schema.openvino_config(out.config)


def settings_for(engine: str, method: str) -> dict[str, Any]:
    return {"exit_layer": 4} if method == "layer_skip" else {}


@pytest.mark.parametrize("method", REGISTRY)
@pytest.mark.parametrize(("engine", "version"), ABLE)
def test_every_method_is_valid_or_refused_with_the_nearest(engine: str, version: str, method: str) -> None:
    subject = deployment(method, settings_for(engine, method))
    if method in ABLE[engine, version]:
        out = ENGINES[engine].export(subject, version)
        assert complaints(out) == []
        assert (out.engine, out.version) == (engine, version)
        return
    with pytest.raises(
        ConfigError, match=re.escape(f"method {method!r} cannot be exported to {engine} {version}")
    ) as error:
        ENGINES[engine].export(subject, version)
    if nearest.METHODS[method]:
        found = re.search(r"the nearest is (?:one of its members alone, such as )?'(\w+)'", str(error.value))
        assert found is not None
        assert found[1] in ABLE[engine, version]
    else:
        assert "there is none" in str(error.value)


def test_the_table_of_nearest_methods_is_whole() -> None:
    assert set(nearest.METHODS) == set(REGISTRY)
    for engine, version in ABLE:
        assert set(ENGINES[engine].able(version)) == ABLE[engine, version]
        for method, others in nearest.METHODS.items():
            needs = others and method not in ABLE[engine, version]
            assert not needs or set(others) & ABLE[engine, version], (engine, method)


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model", "eagle3", "eagle", "mtp"])
@pytest.mark.parametrize(("engine", "version"), ABLE)
def test_load_schedules_are_exported_or_refused(engine: str, version: str, method: str) -> None:
    if method not in ABLE[engine, version]:
        pytest.skip("refused already")
    subject = deployment(method, load_schedule=SCHEDULE)
    if method not in ENGINES[engine].scheduled(version):
        with pytest.raises(ConfigError, match=r"load schedule: .* give the K of your usual load"):
            ENGINES[engine].export(subject, version)
        return
    out = ENGINES[engine].export(subject, version)
    assert complaints(out) == []
    if engine == "vllm":
        assert out.config["num_speculative_tokens_per_batch_size"] == [[1, 8, 5], [9, 32, 2], [33, 256, 0]]
        assert out.config["num_speculative_tokens"] == 5
    elif engine == "sglang":
        slots = json.loads(out.files["sglang_adaptive.json"])
        assert {key: slot["candidate_steps"] for key, slot in slots.items()} == {"1": [5], "9": [2], "33": [0]}
        assert out.config["max_running_requests"] == 256
    else:
        first = {1: 5, 9: 2, 33: 0}
        assert out.config["draft_len_schedule"] == (first if version == "1.2" else {8: 5, 32: 2, 256: 0})


@pytest.mark.parametrize("verifier", ["sample", "rejection", "block", "traversal", "typical", "threshold"])
@pytest.mark.parametrize("method", ["draft_model", "eagle3"])
@pytest.mark.parametrize(("engine", "version"), ABLE)
def test_rules_are_exported_or_refused(engine: str, version: str, method: str, verifier: str) -> None:
    if method not in ABLE[engine, version]:
        pytest.skip("refused already")
    able = ENGINES[engine].rules.get(method, ENGINES[engine].rules[""])
    subject = deployment(method, {"verifier": verifier})
    if verifier not in able or (verifier, version) == ("rejection", "1.2"):
        with pytest.raises(ConfigError, match=rf"verifier '{verifier}'.* verifier '(sample|rejection)'"):
            ENGINES[engine].export(subject, version)
        return
    out = ENGINES[engine].export(subject, version)
    assert complaints(out) == []
    if verifier == "threshold":
        assert any("lossy" in note for note in out.notes)
    if engine == "vllm":
        assert out.config.get("draft_sample_method", "greedy") == (
            "greedy" if verifier == "sample" else "probabilistic"
        )


@pytest.mark.parametrize(("engine", "version"), ABLE)
def test_dynamic_trees_are_exported_or_refused(engine: str, version: str) -> None:
    tree = {"tree_kind": "dynamic", "tree_topk": 4, "tree_depth": 3, "tree_nodes": 16}
    if "eagle3" not in ABLE[engine, version]:
        pytest.skip("refused already")
    if engine in ("vllm", "llamacpp"):
        with pytest.raises(ConfigError, match=r"verifies chains .* give -k; sglang, trtllm and openvino draw trees"):
            ENGINES[engine].export(deployment("eagle3", tree), version)
        return
    out = ENGINES[engine].export(deployment("eagle3", tree), version)
    assert complaints(out) == []
    numbers = {
        "sglang": ("speculative_eagle_topk", "speculative_num_steps", "speculative_num_draft_tokens"),
        "trtllm": ("dynamic_tree_max_topK", "max_draft_len", "max_total_draft_tokens"),
        "openvino": ("branching_factor", "tree_depth", "num_assistant_tokens"),
    }[engine]
    assert [out.config[key] for key in numbers] == [4, 3, 17 if engine == "sglang" else 16]


def test_eagle2_is_sglangs_tree_with_our_defaults() -> None:
    out = ENGINES["sglang"].export(deployment("eagle2"))
    assert out.method == "EAGLE"
    assert out.config["speculative_eagle_topk"] == 4
    assert out.config["speculative_draft_model_path"] == HEAD


def test_settings_without_a_counterpart_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"setting draft_confidence_threshold=0.4 .* no counterpart in vllm"):
        ENGINES["vllm"].export(deployment("draft_model", {"draft_confidence_threshold": 0.4}))
    out = ENGINES["llamacpp"].export(deployment("draft_model", {"draft_confidence_threshold": 0.4}))
    assert out.config["spec-draft-p-min"] == 0.4
    assert out.config["spec-draft-hf"] == DRAFT


@pytest.mark.parametrize(
    ("engine", "words"), [("vllm", "'tli'"), ("sglang", "corrupts"), ("trtllm", "'tli'"), ("llamacpp", "'tli'")]
)
def test_other_vocabularies(engine: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ENGINES[engine].export(deployment("draft_model", {"vocabulary": "slem"}))


def test_tli_is_vllms_heterogeneous_vocabulary_with_greedy_drafts_only() -> None:
    out = ENGINES["vllm"].export(deployment("draft_model", {"vocabulary": "tli"}))
    assert out.config["use_heterogeneous_vocab"] is True
    assert complaints(out) == []
    out = ENGINES["transformers"].export(deployment("draft_model", {"vocabulary": "slem"}))
    assert "assistant_tokenizer=assistant_tokenizer" in out.files["generate.py"]


def test_transformers_reads_the_assistants_own_settings() -> None:
    out = ENGINES["transformers"].export(deployment("draft_model", {"num_speculative_tokens": 7}))
    assert "num_assistant_tokens" not in out.config
    assert json.loads(out.files["assistant_generation_config.json"])["num_assistant_tokens"] == 7
    assert "assistant.generation_config.num_assistant_tokens = 7" in out.files["generate.py"]


def test_openvino_takes_a_threshold_or_a_number() -> None:
    both = {"draft_confidence_threshold": 0.4, "num_speculative_tokens": 5}
    with pytest.raises(ConfigError, match="leave one of the two out"):
        ENGINES["openvino"].export(deployment("draft_model", both))
    out = ENGINES["openvino"].export(deployment("draft_model", {"draft_confidence_threshold": 0.4}))
    assert "num_assistant_tokens" not in out.config
    assert complaints(out) == []


@pytest.mark.parametrize(("engine", "version"), ABLE)
def test_context_parallelism_and_temperature(engine: str, version: str) -> None:
    served = {"max_model_len": 4096, "temperature": 0.7}
    out = ENGINES[engine].export(deployment("ngram", **served), version)
    assert complaints(out) == []
    assert "4096" in " ".join([*out.command, *out.files.values()])
    if engine in ("llamacpp", "openvino"):
        with pytest.raises(ConfigError, match="tensor_parallel_size"):
            ENGINES[engine].export(deployment("ngram", tensor_parallel_size=2), version)
        return
    words = " ".join(ENGINES[engine].export(deployment("ngram", tensor_parallel_size=2), version).command)
    assert re.search(r"(tensor-parallel-size|tp-size|tp_size|nproc-per-node) 2", words)


def test_trtllm_samples_with_temperature_on_1_2_only_where_it_is_allowed() -> None:
    hot = deployment("eagle3", temperature=0.7)
    assert ENGINES["trtllm"].export(hot, "1.2").config["allow_advanced_sampling"] is True
    assert "allow_advanced_sampling" not in ENGINES["trtllm"].export(hot, "main").config


def test_trtllm_wants_the_longest_drafts_first() -> None:
    from outrider.export.schedule import LoadSchedule

    rising = LoadSchedule.of([[1, 4, 2], [5, 8, 3]])
    with pytest.raises(ConfigError, match="longest drafts, 3 tokens, at a batch of 1"):
        ENGINES["trtllm"].export(deployment("draft_model", load_schedule=rising))


def test_versions_that_were_not_read_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--engine-version 0.1: vllm's configuration was read in 0.33.0 only"):
        ENGINES["vllm"].export(deployment("ngram"), "0.1")


def test_the_recorded_schemas_are_of_the_versions_that_are_offered() -> None:
    for engine in ENGINES.values():
        recorded = schema.schema(engine.name)
        if engine.name == "trtllm":
            assert tuple(recorded["versions"]) == engine.versions
        else:
            assert engine.versions[0].rpartition("-")[2] in recorded["package"]


def test_a_schedule_and_a_tree_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match="counts tokens of a chain"):
        deployment("eagle2", load_schedule=SCHEDULE)
    with pytest.raises(ConfigError, match="raise num_speculative_tokens"):
        deployment("eagle3", {"num_speculative_tokens": 3}, load_schedule=SCHEDULE)
    with pytest.raises(ConfigError, match="speculates never"):
        deployment("ngram", {"num_speculative_tokens": 0})
