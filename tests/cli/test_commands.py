"""The commands end to end, on a fake engine."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from fake_llm import FakeLLM

COMMANDS = ("generate", "chat", "bench", "check", "trace", "demo", "methods", "models", "index", "tune")
COMMANDS += ("theory", "simulate", "cost")


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\nthree\n")
    return str(path)


def test_help_names_every_command(cli):
    outcome = cli("--help")
    assert outcome.status == 0
    assert all(name in outcome.out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli, command):
    outcome = cli(command, "--help")
    assert outcome.status == 0
    assert "--json" in outcome.out or command in ("models", "index", "tune")


def test_help_imports_nothing_slow():
    slow = ("torch", "transformers", "tokenizers", "pydantic.main", "numpy", "fastapi", "huggingface_hub")
    code = (
        "import sys; from outrider.cli.main import run; run(['--help']); "
        f"print([name for name in {slow} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_version(cli):
    import outrider

    assert cli("--version").out.strip() == f"outrider {outrider.__version__}"


def test_generate_streams_plain_text_into_a_pipe(cli):
    outcome = cli("generate", "m", "hello", "-n", "6")
    assert outcome.status == 0
    assert len(outcome.out.strip()) == 6
    assert "\x1b" not in outcome.out
    assert "6 tokens" in outcome.err
    assert "mean acceptance length" not in outcome.err  # nothing was drafted


def test_generate_with_a_method_reports_acceptance(cli):
    outcome = cli("generate", "m", "hello", "-n", "7", "--method", "ngram", "-k", "3")
    assert "mean acceptance length 2.00" in outcome.err
    (config,) = FakeLLM.last.configs
    assert (config.method, config.num_speculative_tokens) == ("ngram", 3)


def test_generate_json_holds_the_answer_and_closes_the_engine(cli):
    answer = cli("generate", "m", "hello", "-n", "5", "--method", "ngram", "--json").json
    assert len(answer["token_ids"]) == len(answer["from_draft"]) == 5
    assert answer["stats"]["num_committed_tokens"] == 4
    assert FakeLLM.last.closed


def test_every_sampling_option_reaches_the_request(cli):
    arguments = ("-t", "0.7", "--top-k", "5", "--top-p", "0.9", "--min-p", "0.1", "--repetition-penalty", "1.2")
    cli("generate", "m", "x", *arguments, "--seed", "9", "--stop", "a", "--stop", "b", "--prediction", "yes", "--json")
    (_, params) = FakeLLM.last.calls[-1]
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.7, 5, 0.9, 0.1)
    assert (params.repetition_penalty, params.seed, params.stop) == (1.2, 9, ["a", "b"])
    assert params.prediction == "yes"


def test_every_model_option_reaches_the_engine(cli):
    arguments = ("--dtype", "float32", "--no-exact", "--max-model-len", "99", "--revision", "r", "--trust-remote-code")
    cli("generate", "m", "x", *arguments, "--threads", "2", "--tensor-parallel-size", "2")
    llm = FakeLLM.last
    assert llm.threads == 2
    assert llm.settings == {
        "dtype": "float32",
        "exact": False,
        "max_model_len": 99,
        "revision": "r",
        "tensor_parallel_size": 2,
        "trust_remote_code": True,
    }


def test_chat_template_is_used_unless_raw(cli):
    cli("generate", "m", "hi", "--system", "be kind", "--json")
    templated = FakeLLM.last.calls[-1][0]
    cli("generate", "m", "hi", "--raw", "--json")
    raw = FakeLLM.last.calls[-1][0]
    assert templated == FakeLLM.last.tokenizer.encode("system:be kind|user:hi|")
    assert raw == "hi"


def test_prompt_comes_from_standard_input(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("from a pipe"))
    cli("generate", "m", "--raw", "--json")
    assert FakeLLM.last.calls[-1][0] == "from a pipe"


def test_structured_outputs_are_json_or_a_file(cli, tmp_path):
    path = tmp_path / "wanted.json"
    path.write_text('{"json": {"type": "integer"}}')
    for given, field in (('{"regex": "a+"}', "regex"), (f"@{path}", "json_schema")):
        cli("generate", "m", "x", "--structured-outputs", given, "--json")
        assert FakeLLM.last.calls[-1][1].structured_outputs.model_fields_set == {field}


def test_prediction_is_read_from_a_file(cli, tmp_path):
    path = tmp_path / "expected.txt"
    path.write_text("expected")
    cli("generate", "m", "x", "--prediction", f"@{path}", "--json")
    assert FakeLLM.last.calls[-1][1].prediction == "expected"


def test_chat_keeps_the_history(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n\n/nonsense\ntwo\n/new\nthree\n/quit\nfour\n"))
    outcome = cli("chat", "m", "-n", "3", "--system", "s")
    prompts = [prompt for prompt, _ in FakeLLM.last.calls]
    first = outcome.out.splitlines()[0]
    assert prompts == [
        "system:s|user:one|",
        f"system:s|user:one|assistant:{first}|user:two|",
        "system:s|user:three|",
    ]
    assert "unknown command /nonsense" in outcome.err


def test_chat_json_is_one_document_a_turn(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n"))
    assert len(cli("chat", "m", "-n", "3", "--json").json["token_ids"]) == 3


def test_interrupt_stops_the_answer_and_not_the_chat(cli, monkeypatch):
    class Interrupted(FakeLLM):
        def stream(self, *arguments, **settings):
            for number, chunk in enumerate(super().stream(*arguments, **settings)):
                if number == 2 and len(self.calls) == 1:
                    raise KeyboardInterrupt
                yield chunk

    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    outcome = cli("chat", "m", "-n", "5", llm=Interrupted)
    assert outcome.status == 0
    assert [len(line) for line in outcome.out.splitlines()] == [2, 5]
    assert "ended by interrupt" in outcome.err


def test_interrupt_ends_generate_with_its_own_status(cli):
    class Interrupted(FakeLLM):
        def stream(self, *arguments, **settings):
            yield next(super().stream(*arguments, **settings))
            raise KeyboardInterrupt

    outcome = cli("generate", "m", "x", llm=Interrupted)
    assert outcome.status == 130
    assert len(outcome.out.strip()) == 1


def test_bench_prints_tables_and_writes_a_bundle(cli, prompts, tmp_path):
    import json

    folder = tmp_path / "bundle"
    outcome = cli("bench", "m", "--prompts", prompts, "--method", "ngram,suffix:4", "-n", "9", "--json", str(folder))
    assert outcome.status == 0
    assert "suffix:4" in outcome.out
    assert "2.00x" in outcome.out
    assert "3/3" in outcome.out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["all"]["ngram"]["speedup"] == pytest.approx(2.0)
    assert json.loads((folder / "manifest.json").read_text())["arguments"]["max_tokens"] == 9
    assert len((folder / "prompts.jsonl").read_text().splitlines()) == 9


def test_bench_json_on_stdout_and_as_a_file(cli, prompts, tmp_path):
    assert cli("bench", "m", "--prompts", prompts, "--json", "-").json["summary"]["baseline"] == "plain"
    path = tmp_path / "result.json"
    cli("bench", "m", "--prompts", prompts, "--json", str(path))
    assert path.exists()


def test_check_passes_and_finds_a_bug(cli, prompts):
    class Lying(FakeLLM):
        lies = {"suffix": 3}  # noqa: RUF012

    good = cli("check", "m", "--prompts", prompts, "-n", "6")
    assert (good.status, "no bug" in good.out) == (0, True)
    bad = cli("check", "m", "--prompts", prompts, "-n", "6", llm=Lying)
    assert bad.status == 1
    assert "token 3" in bad.out


def test_check_json(cli, prompts):
    document = cli("check", "m", "--prompts", prompts, "--temperature", "0", "--concurrency", "2", "--json", "-").json
    assert [item["variant"] for item in document["summary"]["comparisons"]] == ["plain", "ngram", "suffix"]
    assert document["summary"]["num_bugs"] == 0


@pytest.mark.parametrize("has_head", [True, False])
def test_demo_shows_the_table(cli, has_head):
    class Headless(FakeLLM):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            self.refused = {} if has_head else {"eagle3": "no head"}

    outcome = cli("demo", "m", "-n", "9", llm=Headless)
    assert outcome.status == 0
    assert ("eagle3 tokens/s" if has_head else "suffix tokens/s") in outcome.out
    assert "both texts identical: yes" in outcome.out
    assert outcome.out.count("yes") == 4


def test_demo_says_when_texts_differ(cli):
    class Lying(FakeLLM):
        lies = {"suffix": 3}  # noqa: RUF012

    asked = ("demo", "m", "--method", "suffix")
    assert "both texts identical: no" in cli(*asked, "-n", "9", llm=Lying).out
    assert [row["identical"] for row in cli(*asked, "--json", llm=Lying).json["rounds"]] == [False] * 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("export", "tgi"), "No such command 'tgi'; choose one of: vllm, sglang"),
        (("gnerate",), "Did you mean 'generate'"),
        (("bench", "m"), "Missing option '--prompts'; see `outrider bench --help`"),
        (("bench", "--nope"), "see `outrider bench --help`"),
    ],
)
def test_a_wrong_command_line_says_where_to_look(cli, words, says):
    outcome = cli(*words)
    assert outcome.status == 2
    assert says in outcome.err


def test_methods_lists_the_registry(cli):
    from outrider.drafters.registry import REGISTRY

    assert [row["method"] for row in cli("methods", "--json").json] == list(REGISTRY)
    assert all(name in cli("methods").out for name in REGISTRY)


def test_models_list_and_info(cli):
    assert cli("models", "list", "--json").json[0]["name"] == "smollm2-135m"
    info = cli("models", "info", "m")
    assert "float16" in info.out
    assert "it pays" in info.out
    assert cli("models", "info", "m", "--json").json["reasons"] == ["speculation on: it pays"]


def test_explain_goes_to_stderr(cli):
    outcome = cli("generate", "m", "x", "--explain", "--json")
    assert "it pays" in outcome.err
    assert outcome.json


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate",), "MODEL"),
        (("generate", "m", "x", "--method", "nosuch"), "nosuch"),
        (("generate", "m", "x", "-k", "3"), "--method"),
        (("generate", "m", "x", "--draft", "d", "--method", "ngram"), "--draft"),
        (("generate", "m", "x", "--method", "draft_model"), "--draft"),
        (("generate", "m", ""), "empty"),
        (("generate", "m", "\udcff"), "UTF-8"),
        (("generate", "m", "x", "--method", "prediction"), "--prediction"),
        (("generate", "m", "x", "--prediction", "y", "--method", "ngram"), "--method prediction"),
        (("generate", "m", "x", "--speculative-config", "{"), "not JSON"),
        (("generate", "m", "x", "--speculative-config", "[]"), "object"),
        (("generate", "m", "x", "--speculative-config", '{"num_speculative_tokens": 2}'), "names no method"),
        (("generate", "m", "x", "--speculative-config", '{"method": "ngram", "speed": 9}'), "speed"),
        (("generate", "m", "x", "--raw", "--system", "s"), "--system"),
        (("generate", "m", "x", "--prediction", "@/nonexistent"), "/nonexistent"),
        (("generate", "m", "x", "--structured-outputs", "{"), "--structured-outputs is not JSON"),
        (("generate", "m", "x", "--structured-outputs", "[]"), "takes a JSON object"),
        (("generate", "m", "x", "--structured-outputs", "{}"), "takes one of"),
        (("generate", "m", "x", "--top-p", "7"), "--top-p"),
        (("generate", "m", "x", "--nosuch"), "--nosuch"),
        (("nosuch",), "nosuch"),
        (("bench", "m", "--prompts", "/nonexistent"), "/nonexistent"),
        (("bench", "m", "--prompts", "PROMPTS", "--method", ""), "--method"),
        (("bench", "m", "--prompts", "PROMPTS", "--method", "ngram:x"), "ngram:x"),
        (("bench", "m", "--prompts", "PROMPTS", "--method", "ngram,ngram"), "twice"),
        (("check", "m", "--prompts", "PROMPTS", "--temperature", "hot"), "--temperature"),
        (("check", "m", "--prompts", "PROMPTS", "--concurrency", "0"), "--concurrency"),
        (("models", "get", "nosuch"), "nosuch"),
    ],
)
def test_errors_are_one_line_and_status_two(cli, prompts, arguments, words):
    outcome = cli(*(prompts if word == "PROMPTS" else word for word in arguments))
    assert outcome.status == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert words in outcome.err


def test_vllm_config_with_a_model_alone_is_a_draft_model(cli):
    cli("generate", "m", "x", "--speculative-config", '{"model": "d", "num_speculative_tokens": 4}', "--json")
    (config,) = FakeLLM.last.configs
    assert (config.method, config.model, config.num_speculative_tokens) == ("draft_model", "d", 4)


def test_draft_alone_means_draft_model(cli):
    cli("generate", "m", "x", "--draft", "d", "--json")
    assert FakeLLM.last.configs[0].method == "draft_model"


def test_prediction_alone_means_prediction(cli):
    cli("generate", "m", "x", "--prediction", "y", "--json")
    assert FakeLLM.last.configs[0].method == "prediction"


def test_draft_names_several_models_for_specinfer(cli):
    cli("generate", "m", "x", "--method", "specinfer", "--draft", "a,b", "--json")
    (config,) = FakeLLM.last.configs
    assert [member.model for member in config.members] == ["a", "b"]


def test_tune_tree_counts_prints_and_writes(cli, prompts, tmp_path, monkeypatch):
    from outrider.bench import tree_tuning
    from outrider.drafters.static_trees import AcceptanceTable, read_table

    table = AcceptanceTable("t", "d", 0.0, [10, 5], [[6, 2], [3, 1]], prompts=3)
    asked = []
    monkeypatch.setattr(tree_tuning, "calibrate", lambda *arguments: asked.append(arguments) or table)
    out = str(tmp_path / "tree.json")
    outcome = cli("tune", "tree", "m", "--draft", "d", "--prompts", prompts, "--out", out, "--topk", "2")
    assert outcome.status == 0
    assert "0.600" in outcome.out
    assert '"tree_kind": "static"' in outcome.out
    assert read_table(out) == table
    assert len(asked[0][1]) == 3
    assert FakeLLM.last.configs[0].tree_topk == 2
    assert cli("tune", "tree", "m", "--draft", "d", "--prompts", prompts, "--out", out, "--json").json["trials"] == [
        10,
        5,
    ]


def test_tune_tree_refuses_before_it_loads(cli, prompts, tmp_path):
    outcome = cli("tune", "tree", "m", "--draft", "d", "--prompts", prompts, "--out", str(tmp_path / "no" / "x.json"))
    assert outcome.status == 2
    assert "create it" in outcome.err


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_input_that_is_no_utf8_is_one_line(cli, monkeypatch, command):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    outcome = cli(command, "m")
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert "UTF-8" in outcome.err


def test_bare_commands_show_something(cli):
    assert (cli().status, cli().err) == (0, "")
    assert "smollm2-135m" in cli("models").out


def test_reader_that_leaves_is_an_error_and_no_bug():
    code = "import sys; from outrider.cli.main import run; sys.exit(run(['methods', '--json']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == 2


def test_tune_hands_its_settings_on_and_says_what_it_found(cli, prompts, monkeypatch, tmp_path):
    from outrider.cli import tune
    from outrider.tune import layer_skip, run

    seen = []
    found = {
        "file": "set.json",
        "skip_attention_layers": [3],
        "skip_mlp_layers": [],
        "expected_speedup": 1.25,
        "num_speculative_tokens": 2,
        "draft_ms": 1.5,
        "plain_ms": 4.0,
    }
    monkeypatch.setattr(layer_skip, "require_optuna", lambda: None)
    monkeypatch.setattr(run, "layer_skip", lambda llm, plan: seen.append(plan) or found)
    monkeypatch.setattr(tune, "open_llm", lambda model, *, threads, configs, **settings: FakeLLM(model))
    out = str(tmp_path / "set.json")
    outcome = cli("tune", "layer_skip", "m", "--prompts", prompts, "--trials", "9", "--out", out, "-n", "32")
    assert outcome.status == 0
    assert "expected 1.25x" in outcome.out
    assert "skipped attention: [3]" in outcome.out
    (plan,) = seen
    assert (plan.trials, plan.max_tokens, str(plan.out)) == (9, 32, out)
    assert cli("tune", "layer_skip", "m", "--prompts", prompts, "--json").json == found


def test_tune_has_help(cli):
    assert "layer_skip" in cli("tune", "--help").out
    assert "--trials" in cli("tune", "layer_skip", "--help").out
