"""The commands that reckon: theory, simulate, cost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from outrider.cli import simulate

GPU = ("--gpu", "h100", "--parameters", "8")


def test_theory_names_the_best_k_and_the_break_even(cli):
    found = json.loads(cli("theory", "--alpha", "0.8", "--draft-cost", "0.1", "--json").out)
    rows = found["table"]
    assert found["best_k"] == max(rows, key=lambda row: row["speed_up"])["k"]
    assert rows[2]["tokens"] == pytest.approx(1 + 0.8 + 0.64)
    assert "best K: " in cli("theory", "--rates", "0.8,0.5").out
    assert "does not pay" in cli("theory", "--alpha", "0.05", "--draft-cost", "0.4").out


def test_theory_on_a_machine_knows_the_batch_and_experts(cli):
    alone, crowd = (
        json.loads(cli("theory", "--alpha", "0.7", *GPU, "--batch", count, "--json").out) for count in ("1", "512")
    )
    assert alone["table"][4]["speed_up"] > crowd["table"][4]["speed_up"]
    out = cli("theory", "--alpha", "0.7", "--gpu", "h200", "--parameters", "30", "--experts", "128,8,0.9").out
    assert "experts of each layer" in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("theory",), "--alpha or --rates"),
        (("theory", "--alpha", "1.5"), "--alpha"),
        (("theory", "--alpha", "0.5", "--gpu", "h100"), "--parameters"),
        (("theory", "--alpha", "0.5", "--gpu", "abc", "--parameters", "8"), "h200"),
        (("simulate",), "--costs"),
        (("simulate", *GPU, "--method", "eagle3"), "--rates eagle3"),
        (("simulate", *GPU, "--method", "nonsense", "--rates", "nonsense=0.5"), "nonsense"),
        (("simulate", *GPU, "--clients", "0"), "--clients"),
        (("simulate", "--gpu", "l4", "--parameters", "70"), "more GPUs"),
        (("simulate", *GPU, "--rates", "eagle3"), "METHOD=NUMBER"),
        (("cost",), "nothing to reckon"),
        (("cost", "--plain", "1", "--speculative", "2", "--demand", "5"), "--price"),
        (("cost", "--state", "gpus"), "NAME=NUMBER"),
        (("cost", "--state", "gpus=3"), "no rule"),
    ],
)
def test_what_cannot_be_reckoned_says_why(cli, arguments, says):
    outcome = cli(*arguments)
    assert outcome.status == 2
    assert says in outcome.err


def test_a_simulation_is_what_cost_reads(cli, tmp_path: Path):
    options = ("--method", "plain,eagle3,suffix:2", "--rates", "eagle3=0.8", "--rates", "suffix=0.4")
    options += ("--draft-parameters", "eagle3=0.5", "--requests", "24", "--clients", "1,8", "--output-tokens", "32")
    outcome = cli("simulate", *GPU, *options, "--json")
    runs = json.loads(outcome.out)["runs"]
    assert [(run["clients"], run["method"]) for run in runs][:3] == [(1, "plain"), (1, "eagle3"), (1, "suffix:2")]
    assert runs[1]["throughput"] > 1.5 * runs[0]["throughput"]
    assert runs[0]["cost"] == pytest.approx(2.0 / (runs[0]["throughput"] * 3600) * 1e6)
    path = tmp_path / "simulation.json"
    path.write_text(outcome.out)
    reckon = ("cost", "--simulation", str(path), "--price", "2", "--demand", "50000")
    found = json.loads(cli(*reckon, "--json").out)
    assert found["rates"]["source"] == "eagle3"
    assert found["rates"]["plain"] == runs[3]["throughput"]
    assert found["saved_per_month"] > 0
    assert "saved a month" in cli(*reckon).out
    wrong = json.loads(outcome.out)
    wrong["runs"][3]["seconds"] *= 2
    path.write_text(json.dumps(wrong))
    assert "is not the tokens of plain" in cli(*reckon).err


def test_the_table_of_a_simulation_shows_loads_methods_and_assumptions(cli):
    options = ("--rate", "2", "--requests", "8", "--output-tokens", "8", "--num-gpus", "1,2")
    out = cli("simulate", *GPU, *options).out
    assert "2/s" in out
    assert "not a measurement" in out
    assert "of the sum of several GPUs" in out
    assert "a GPU at 2 USD an hour, taken from a price list: give yours with --price" in out
    assert "a GPU at 3 USD an hour, as given" in cli("simulate", *GPU, *options, "--price", "3").out


@pytest.mark.parametrize(("columns", "whole"), [(80, False), (110, True)])
def test_no_figure_of_a_simulation_is_cut_in_a_terminal(cli, monkeypatch, columns, whole):
    def terminal(*, stderr: bool = True) -> Console:
        return Console(stderr=stderr, highlight=False, width=columns)

    monkeypatch.setattr(simulate, "console", terminal)
    options = (
        "--clients",
        "64",
        "--requests",
        "80",
        "--output-tokens",
        "8",
        "--method",
        "eagle3:4",
        "--rates",
        "eagle3=0.7",
    )
    out = cli("simulate", *GPU, *options).out
    table = re.split("left out|a roofline", out)[0]
    assert "…" not in out
    assert max(map(len, table.splitlines())) <= columns
    assert ("KV mean" in table.splitlines()[0]) == whole
    assert re.search(r"64 clients +eagle3:4 +[\d,]+ +[\d.]+/[\d.]+/[\d.]+ +[\d.]+/[\d.]+/[\d.]+ ", table)


def test_a_simulation_names_the_method_that_cost_reckons_with(cli, tmp_path: Path):
    def run_of(method: str, rate: float) -> dict:
        same = {"num_gpus": 1, "clients": 1, "rate": None, "seconds": 1.0}
        return {**same, "method": method, "throughput": rate, "output_tokens": rate}

    path = tmp_path / "simulation.json"
    path.write_text(json.dumps({"runs": [run_of("plain", 100.0), run_of("eagle3:4", 150.0)]}))
    assert "\neagle3:4 " in cli("cost", "--simulation", str(path), "--price", "2", "--demand", "900").out
    path.write_text("no JSON")
    outcome = cli("cost", "--simulation", str(path), "--price", "2", "--demand", "900")
    assert "it is no JSON" in outcome.err
    assert "JSONDecodeError" not in outcome.err


def test_stated_figures_are_checked(cli):
    wrong = ("cost", "--state", "tokens_per_second=1000", "--state", "seconds=60", "--state", "tokens=6000")
    assert "60,000" in cli(*wrong).out
    assert "add up (rules checked: 1)" in cli(*wrong[:-1], "tokens=60000").out


def test_a_measured_machine_and_recorded_drafts_are_read(cli, tmp_path: Path):
    machine, drafts = tmp_path / "machine.json", tmp_path / "drafts.json"
    target = {"rows": [1, 8], "seconds": [0.01, 0.0101], "context": 256, "per_token": 0.0, "per_read": 0.0}
    document = {"format": "outrider costs 1", "target": target, "chunk": {"step": 0.01, "row": 0.001}}
    machine.write_text(json.dumps(document))
    row = {
        "prompt": 40,
        "output": 9,
        "drafts": {"suffix": [[1, [0.9, 0.9, 0.9], None, [0, 1, 2]], [5, [0.9], None, [0]]]},
    }
    drafts.write_text(json.dumps({"format": "outrider drafts 1", "shared": 32, "requests": [row]}))
    reads = ("simulate", "--costs", str(machine), "--drafts", str(drafts))
    out = cli(*reads, "--method", "plain,suffix:3", "--clients", "1", "--requests", "3", "--price", "1", "--json").out
    plain, suffix = json.loads(out)["runs"]
    assert plain["output_tokens"] == suffix["output_tokens"] == 27
    assert suffix["cached_tokens"] == 64
    assert suffix["mean_acceptance_length"] == pytest.approx(8 / 4)
    assert plain["cost"] == pytest.approx(1 / (plain["throughput"] * 3600) * 1e6)
    machine.write_text(json.dumps({**document, "chunk": {"step": 0.01}}))
    assert "row" in cli(*reads).err
    assert "--num-gpus" in cli(*reads[:3], "--num-gpus", "2").err
    machine.write_text("{}")
    assert "outrider costs 1" in cli(*reads).err
