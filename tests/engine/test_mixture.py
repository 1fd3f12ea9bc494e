"""The planner on a mixture of experts: its K against brute force, and steps of a tiny Qwen3-MoE timed by the experts
that they touch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from engine.tiny import EOS, ids, tokenizer
from outrider import LLM, SamplingParams, SpeculationParams
from outrider.core.draft import Draft
from outrider.drafters.estimates import MARGIN
from outrider.engine import planner as module
from outrider.engine.planner import Planner
from outrider.target.costs import CostCurve
from outrider.target.experts import PackedExperts
from outrider.theory.expected import constant_tokens
from outrider.theory.experts import experts_touched
from outrider.theory.speedup import utility

LONGEST = 8
ACCEPTANCES = [at / 20 for at in range(1, 20)]
BATCHES = (1, 2, 4, 8)
ROWS = tuple(range(1, 1 + max(BATCHES) * (1 + LONGEST)))
# experts, chosen by a row, seconds: of what all rows share, to read an expert, of a row's arithmetic
MIXTURES = {
    "Mixtral": (8, 2, 0.030, 0.030, 0.002),
    "Qwen3-MoE": (128, 8, 0.010, 0.0006, 0.0003),
    "tiny": (32, 4, 0.004, 0.0005, 0.0002),
    "experts alone": (64, 8, 0.0, 0.0005, 0.0),
}


def curve_of(name: str, context: int = 0) -> CostCurve:
    experts, chosen, shared, expert, row = MIXTURES[name]
    seconds = [shared + expert * experts_touched(experts, chosen, n) + row * n for n in ROWS]
    return CostCurve(ROWS, tuple(seconds), context)


class Cell:
    """Steps of ``batch`` sequences whose drafts are accepted with probability ``acceptance``, in expectation."""

    def __init__(self, curve: CostCurve, acceptance: float, batch: int) -> None:
        self.acceptance, self.batch, self.curve, self.planner = acceptance, batch, curve, Planner(curve)
        self._seqs: list[Any] = [
            SimpleNamespace(seq_id=number, fixed_tokens=None, planned="") for number in range(batch)
        ]

    def seconds(self, length: int) -> float:
        return self.planner.step_seconds(self.batch * (1 + length))

    def rate(self, length: int) -> float:
        """Expected tokens per second with K = ``length`` in every sequence."""
        return self.batch * constant_tokens(self.acceptance, length) / self.seconds(length)

    @property
    def best(self) -> int:
        """By brute force."""
        return max(range(LONGEST + 1), key=self.rate)

    def kept(self) -> list[int]:
        draft = Draft(tokens=[7] * LONGEST, scores=[self.acceptance] * LONGEST, source="x")
        return [len(each) for each in self.planner.select(self._seqs, [draft] * self.batch)]

    def settled(self) -> list[int]:
        """Kept tokens of every sequence once the going rate is that of the steps."""
        for _ in range(12):
            kept = self.kept()
            tokens = sum(constant_tokens(self.acceptance, length) for length in kept)
            rows = self.batch + sum(kept)
            for _ in range(60):
                self.planner.observe_step(self.batch, rows, self.curve(rows), tokens, self.planner.step_seconds(rows))
        return self.kept()


@pytest.fixture
def unhedged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that just pay are kept: estimates are exact here."""
    monkeypatch.setattr(module, "_SURE", 1.0)


@pytest.mark.usefixtures("unhedged")
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MIXTURES)
def test_the_planner_finds_the_k_of_brute_force(name: str, batch: int) -> None:
    lengths = set()
    for acceptance in ACCEPTANCES:
        cell = Cell(curve_of(name), acceptance, batch)
        gain = cell.rate(cell.best) / cell.rate(0)
        wanted = cell.best if gain > 1.0 + MARGIN else 0  # a hundredth of a token is not worth a draft
        assert cell.settled() == [wanted] * batch, f"acceptance {acceptance}: K = {wanted} is {gain:.3f}x as fast"
        lengths.add(wanted)
    assert {0, LONGEST} <= lengths


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MIXTURES)
def test_what_is_kept_never_slows_down(name: str, batch: int) -> None:
    for acceptance in ACCEPTANCES:
        cell = Cell(curve_of(name), acceptance, batch)
        kept = cell.settled()
        tokens = sum(constant_tokens(acceptance, length) for length in kept)
        assert tokens / cell.planner.step_seconds(batch + sum(kept)) >= cell.rate(0) * (1.0 - 1e-9)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MIXTURES)
def test_leaving_out_rows_that_are_not_sure_to_pay_gives_up_little(name: str, batch: int) -> None:
    for acceptance in ACCEPTANCES:
        cell = Cell(curve_of(name), acceptance, batch)
        kept = cell.settled()
        tokens = sum(constant_tokens(acceptance, length) for length in kept)
        rate = tokens / cell.planner.step_seconds(batch + sum(kept))
        assert rate >= 0.975 * cell.rate(cell.best), f"acceptance {acceptance}: {kept}, the best is {cell.best}"


@pytest.mark.usefixtures("unhedged")
@pytest.mark.parametrize("name", MIXTURES)
def test_speculation_is_off_where_no_draft_has_utility_over_one(name: str) -> None:
    for acceptance in ACCEPTANCES:
        cell = Cell(curve_of(name), acceptance, 1)
        gains = [
            utility(constant_tokens(acceptance, length), cell.seconds(length) / cell.seconds(0))
            for length in range(1, LONGEST + 1)
        ]
        assert any(cell.settled()) is (max(gains) > 1.0 + MARGIN)


def test_drafts_pay_later_on_a_mixture_than_where_rows_read_the_same_weights() -> None:
    mixture = curve_of("experts alone")
    dense = CostCurve((1, 64), (mixture(1), mixture(1) * 1.2))
    assert Cell(mixture, 0.3, 1).settled() == [0]
    assert Cell(dense, 0.3, 1).settled() > [0]


@pytest.mark.parametrize("batch", [1, 8, 32])
def test_a_long_step_of_a_large_batch_is_no_interruption(batch: int) -> None:
    planner = Planner(curve_of("experts alone"))
    plain = planner.step_seconds(batch)
    for _ in range(400):
        planner.prepare([SimpleNamespace(seq_id=n, token_ids=[0]) for n in range(batch)])  # type: ignore[misc]
        planner.observe_step(batch, batch, planner.curve(batch), 4.0 * batch, 2.5 * plain)
    assert planner.speed_up == pytest.approx(1.6, rel=0.01)


class Clock:
    """Seconds that steps would take on a machine whose time goes into reading experts."""

    def __init__(self, llm: LLM, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self._touched = 0
        self._planner, self._layers = llm._engine.planner, config.num_hidden_layers
        self._observe = self._planner.observe_step
        self._engine_step, self._settle = llm._engine.step, self._planner.settle
        monkeypatch.setattr(llm._engine, "step", self._begun)
        monkeypatch.setattr(self._planner, "observe_step", self._observed)
        monkeypatch.setattr(self._planner, "settle", self._settled)
        monkeypatch.setattr(self._planner.crowd, "met", lambda seq, seconds: None)
        monkeypatch.setattr(PackedExperts, "forward", self._counting(PackedExperts.forward))

    def _counting(self, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(experts: PackedExperts, hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
            self._touched += len(index.unique())
            return forward(experts, hidden, index, weights)

        return counted

    def _begun(self) -> Any:
        self._touched = 0
        return self._engine_step()

    def _observed(self, num_sequences: int, rows: int, seconds: float, tokens: float, whole: float) -> None:
        """A step as the engine tells the planner, with this machine's time in the place of the real one's."""
        _, _, shared, expert, row = MIXTURES["tiny"]
        taken = shared + expert * self._touched / self._layers + row * rows
        self.seconds += taken + module._OVERHEAD
        self._observe(num_sequences, rows, taken, tokens, taken + module._OVERHEAD)

    def _settled(self, seqs: Any, rows: int, extra: int, drafting: float, whole: float) -> None:
        """The same of what drafting takes: the drafter knows the text, so nothing."""
        self._settle(seqs, rows, extra, 0.0, self._planner.step_seconds(len(seqs) + rows))

    def time(self, run: Callable[[], Any]) -> tuple[Any, float]:
        """What ``run`` gives, and the seconds of its decoding steps."""
        before = self.seconds
        return run(), self.seconds - before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """A tiny random Qwen3-MoE of four layers with 32 experts each, four of them for a row."""
    experts, chosen = MIXTURES["tiny"][:2]
    words = tokenizer()
    config = Qwen3MoeConfig(
        vocab_size=len(words),
        hidden_size=48,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=4,
        num_experts=experts,
        num_experts_per_tok=chosen,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=EOS,
    )
    torch.manual_seed(0)
    path: Path = tmp_path_factory.mktemp("mixture")
    Qwen3MoeForCausalLM(config).save_pretrained(path)
    words.save_pretrained(path)
    return str(path), config


@pytest.mark.parametrize("claimed", [None, 0.7])
@pytest.mark.parametrize("acceptance", [0.05, 0.3, 0.5, 0.7, 0.95])
def test_a_mixture_is_never_slower_than_plain(
    acceptance: float, claimed: float | None, folder: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, config = folder
    rates = [acceptance] * LONGEST
    spec = {"method": "synthetic", "synthetic_acceptance_rates": rates}
    llm = LLM(path, dtype="float32", threads=1, strict=True, exact=False, speculative_config=spec, max_num_seqs=8)
    planner = llm._engine.planner
    planner.curve = curve_of("tiny", context=64)
    if claimed is not None:  # the drafter thinks that it is better, or worse, than it is
        _claim(llm, claimed)
    clock = Clock(llm, config, monkeypatch)
    for batch in BATCHES:
        prompts = [ids(9, seed) for seed in range(batch)]
        params = [SamplingParams(max_tokens=48, seed=seed, ignore_eos=True, detokenize=False) for seed in range(batch)]
        off = [each.model_copy(update={"speculation": SpeculationParams(enabled=False)}) for each in params]
        plain, slow = clock.time(lambda prompts=prompts, off=off: _texts(llm, prompts, off))
        told = [each.model_copy(update={"prediction": text}) for each, text in zip(params, plain, strict=True)]
        drafted, fast = clock.time(lambda prompts=prompts, told=told: _texts(llm, prompts, told))
        assert drafted == plain
        assert slow / fast >= 0.97, f"{batch} sequences"
        if acceptance == 0.95:
            assert slow / fast > 1.3


def _texts(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]


def _claim(llm: LLM, score: float) -> None:
    """Let the drafter give every token ``score``."""
    drafter: Any = llm._engine.drafting.methods["synthetic"].drafter
    propose = drafter.propose

    def claiming(*arguments: Any) -> list[Draft]:
        return [replace(draft, scores=[score] * len(draft)) for draft in propose(*arguments)]

    drafter.propose = claiming
