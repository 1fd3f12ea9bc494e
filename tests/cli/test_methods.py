"""``outrider methods`` and `--method all`: everything is read from the rows of the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fake_llm import FakeLLM
from outrider.cli.common import choose_methods
from outrider.config import SpeculativeConfig
from outrider.core.verifiers.table import RULES
from outrider.drafters import describe
from outrider.drafters.registry import REGISTRY, check
from outrider.errors import ConfigError

WIDTH = 100


def test_the_list_names_every_method_and_keeps_its_width(cli):
    out = cli("methods").out
    assert max(map(len, out.splitlines())) <= WIDTH
    for row in REGISTRY.values():
        assert row.method in out
    assert "needs" in out.splitlines()[0]
    assert len(out.splitlines()) < 3 * len(REGISTRY)  # an overview; settings and rules are told of one


@pytest.mark.parametrize("method", REGISTRY)
def test_one_method_in_detail(cli, method):
    row = REGISTRY[method]
    outcome = cli("methods", method)
    assert outcome.status == 0
    assert max(map(len, outcome.out.splitlines())) <= WIDTH
    details = cli("methods", method, "--json").json
    assert [option["name"] for option in details["options"]] == list(row.options)
    assert all(option["meaning"] and option["values"] for option in details["options"])
    assert details["about"]
    assert set(details["lossless_rules"]) == {use["rule"] for use in details["rules"] if RULES[use["rule"]].lossless}
    for name in (*row.options, *details["lossless_rules"]):
        assert name in outcome.out


def test_an_unknown_method_lists_the_known_ones(cli):
    outcome = cli("methods", "nosuch")
    assert (outcome.status, "choose one of: ngram" in outcome.err) == (2, True)


def test_every_setting_is_described_in_its_field():
    for name, field in SpeculativeConfig.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize("row", REGISTRY.values(), ids=REGISTRY)
def test_the_rules_of_a_method_are_those_that_its_check_takes(row):
    needed = {"model": "x", "synthetic_acceptance_rates": [0.5]}
    values = {key: needed[key] for key in row.required if key in needed}
    if "num_paths" in row.options:
        values["num_paths"] = 1  # the shape that most rules take
    if set(row.required) - set(needed):
        pytest.skip("its required settings have no stand-in here")
    taken = []
    for rule in RULES:
        try:
            check(SpeculativeConfig(method=row.method, verifier=rule, **values))
        except ConfigError:
            continue
        taken.append(rule)
    assert [use.rule for use in describe.rules(row)] == taken


def test_values_and_bounds_in_words():
    assert describe.option("num_paths").values == "integer from 1 to 64"
    assert describe.option("typical_threshold").values == "number over 0 below 1"
    assert describe.option("tree").values == "list of integer"
    assert describe.option("drafters").values == "list of config"
    assert describe.option("model").default == "none"
    assert describe.option("method").required


def test_all_is_every_method_that_nothing_stands_in_the_way_of():
    bare = choose_methods("all", None, None, None, predicted=False)
    assert {"ngram", "suffix"} <= set(bare.methods)
    assert set(bare.methods) | set(bare.left_out) == set(REGISTRY)
    assert not set(bare.methods) & set(bare.left_out)
    assert "add --draft MODEL" in bare.left_out["draft_model"]
    assert "no prompt has a prediction" in bare.left_out["prediction"]
    assert "needs synthetic_acceptance_rates" in bare.left_out["synthetic"]
    config = json.dumps({"method": "synthetic", "synthetic_acceptance_rates": [0.5]})
    full = choose_methods("all:3", None, [config], "draft", predicted=True)
    assert {"draft_model", "prediction", "synthetic"} <= set(full.methods)
    assert {variant.num_tokens for variant in full.variants} == {3}


def test_without_names_the_configs_say_what_runs():
    configs = ['{"method": "suffix"}', '[{"method": "lookahead"}, {"model": "m"}]']
    assert choose_methods(None, None, None, None, predicted=False).methods == ["ngram", "suffix"]
    assert choose_methods(None, 4, configs, None, predicted=False).methods == ["suffix", "lookahead", "draft_model"]
    with pytest.raises(ConfigError, match="names lookahead, draft_model, which --method does not: add it there"):
        choose_methods("suffix,ngram", None, configs, None, predicted=False)


@pytest.mark.parametrize("command", ["bench", "check"])
def test_every_config_that_is_given_runs(cli, tmp_path: Path, command):
    path = tmp_path / "prompts.txt"
    path.write_text("one\n")
    configs = ["--speculative-config", '{"method": "suffix", "suffix_decoding_tree": true}']
    configs += ["--speculative-config", '[{"method": "lookahead"}]']
    assert cli(command, "m", "--prompts", str(path), *configs, "--json", "-").status == 0
    assert FakeLLM.last is not None
    assert [(config.method, config.suffix_decoding_tree) for config in FakeLLM.last.configs] == [
        ("suffix", True),
        ("lookahead", False),
    ]
    asked = {params.speculation.method for _, params in FakeLLM.last.calls if params.speculation is not None}
    assert {"suffix", "lookahead"} <= asked


@pytest.mark.parametrize("command", ["bench", "check"])
def test_all_runs_what_the_model_allows_and_says_what_is_left_out(cli, tmp_path: Path, command):
    class Refusing(FakeLLM):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            assert self.settings["skip_refused"]
            self.refused = {"suffix": "the model has none of it"}

    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\n")
    outcome = cli(command, "m", "--prompts", str(path), "--method", "all", "-n", "6", "--json", "-", llm=Refusing)
    assert outcome.status == 0
    left_out = outcome.json["summary"]["left_out"]
    assert left_out["suffix"] == "the model has none of it"
    for method, reason in left_out.items():
        assert f"left out: {method}: {reason}" in outcome.err
    kept = outcome.json["summary"]["variants"] if command == "bench" else ["ngram"]
    assert "suffix" not in kept
    assert "ngram" in kept


def test_bench_shows_where_time_went(cli, tmp_path: Path):
    path = tmp_path / "prompts.txt"
    path.write_text("one\n")
    cell = cli("bench", "m", "--prompts", str(path), "--json", "-").json["summary"]["all"]["ngram"]
    whole = sum(cell[f"{part}_seconds"] for part in ("draft", "verify", "overhead"))
    for part, share in (("draft", 0.1), ("verify", 0.7), ("overhead", 0.2)):
        assert cell[f"{part}_share"] == pytest.approx(share)
        assert cell[f"{part}_seconds"] == pytest.approx(share * whole)
    assert "10/70/20 %" in cli("bench", "m", "--prompts", str(path)).out
