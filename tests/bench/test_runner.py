"""The alternating runner and its report, on the fake engine."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fake_llm import FakeLLM
from outrider.bench import bundle, report, runner
from outrider.bench.data import Prompt
from outrider.errors import ConfigError

NGRAM, SUFFIX = runner.Variant("ngram", "ngram"), runner.Variant("suffix:4", "suffix", 4)
PROMPTS = [
    Prompt("a/0", "a", ("first question", "second")),
    Prompt("a/1", "a", ("another",)),
    Prompt("b/0", "b", ("third",)),
]


def plan(**values):
    return runner.Plan(variants=[runner.PLAIN, NGRAM, SUFFIX], max_tokens=9, **values)


def measured(llm: FakeLLM) -> list:
    """Calls after the warm-up."""
    return [call for call in llm.calls if call[0]["cache_salt"] != "warm-up"]


def test_every_variant_answers_every_turn_and_the_order_rotates():
    llm = FakeLLM("m")
    results = runner.run(llm, PROMPTS, plan())
    methods = [params.speculation.method for _, params in measured(llm)]
    assert methods[:9] == [None, "ngram", "suffix", "ngram", "suffix", None, "ngram", "suffix", None]
    assert len(results.rows) == 4 * 3
    assert all(row.equal for row in results.rows)


def test_warm_up_runs_every_variant_first():
    llm = FakeLLM("m")
    runner.run(llm, PROMPTS, plan())
    assert [call[0]["cache_salt"] for call in llm.calls[:3]] == ["warm-up"] * 3


def test_salts_separate_variants_and_repeats():
    llm = FakeLLM("m")
    runner.run(llm, PROMPTS[1:2], plan(repeats=2))
    assert sorted({call[0]["cache_salt"] for call in measured(llm)}) == sorted(
        f"{label}/{repeat}" for label in ("plain", "ngram", "suffix:4") for repeat in (0, 1)
    )


def test_the_second_turn_continues_the_plain_answer():
    class Lying(FakeLLM):
        lies = {"ngram": 0}  # noqa: RUF012

    llm = Lying("m")
    results = runner.run(llm, PROMPTS[:1], plan())
    answer = next(row.text for row in results.rows if row.variant == "plain" and row.turn == 0)
    want = llm.tokenizer.encode(f"user:first question|assistant:{answer}|user:second|")
    assert [call[0]["prompt_token_ids"] for call in measured(llm)][3:] == [want] * 3
    assert [row.equal for row in results.rows if row.variant == "ngram"] == [False, False]


def test_same_seed_for_all_variants_and_another_for_each_prompt():
    llm = FakeLLM("m")
    runner.run(llm, PROMPTS[1:], plan(temperature=1.0, seed=5))
    assert [params.seed for _, params in measured(llm)] == [5, 5, 5, 6, 6, 6]


def test_concurrency_groups_prompts_of_one_task_and_measures_wall_time():
    llm = FakeLLM("m")
    results = runner.run(llm, PROMPTS, plan(concurrency=2))
    plain = [batch for batch in results.batches if batch.variant == "plain"]
    assert [(batch.task, batch.num_tokens) for batch in plain] == [("a", 18), ("a", 9), ("b", 9)]
    cell = report.summarize(results, plan(concurrency=2))["tasks"]["a"]["plain"]
    assert cell["tokens_per_second"] == pytest.approx(27 / (plain[0].seconds + plain[1].seconds))


def test_a_row_may_bring_the_expected_output():
    llm = FakeLLM("m")
    runner.run(llm, [replace(PROMPTS[1], prediction="so it will be")], plan())
    assert {params.prediction for _, params in measured(llm)} == {"so it will be"}


def test_summary_pools_over_tokens():
    summary = report.summarize(runner.run(FakeLLM("m"), PROMPTS, plan()), plan())
    cell = summary["tasks"]["a"]["ngram"]
    assert cell["speedup"] == pytest.approx(2.0)
    assert cell["speedup_low"] == pytest.approx(2.0)
    assert cell["mean_acceptance_length"] == pytest.approx(2.0)
    assert cell["per_position_acceptance"] == [1.0, 0.0]
    assert cell["conditional_acceptance"] == [1.0, 0.0]
    assert summary["tasks"]["b"]["ngram"]["speedup_low"] is None  # one answer has no spread
    assert summary["all"]["plain"]["mean_acceptance_length"] == pytest.approx(1.0)


def test_the_rate_is_pooled_and_not_a_mean_of_rates():
    results = runner.run(FakeLLM("m"), PROMPTS[1:], plan())
    slow = replace(
        results.rows[0],
        stats=replace(results.rows[0].stats, verify_seconds=80.0, draft_seconds=0.0, overhead_seconds=0.0),
    )
    results.rows[0] = slow
    cell = report.summarize(results, plan())["all"]["plain"]
    assert cell["tokens_per_second"] == pytest.approx(16 / 88)


def test_repeats_take_medians_of_times():
    class Slower(FakeLLM):
        def _stats(self, method, count):
            return replace(super()._stats(method, count), verify_seconds=float(len(self.calls)))

    results = runner.run(Slower("m"), PROMPTS[1:2], replace(plan(repeats=3), variants=[runner.PLAIN]))
    assert results.rows[0].stats.verify_seconds == 3.0  # calls 2, 3 and 4


def test_an_answer_of_one_token_gives_no_rate():
    one = replace(plan(), max_tokens=1)
    cell = report.summarize(runner.run(FakeLLM("m"), PROMPTS, one), one)["all"]["ngram"]
    assert cell["speedup"] is None
    assert report.tables(report.summarize(runner.run(FakeLLM("m"), PROMPTS, one), one))


def test_bundle_holds_what_is_needed_to_repeat(tmp_path):
    results = runner.run(FakeLLM("m"), PROMPTS, plan())
    manifest = bundle.manifest({"model": "m"}, plan().arguments())
    bundle.write(str(tmp_path / "out"), manifest, report.summarize(results, plan()), results)
    written = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert written["arguments"]["variants"] == ["plain", "ngram", "suffix:4"]
    assert written["packages"]["torch"]
    rows = [json.loads(line) for line in (tmp_path / "out" / "prompts.jsonl").read_text().splitlines()]
    assert rows[0]["prompt_id"] == "a/0"
    assert len(rows) == len(results.rows)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        bundle.write(str(tmp_path / "file" / "bundle"), {}, {})


def test_raw_prompts_skip_the_chat_template():
    llm = FakeLLM("m")
    assert runner.encode(llm, [{"role": "user", "content": "hi"}], raw=True) == llm.tokenizer.encode("hi")
    llm.tokenizer.has_chat_template = False
    assert runner.encode(llm, [{"role": "user", "content": "hi"}], raw=False) == llm.tokenizer.encode("hi")
