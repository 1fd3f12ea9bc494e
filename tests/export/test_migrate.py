"""Published command lines become lines that the engines' recorded schemas take, and every change is explained."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path

import pytest
import yaml

from export import schema
from export.lines import CALLS, LINES, SPARK, Line
from outrider.errors import ConfigError
from outrider.export.migrate.base import Migration
from outrider.export.migrate.run import migrate
from outrider.export.migrate.trtllm import clean


def test_there_are_enough_lines_and_all_say_where_they_are_from() -> None:
    assert len(LINES) >= 20
    assert all(line.source.startswith("https://") for line in LINES)


@pytest.mark.parametrize("line", LINES, ids=[line.source.rpartition("//")[2] for line in LINES])
def test_published_lines_become_valid_ones(line: Line) -> None:
    found = migrate(line.text)
    assert found.engine == line.engine
    for word in line.gone:
        assert word in line.text
        assert word not in f"{found.line} "
    for word in line.there:
        assert word in found.line
    if line.engine != "trtllm":
        assert schema.command_line(line.engine, found.line) == []
    assert all(change.why and (change.old or change.new) for change in found.changes)
    again = migrate(found.line)
    assert again.line == found.line
    assert [change for change in again.changes if change.kind != "unknown"] == []


DEAD = [line for line in LINES if line.gone and line.engine != "trtllm"]


@pytest.mark.parametrize("line", DEAD, ids=lambda line: line.source)
def test_what_is_out_of_date_is_not_valid_as_published(line: Line) -> None:
    assert schema.command_line(line.engine, line.text) != [] or "SPEC_V2" in line.text or "_mtp" in line.text


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.source)
def test_every_flag_of_a_line_is_accounted_for(line: Line) -> None:
    found = migrate(line.text)
    told = " ".join(change.old for change in found.changes) + " " + " ".join(found.unchanged)
    words = shlex.split(line.text)
    for index, word in enumerate(words):
        if word.startswith("-") and not word[1:2].isdigit() and not words[index - 1].startswith("python"):
            name = word.partition("=")[0]
            assert name in told or name.replace("_", "-") in told, word


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.source)
def test_published_calls(call: Line) -> None:
    found = migrate(call.text)
    assert found.engine == call.engine
    assert all(word in found.line for word in call.there)
    assert not any(word in found.line for word in call.gone)
    ast.parse(found.line)
    if call.engine == "vllm":
        node = next(node for node in ast.walk(ast.parse(found.line)) if isinstance(node, ast.Call))
        config = next(word.value for word in node.keywords if word.arg == "speculative_config")
        assert schema.vllm_config(ast.literal_eval(config)) == []


def test_a_yaml_file_that_is_here_is_migrated_too(tmp_path: Path) -> None:
    file = tmp_path / "extra.yml"
    file.write_text(SPARK)
    found = migrate(f"trtllm-serve openai/gpt-oss-120b --extra_llm_api_options {file}")
    whole = yaml.safe_load(found.files["extra.yml"])
    assert whole["speculative_config"]["decoding_type"] == "Eagle3"
    assert whole["kv_cache_config"] == {"free_gpu_memory_fraction": 0.9, "enable_block_reuse": False}
    assert schema.trtllm_config(whole["speculative_config"], "1.2") == []


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"decoding_type": "NGram", "prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 2}, "NGram"),
        ({"decoding_type": "DraftTarget", "max_draft_len": 4, "speculative_model_dir": "d"}, "Draft_Target"),
        ({"decoding_type": "Eagle", "max_draft_len": 3, "pytorch_weights_path": "d"}, "Eagle3"),
        ({"decoding_type": "MTP", "max_draft_len": 2}, "MTP"),
        ({"decoding_type": "Lookahead", "max_window_size": 4}, None),
        ({"decoding_type": "Medusa", "num_medusa_heads": 4}, None),
    ],
)
def test_sections_of_trtllm(config: dict[str, object], kind: str | None) -> None:
    out = Migration("trtllm", "")
    found = clean(config, out)
    assert found.get("decoding_type") == kind
    assert out.changes
    assert kind is None or schema.trtllm_config(found, "1.2") == []


def test_methods_that_are_gone_leave_a_plain_server_and_a_way_out() -> None:
    old = "vllm serve M --speculative-model ibm-ai-platform/llama3-70b-accelerator --num-speculative-tokens 3"
    for line in (
        old,
        'vllm serve M --speculative-config \'{"method": "medusa", "model": "X", "num_speculative_tokens": 3}\'',
    ):
        found = migrate(line)
        assert found.line == "vllm serve M"
        assert any("outrider train eagle3" in change.why for change in found.changes)


def test_a_limit_by_batch_size_becomes_a_schedule() -> None:
    found = migrate(
        "vllm serve M --speculative-model D --num-speculative-tokens 5 --speculative-disable-by-batch-size 16 "
        "--spec-decoding-acceptance-method typical_acceptance_sampler --disable-logprobs-during-spec-decoding True "
        "--typical-acceptance-sampler-posterior-alpha=0.3 --speculative-draft-tensor-parallel-size 1"
    )
    config = json.loads(shlex.split(found.line)[-1])
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 16, 5], [17, 17, 0]]
    assert schema.command_line("vllm", found.line) == []
    assert any("lossy" in change.why for change in found.changes)


def test_old_names_of_n_gram_sizes_follow_the_type() -> None:
    found = migrate(
        "llama-server -m t.gguf --spec-type ngram-map-k --spec-ngram-size-n 8 --spec-ngram-size-m 24 -cd 4096"
    )
    assert "--spec-ngram-map-k-size-n 8 --spec-ngram-map-k-size-m 24" in found.line
    assert "-cd" not in found.line
    found = migrate("llama-server -m t.gguf --spec-type ngram-mod --spec-ngram-size-n 8 --spec-ngram-min-hits 2")
    assert found.line.endswith("--spec-ngram-mod-n-match 8")


def test_three_numbers_or_none() -> None:
    found = migrate("python -m sglang.launch_server --model M --speculative-algorithm EAGLE --speculative-num-steps 3")
    assert found.line.endswith("--speculative-eagle-topk 1 --speculative-num-draft-tokens 4")


def test_unknown_flags_pass_and_are_named() -> None:
    found = migrate("vllm serve M --brand-new-flag 3 -tp 2")
    assert found.line == "vllm serve M --brand-new-flag 3 -tp 2"
    assert "--brand-new-flag" in found.unchanged
    assert found.changes == []


def test_the_engine_is_that_of_the_command_not_of_a_model() -> None:
    assert migrate("python -m sglang.launch_server --model org/vllm-tuned").engine == "sglang"
    assert migrate("docker run -e HF_TOKEN=x image vllm serve M").engine == "vllm"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("vllm serve M --speculative-config '{", "quotes"),
        ("vllm serve M --speculative-config {method", "not JSON"),
        ("ls -l", "no engine"),
        ("vllm serve M --speculative-model", "no value"),
        ("vllm serve M --speculative-model D --speculative-disable-by-batch-size 4", "num_speculative_tokens"),
    ],
)
def test_lines_that_cannot_be_read(line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        migrate(line)
