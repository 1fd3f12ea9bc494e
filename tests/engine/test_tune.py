"""Tuning: agreement is that of the engine, the best set is found and read back by the method."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from engine.tiny import Models, ids
from outrider import LLM, SamplingParams
from outrider.errors import ConfigError, RequestError
from outrider.target.costs import CostCurve
from outrider.target.skip import skip_mask
from outrider.tune import agreement, layer_skip, run
from outrider.tune.agreement import DEPTH, Agreement, Costs, Text

PROMPTS = [ids(9), ids(17, period=5), ids(30, seed=4)]
GREEDY = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True)


def texts(llm: LLM) -> list[Text]:
    answers = llm.generate(PROMPTS, GREEDY)
    return [
        Text([*prompt, *answer.outputs[0].token_ids], len(prompt))
        for prompt, answer in zip(PROMPTS, answers, strict=True)
    ]


def test_nothing_skipped_always_agrees(models: Models) -> None:
    llm = models.llm()
    asked = Agreement(llm._engine.target, texts(llm))
    assert asked.survival(bytes(2)) == [1.0] * DEPTH
    assert asked.num_chains == 3 * (60 // DEPTH)


@pytest.mark.parametrize("mlp", [[0], [1]])
def test_agreement_is_the_engines_acceptance(models: Models, mlp: list[int]) -> None:
    """Chains of one token from the same roots: what the engine accepts of them."""
    llm = models.fresh(
        {"method": "layer_skip", "skip_mlp_layers": mlp, "draft_stop_threshold": 0.0, "num_speculative_tokens": DEPTH}
    )
    target, checked = llm._engine.target, 0
    for prompt in PROMPTS:
        tokens = [*prompt, *models.plain(prompt, GREEDY).outputs[0].token_ids]
        for length in range(len(prompt) + 1, len(tokens) - DEPTH, DEPTH):
            request = llm._factory.request("r", tokens[: length - 1], GREEDY)  # its first token is the chain's root
            request.start()
            (seq,) = request.sequences
            while seq.stats.num_steps == 0:
                llm._engine.step()
            request.abort()
            alone = Agreement(target, [Text(tokens[: length + DEPTH], length - 1)])
            assert alone.num_chains == 1
            assert sum(alone.survival(skip_mask(2, (), mlp))) == seq.stats.num_accepted_draft_tokens
            checked += 1
    assert checked > 15


def test_answers_that_are_too_short_are_refused(models: Models) -> None:
    with pytest.raises(RequestError, match="raise --max-tokens"):
        Agreement(models.llm()._engine.target, [Text(ids(20), 14)])


def fixed(costs: Costs, **values: Any) -> Costs:
    for name, value in values.items():
        setattr(costs, name, value)
    return costs


def test_the_speedup_is_tokens_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "OVERHEAD", 0.0)
    costs = fixed(Costs.__new__(Costs), verify=CostCurve((1, 9), (1.0, 1.8)), _rest=0.1, _attention=0.05, _mlp=0.15)
    assert costs.draft(bytes([0, 1, 2, 3])) == pytest.approx(0.1 + 2 * 0.05 + 2 * 0.15)
    speedup, count = costs.speedup(bytes([3, 3]), [0.9, 0.8, 0.0, 0.0])
    assert count == 2
    assert speedup == pytest.approx((1 + 0.9 + 0.8) / (2 * 0.1 + 1.2))


def test_the_cost_of_sublayers_is_fitted(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_one_row", lambda target, masks: [10.0, 6.0, 5.0, 1.0])
    monkeypatch.setattr(agreement, "curve_of", lambda target: CostCurve((1, 2), (1.0, 1.1)))
    costs = Costs(models.llm()._engine.target)
    assert costs.draft(bytes([3, 3])) == pytest.approx(0.1)
    assert costs.draft(bytes([1, 1])) == pytest.approx(0.6)
    assert costs.draft(bytes([2, 2])) == pytest.approx(0.5)
    assert costs.draft(bytes([1, 2])) == pytest.approx(0.55)


def test_costs_grow_with_what_is_left(models: Models) -> None:
    costs = Costs(models.llm()._engine.target)
    assert costs.draft(bytes(2)) == pytest.approx(costs.verify(1))
    assert 0 < costs.draft(bytes([3, 3])) <= costs.draft(bytes([1, 3])) <= costs.draft(bytes(2))


def test_the_best_set_is_found_and_used(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path))
    monkeypatch.setattr(layer_skip, "Costs", lambda target: fixed(
        Costs.__new__(Costs), verify=CostCurve((1, 9), (1.0, 1.01)), _rest=0.01, _attention=0.2, _mlp=0.2
    ))  # fmt: skip
    file = tmp_path / "prompts.txt"
    file.write_text("the cat\nof the thing\n")
    llm = models.fresh()
    plan = run.Plan([file], None, 60, raw=True, trials=16, seed=0, out=None)
    result = run.layer_skip(llm, plan)
    target = llm._engine.target
    asked = run_texts(llm, file)
    values = {}
    for bits in range(16):  # every set
        mask = bytes([bits & 3, bits >> 2])
        values[mask] = layer_skip.Costs(target).speedup(mask, Agreement(target, asked).survival(mask))[0]
    found = skip_mask(2, result["skip_attention_layers"], result["skip_mlp_layers"])
    assert result["expected_speedup"] == pytest.approx(values[found], abs=1e-3)
    assert values[found] >= sorted(values.values())[-3]
    assert json.loads(Path(result["file"]).read_text())["num_chains"] == result["num_chains"]
    again = models.fresh({"method": "layer_skip"})  # finds the file by itself
    drafter: Any = again._engine.drafting.methods["layer_skip"].drafter
    assert drafter.skip == found


def run_texts(llm: LLM, file: Path) -> list[Text]:
    tokenizer = llm.get_tokenizer()
    out = []
    for line in file.read_text().splitlines():
        tokens = tokenizer.encode(line)
        answer = llm.generate([tokens], SamplingParams(max_tokens=60, temperature=0.0))[0].outputs[0]
        out.append(Text([*tokens, *answer.token_ids], len(tokens)))
    return out


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "optuna":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"tune needs the library optuna: pip install 'outrider\[tune\]'"):
        layer_skip.require_optuna()


@pytest.mark.parametrize(("sublayers", "trials"), [(60, 200), (60, 1), (4, 16), (2, 3)])
def test_the_first_trials_skip_more_and_more(sublayers: int, trials: int) -> None:
    starts = layer_skip._starts(sublayers, trials)
    assert starts == sorted(starts)
    assert 1 <= len(starts) <= max(1, trials // 2)
    assert 0 <= starts[0] <= starts[-1] <= sublayers
