"""`outrider export ENGINE` and `outrider migrate` as a person calls them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

ENGINES = ("vllm", "sglang", "trtllm", "llamacpp", "transformers", "openvino")
SHIPPED = Path(__file__).resolve().parents[2] / "src" / "outrider" / "heads" / "shipped_heads" / "smollm2-135m-eagle3"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_command(cli, engine, tmp_path):
    out = tmp_path / "out"
    outcome = cli("export", engine, "--target", "smollm2-135m", "--method", "ngram", "-k", "4", "--out", str(out))
    assert outcome.status == 0
    assert "HuggingFaceTB/SmolLM2-135M-Instruct" in "".join(path.read_text() for path in out.iterdir())
    shown = cli("export", engine, "--target", "org/model", "--method", "ngram", "--json").json
    assert shown["engine"] == engine
    assert shlex.split(shown["command_line"]) == shown["command"]


def test_a_head_is_written_in_the_engines_layout(cli, tmp_path):
    arguments = ("--target", "smollm2-135m", "--method", "eagle3", "--head", str(SHIPPED))
    outcome = cli("export", "sglang", *arguments)
    assert (outcome.status, "--out" in outcome.err) == (2, True)
    outcome = cli("export", "sglang", *arguments, "--out", str(tmp_path))
    assert outcome.status == 0
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (tmp_path / "head" / "model.safetensors").stat().st_size > 1_000_000
    served = yaml.safe_load((tmp_path / "sglang.yaml").read_text())
    assert served["speculative-draft-model-path"] == str(tmp_path / "head")
    again = cli("export", "sglang", "--target", "smollm2-135m", "--method", "eagle3", "--head", str(tmp_path / "head"))
    assert again.status == 0
    assert "which is read as is" in again.err


@pytest.mark.parametrize("name", ["run/eagle3/head", "./head", "/nowhere/head", "head", "{here}/nothing"])
def test_a_head_that_is_not_there_is_refused(cli, tmp_path, name):
    name = name.format(here=tmp_path)
    outcome = cli("export", "vllm", "--target", "t", "--method", "eagle3", "--head", name)
    assert outcome.status == 2
    assert f"--head {name}: there is no such folder" in outcome.err
    assert cli("export", "vllm", "--target", "t", "--method", "eagle3", "--head", "owner/name").status == 0


def test_without_a_head_one_is_asked_for_even_if_the_target_is_unknown(cli):
    outcome = cli("export", "vllm", "--target", "./nowhere", "--method", "eagle3")
    assert outcome.status == 2
    assert "method 'eagle3' needs a head: name one with --head" in outcome.err


def test_a_length_that_nobody_chose_is_told(cli):
    call = ("export", "vllm", "--target", "t", "--method", "ngram")
    assert "8 tokens a step is where ngram begins; set it with -k" in cli(*call).err
    assert "begins" not in cli(*call, "-k", "4").err


def test_heads_that_no_layout_holds_are_refused(cli, tmp_path):
    medusa = SHIPPED.with_name("smollm2-135m-medusa")
    outcome = cli(
        "export", "vllm", "--target", "t", "--method", "medusa", "--head", str(medusa), "--out", str(tmp_path)
    )
    assert outcome.status == 2
    assert "vLLM removed medusa with 0.33; the nearest is 'eagle3'" in outcome.err


def test_advice_is_exported(cli, tmp_path):
    file = tmp_path / "advice.json"
    recommended = {"method": "draft_model", "num_speculative_tokens": 3, "draft": "org/draft", "head": None}
    recommended["load_schedule"] = [[1, 8, 4], [9, 64, 0]]
    file.write_text(json.dumps({"recommendation": recommended}))
    config = cli("export", "vllm", "--target", "org/target", "--advice", str(file), "--json").json["config"]
    assert config["num_speculative_tokens_per_batch_size"] == [[1, 8, 4], [9, 64, 0]]
    assert (config["num_speculative_tokens"], config["model"]) == (4, "org/draft")
    assert "load schedule" in cli("export", "llamacpp", "--target", "t", "--advice", str(file)).err
    assert cli("export", "llamacpp", "--target", "t", "--advice", str(file), "-k", "3").status == 0
    recommended |= {"load_schedule": [[1, 64, 3]], "speculative_config": {"draft_confidence_threshold": 0.4}}
    file.write_text(json.dumps({"recommendation": recommended}))
    config = cli("export", "llamacpp", "--target", "t", "--advice", str(file), "--json").json["config"]
    assert (config["spec-draft-n-max"], config["spec-draft-p-min"]) == (3, 0.4)
    outcome = cli("export", "vllm", "--target", "t", "--advice", str(file), "--method", "ngram")
    assert "ranks no 'ngram' that can be exported; it has: none" in outcome.err
    outcome = cli("export", "vllm", "--target", "t", "--advice", str(file), "--draft", "d")
    assert "--advice names draft and settings" in outcome.err
    file.write_text(json.dumps({"recommendation": {"method": None}}))
    assert "without speculation" in cli("export", "vllm", "--target", "t", "--advice", str(file)).err
    file.write_text("{}")
    assert "holds no recommendation" in cli("export", "vllm", "--target", "t", "--advice", str(file)).err


def test_another_candidate_of_the_advice_is_exported(cli, tmp_path):
    def place(method: str, speedup: float, **config: object) -> dict:
        deployment = {"method": method, "num_speculative_tokens": 5, "load_schedule": [[1, 8, 5]]}
        deployment["speculative_config"] = {"method": method, **config}
        return {
            "deployment": deployment,
            "out": None,
            "by_concurrency": {"8": {"speedup": 1}, "1": {"speedup": speedup}},
        }

    ranking = [
        place("self_quantized", 1.9),
        place("suffix", 1.6, suffix_decoding_tree=True),
        place("eagle3", 1.5, tree_kind="dynamic", tree_nodes=16),
        place("ngram", 1.2, prompt_lookup_max=3),
        place("ngram", 1.1, prompt_lookup_max=4),
    ]
    ranking.append(place("draft_model", 3.0) | {"out": "needs 9 GB"})
    file = tmp_path / "advice.json"
    file.write_text(json.dumps({"recommendation": ranking[0]["deployment"], "ranking": ranking}))
    call = ("export", "llamacpp", "--target", "t", "--advice", str(file))
    outcome = cli(*call)
    assert outcome.status == 2
    assert "recommends 'self_quantized', which this engine cannot do" in outcome.err
    assert "it can do ngram (1.20x): add --method NAME" in outcome.err
    config = cli("export", "vllm", *call[2:], "--method", "ngram", "--json").json["config"]
    assert (config["num_speculative_tokens"], config["prompt_lookup_max"]) == (5, 3)
    assert "ranks no 'draft_model'" in cli(*call, "--method", "draft_model").err


def test_a_program_of_transformers_bounds_the_answer_unless_a_context_is_given(cli):
    call = ("export", "transformers", "--target", "t", "--method", "ngram", "-k", "4")
    assert "max_new_tokens=256, " in cli(*call).out
    assert "max_length=4096, " in cli(*call, "--max-model-len", "4096").out


def test_what_was_changed_is_not_said_to_be_passed_through(cli):
    err = cli("migrate", "llama-server -m a.gguf -md b.gguf --draft-max 5 -fa").err
    assert "passed through as they are: -m\n" in err
    assert "-fa on" in err
    found = cli("migrate", "llama-server -m a.gguf -md b.gguf --draft-max 5 -fa", "--json").json
    assert found["unchanged"] == ["-m"]


def test_what_is_missing_is_said(cli):
    assert "name one drafting method" in cli("export", "vllm", "--target", "t").err
    assert "--draft and --head" in cli("export", "vllm", "--target", "t", "--draft", "a", "--head", "b").err
    assert "0.33.0 only" in cli("export", "vllm", "--target", "t", "--method", "ngram", "--engine-version", "1").err


def test_a_schedule_is_computed_from_measurements(cli, tmp_path):
    file = tmp_path / "measured.json"
    measured = {"conditional_acceptance": [0.8, 0.7, 0.6], "rows": [1, 16, 256], "seconds": [0.02, 0.021, 0.3]}
    file.write_text(json.dumps(measured))
    arguments = ("--target", "t", "--draft", "d", "--load-schedule", str(file), "--json")
    levels = cli("export", "vllm", *arguments).json["config"]["num_speculative_tokens_per_batch_size"]
    assert levels[0][2] == 3
    assert levels[-1][1:] == [64, 0]


def test_migrate_shows_line_and_reasons(cli):
    outcome = cli("migrate", "vllm serve M --speculative-model D --num-speculative-tokens 5 -tp 2")
    assert outcome.status == 0
    assert outcome.out.startswith("vllm serve M -tp 2 --speculative-config ")
    assert "one JSON object holds all of speculation" in outcome.err
    assert "passed through as they are: -tp" in outcome.err
    found = cli("migrate", "llama-server -m t.gguf -md d.gguf --draft 8", "--json").json
    assert [change["kind"] for change in found["changes"]] == ["renamed", "added", "added"]
    assert "nothing in it is out of date" in cli("migrate", "vllm serve M").err
    assert cli("migrate", "ls").status == 2
