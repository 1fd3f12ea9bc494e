"""Costs, agreement, the ranking and the page, on made-up figures."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from outrider.advise import charts
from outrider.advise.agreement import FIGURES, figures
from outrider.advise.answer import Limits, Ranked, deploy, load_schedule, rank, recommend, shared_prefixes
from outrider.advise.candidates import candidates, kind_of_head
from outrider.advise.costs import PLAIN, Timing, fit
from outrider.advise.memory import Memory, Part
from outrider.advise.predict import Prediction, interval
from outrider.advise.prove import Proof
from outrider.advise.reasons import Case, _enough
from outrider.errors import ConfigError
from outrider.target.costs import CostCurve

CURVE = CostCurve((1, 16), (0.010, 0.025))


def _prediction(label: str, k: int, batch: int, speedup: float, tpot: float = 5.0) -> Prediction:
    return Prediction(
        label, k, batch, 2.0, 1.0 + k, 8.0, 1.0, tpot, 200.0, speedup, speedup, speedup, 0.5, [0.5], 0.3, 1
    )


class _Flat:
    """A predictor whose speed-up falls with load, more so for a long draft."""

    def predict(self, candidate: object, k: int, batch: int) -> Prediction:
        return _prediction("ngram", k, batch, 1.0 + 0.1 * k - 0.02 * k * batch)


def test_equal_laws_agree_in_all_figures() -> None:
    scores = torch.randn(50, generator=torch.Generator().manual_seed(0))
    found = dict(zip(FIGURES, figures(scores, scores, 3, 7), strict=True))
    assert found["top1"] == found["shared_noise"] == 1.0
    assert found["kl"] == pytest.approx(0.0, abs=1e-6)
    assert found["overlap"] == found["coverage"] == pytest.approx(1.0, abs=1e-5)


def test_kl_is_over_the_tokens_that_the_draft_knows() -> None:
    p = torch.tensor([0.5, 0.25, 0.25]).log()
    q = torch.tensor([0.5, 0.5, 0.0]).log()
    found = dict(zip(FIGURES, figures(p, q, 0, 0), strict=True))
    assert found["coverage"] == pytest.approx(0.75)
    assert found["overlap"] == pytest.approx(0.75)
    expected = 2 / 3 * math.log((2 / 3) / 0.5) + 1 / 3 * math.log((1 / 3) / 0.5)
    assert found["kl"] == pytest.approx(expected, abs=1e-5)


def test_costs_are_those_of_the_steps() -> None:
    timings = {
        (PLAIN, 0): [Timing(0.0, 0.011, 0.001, 1, 0)] * 40,
        ("ngram", 4): [Timing(0.002, 1.1 * CURVE(5), 0.001, 5, 0)] * 40,
    }
    found = fit(CURVE, timings)
    assert found.verify(PLAIN, 1, 0) == pytest.approx(0.011)
    assert found.verify("ngram", 5, 0) == pytest.approx(1.1 * CURVE(5))
    assert found.beside("ngram", 4) == pytest.approx(0.003)


def test_one_interrupted_step_does_not_count() -> None:
    found = fit(CURVE, {(PLAIN, 0): [Timing(0.0, 0.010, 0.0, 1, 0)] * 19 + [Timing(0.0, 5.0, 0.0, 1, 0)]})
    assert found.verify(PLAIN, 1, 0) == pytest.approx(0.010)


def test_an_interval_narrows_with_the_texts() -> None:
    few = interval([1.0, 1.0, 1.0, 1.0], [0.4, 0.6, 0.8, 1.0])
    many = interval([1.0] * 400, [0.4, 0.6, 0.8, 1.0] * 100)
    assert few[1] - few[0] > 2 * (many[1] - many[0])


def test_the_schedule_covers_all_loads_and_ends_in_plain_decoding() -> None:
    candidate = candidates([], {}, [])[0]
    ranked = Ranked(candidate, {1: _prediction("ngram", 4, 1, 1.3)}, [1, 2, 4])
    rows = load_schedule(ranked, _Flat(), [1, 8])  # type: ignore[arg-type]
    assert rows[0][0] == 1
    assert rows[-1][1] == 8
    assert rows[0][2] == 4
    assert rows[-1][2] == 0
    assert all(after[0] == before[1] + 1 for before, after in pairwise(rows))


def test_an_interval_is_corrected_by_the_proof_as_the_speed_up_is() -> None:
    found = candidates([], {}, [])[:1]
    proof = Proof("ngram", 4, 2.0, 1.5, None, None, 2.0, 2.0, 1, 1, 1)
    memory = Memory(Part(), {"ngram": Part()}, 10)
    ranked = rank(found, [_prediction("ngram", 4, 1, 2.0)], [proof], Limits((1,)), memory)
    assert ranked[0].speedup(1) == pytest.approx(1.5)
    assert ranked[0].interval(1) == pytest.approx((1.5, 1.5))


def test_each_candidate_has_a_deployment_of_its_own() -> None:
    found = candidates([], {}, [])[1]
    ranked = Ranked(found, {1: _prediction(found.label, 4, 1, 1.3)}, [1, 2, 4])
    deployed = deploy(ranked, _Flat(), Limits((1, 8)))  # type: ignore[arg-type]
    assert (deployed.method, deployed.num_speculative_tokens) == (found.method, 4)
    assert deployed.load_schedule[-1] == [*deployed.load_schedule[-1][:2], 0]


def test_few_answers_are_never_enough() -> None:
    ranked = Ranked(candidates([], {}, [])[0], {1: _prediction("ngram", 4, 1, 1.3)})
    for count, words in ((1, "1 answer is too few"), (7, "7 answers are too few"), (8, "8 answers are enough")):
        screen = SimpleNamespace(texts=[None] * count, num_left_out=0)
        chosen = SimpleNamespace(label="ngram")
        case = Case([ranked], chosen, None, screen, None, None, Limits((1,)))  # type: ignore[arg-type]
        assert next(_enough(case)).startswith(words)


def test_what_does_not_fit_is_not_recommended() -> None:
    found = [each for each in candidates([], {}, []) if each.label in ("ngram", "eagle3")]
    predictions = [_prediction("ngram", 4, 1, 1.2), _prediction("eagle3", 4, 1, 1.9)]
    memory = Memory(Part(100, 1), {"eagle3": Part(1000, 1), "ngram": Part()}, 10)
    ranked = rank(found, predictions, [], Limits((1,), memory=500), memory)
    assert [each.candidate.label for each in ranked] == ["ngram", "eagle3"]
    assert "GB" in ranked[1].out
    assert recommend(ranked, _Flat(), Limits((1,))).method == "ngram"  # type: ignore[arg-type]


def test_nothing_is_recommended_where_nothing_pays() -> None:
    found = [each for each in candidates([], {}, []) if each.label == "ngram"]
    memory = Memory(Part(), {}, 10)
    ranked = rank(found, [_prediction("ngram", 4, 1, 0.9)], [], Limits((1,)), memory)
    assert recommend(ranked, _Flat(), Limits((1,))).method is None  # type: ignore[arg-type]


def test_prefixes_are_shared_from_their_beginning() -> None:
    assert shared_prefixes([[1] * 32, [1] * 32]) == pytest.approx(0.5)
    assert shared_prefixes([[1] * 32, [2] + [1] * 31]) == 0.0


def test_candidates_without_any_given_are_training_free_and_shipped() -> None:
    labels = [each.label for each in candidates([], {}, [])]
    assert {"ngram", "suffix", "token_recycling", "eagle3", "eagle3 tree"} <= set(labels)
    given = [each.label for each in candidates(["a", "b"], {}, [])]
    assert "draft_model a" in given
    assert "eagle3" not in given


def test_the_users_setting_of_a_method_counts() -> None:
    found = candidates([], {}, [{"method": "ngram", "prompt_lookup_max": 3}])
    (ngram,) = [each for each in found if each.label == "ngram"]
    assert ngram.config.prompt_lookup_max == 3


def test_a_folder_without_a_head_is_refused(tmp_path: object) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        kind_of_head(str(tmp_path))


def test_charts_do_not_take_names_for_markup() -> None:
    drawn = charts.bars([("<b>", 1.2, 1.0, 1.4, None)], "<x>")
    assert "<b>" not in drawn
    assert "<x>" not in drawn
