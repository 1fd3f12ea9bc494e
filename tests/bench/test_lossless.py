"""The check: what counts as equal, as a tie, as a bug."""

from __future__ import annotations

import pytest

from fake_llm import FakeLLM
from outrider.bench import lossless, runner
from outrider.bench.data import Prompt
from outrider.core.noise import gumbel_scalar, noise_key
from outrider.errors import ConfigError

NGRAM = runner.Variant("ngram", "ngram")
PROMPTS = [Prompt("a/0", "a", ("first question", "second")), Prompt("b/0", "b", ("third",))]


class Lying(FakeLLM):
    """Speculation answers another token at output position 3; plain decoding prefers its own by ``gap``."""

    exact = False
    lies = {"ngram": 3}  # noqa: RUF012
    gap = 0.0
    noise = 0.0

    def logprob(self, method, token):
        shift = self.noise if len(self.calls) % 2 else 0.0
        return (-1.0 if token % 2 else -1.0 - self.gap) + shift


class Loud(FakeLLM):
    """Plain decoding in a batch has other bits than one at a time."""

    exact = False

    def generate(self, prompts, sampling_params=None, use_tqdm=True):
        self.batch = len(prompts)
        return super().generate(prompts, sampling_params, use_tqdm)

    def logprob(self, method, token):
        return -1.0 + 0.001 * (self.batch > 1)


def plan(**values):
    return lossless.Plan(variants=[NGRAM], verifiers={"ngram": "sample"}, max_tokens=6, **values)


def bugs(llm, **values):
    outcome = lossless.run(llm, PROMPTS, plan(**values))
    return {(c.variant, c.temperature, c.concurrency): c.count("bug") for c in outcome.comparisons}


def test_equal_answers_pass_at_every_temperature_and_batch():
    outcome = lossless.run(FakeLLM("m"), PROMPTS, plan())
    assert [(c.variant, c.temperature, c.concurrency) for c in outcome.comparisons] == [
        ("ngram", 0.0, 1),
        ("plain", 0.0, 8),
        ("ngram", 0.0, 8),
        ("ngram", 1.0, 1),
        ("plain", 1.0, 8),
        ("ngram", 1.0, 8),
    ]
    assert all(c.num_equal == c.num_answers == 3 for c in outcome.comparisons)
    assert outcome.num_bugs == 0


def test_drafters_that_follow_an_expected_output_get_one_that_is_nearly_right():
    llm = FakeLLM("m")
    lossless.run(llm, PROMPTS[1:], lossless.Plan([NGRAM], {}, max_tokens=20, temperatures=[0.0], concurrencies=[1]))
    (_, plain), (_, other) = llm.calls
    right = llm._answer(llm.calls[0][0], plain).outputs[0].token_ids
    assert plain.prediction is None
    assert [i for i in range(20) if other.prediction[i] != right[i]] == [7, 15]


def test_any_divergence_on_the_exact_path_is_a_bug():
    class Exact(Lying):
        exact = True

    assert bugs(Exact("m"), temperatures=[0.0], concurrencies=[1]) == {("ngram", 0.0, 1): 3}


def test_other_bits_of_a_logprob_on_the_exact_path_are_a_bug():
    class Bits(FakeLLM):
        def logprob(self, method, token):
            return -1.0 if method is None else -1.0000001

    assert bugs(Bits("m"), temperatures=[0.0], concurrencies=[1]) == {("ngram", 0.0, 1): 3}


def test_a_gap_within_the_noise_is_a_tie_and_over_it_a_bug():
    # the measured noise is 0 here: only equal scores are a tie
    outcome = lossless.run(Lying("m"), PROMPTS, plan(temperatures=[0.0], concurrencies=[1]))
    (comparison,) = outcome.comparisons
    assert [d.kind for d in comparison.divergences] == ["tie"] * 3
    assert {d.position for d in comparison.divergences} == {3}

    class Wide(Lying):
        gap = 0.5

    assert bugs(Wide("m"), temperatures=[0.0], concurrencies=[1]) == {("ngram", 0.0, 1): 3}


def test_noise_is_measured_between_plain_runs():
    outcome = lossless.run(Loud("m"), PROMPTS, plan(temperatures=[0.0]))
    assert outcome.noise == pytest.approx(0.001)
    assert outcome.num_bugs == 0


def test_at_a_temperature_the_shared_noise_belongs_to_the_gap():
    # equal logprobs, so the gap is that of the noise alone: far over the tolerance
    outcome = lossless.run(Lying("m"), PROMPTS[1:], plan(temperatures=[1.0], concurrencies=[1], seed=7))
    ((divergence,),) = [c.divergences for c in outcome.comparisons]
    length = len(FakeLLM("m").tokenizer.encode("user:third|")) + 3
    key = noise_key(7, 0)
    plain, other = divergence.plain_token, divergence.other_token
    assert divergence.kind == "bug"
    assert divergence.gap == pytest.approx(abs(gumbel_scalar(key, length, plain) - gumbel_scalar(key, length, other)))


def test_another_finish_reason_is_a_bug():
    class Finish(FakeLLM):
        def _answer(self, prompt, params):
            output = super()._answer(prompt, params)
            if params.speculation.enabled:
                output.outputs[0].finish_reason = "stop"
            return output

    assert bugs(Finish("m"), temperatures=[0.0], concurrencies=[1]) == {("ngram", 0.0, 1): 3}


def test_an_answer_that_ends_early_is_a_bug():
    class Short(FakeLLM):
        exact = False

        def _answer(self, prompt, params):
            output = super()._answer(prompt, params)
            if params.speculation.enabled:
                del output.outputs[0].token_ids[4:]
            return output

    outcome = lossless.run(Short("m"), PROMPTS, plan(temperatures=[0.0], concurrencies=[1]))
    assert {d.reason for c in outcome.comparisons for d in c.divergences} == {"one answer ends where the other goes on"}


def test_classical_rules_are_not_compared_token_by_token_above_zero():
    rejection = lossless.Plan([NGRAM], {"ngram": "rejection"}, max_tokens=6, concurrencies=[1])
    outcome = lossless.run(FakeLLM("m"), PROMPTS, rejection)
    assert [c.skipped is None for c in outcome.comparisons] == [True, False]
    assert "in law" in (outcome.comparisons[1].skipped or "")


def test_a_lossy_rule_is_refused():
    with pytest.raises(ConfigError, match="lossy"):
        lossless.run(FakeLLM("m"), PROMPTS, lossless.Plan([NGRAM], {"ngram": "typical"}))


def test_the_report_shows_what_became_what():
    outcome = lossless.run(Lying("m"), PROMPTS, plan(temperatures=[0.0]))
    *_, last = lossless.report(outcome, decode=lambda token: f"<{token}>")
    assert outcome.comparisons[0].num_draft_tokens == 2 * outcome.comparisons[0].num_accepted_draft_tokens > 0
    lines = [line for line in lossless.report(outcome, decode=lambda token: f"<{token}>") if isinstance(line, str)]
    assert lines[0].startswith("tie: ngram, T = 0, batch 1, a/0 turn 1, token 3: '<")
    assert str(last).endswith("no bug")


def test_the_report_says_what_was_not_compared_and_what_was_not_drafted():
    class Idle(FakeLLM):
        def _method(self, params):
            return None

    rejection = lossless.Plan([NGRAM], {"ngram": "rejection"}, max_tokens=6, concurrencies=[1])
    lines = [line for line in lossless.report(lossless.run(Idle("m"), PROMPTS, rejection)) if isinstance(line, str)]
    assert lines[0] == "nothing was drafted: ngram, T = 0, batch 1"
    assert lines[1].startswith("not compared: ngram, T = 1, batch 1: rejection equals")
