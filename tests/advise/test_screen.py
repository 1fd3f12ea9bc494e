"""The screen against the engine: the same prompts, the same counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.tiny import folders
from outrider import LLM, SamplingParams
from outrider.advise import candidates, rig, screen
from outrider.advise.costs import speculation
from outrider.advise.panel import RECYCLED, recycled
from outrider.advise.walks import pooled
from outrider.bench.data import Prompt
from outrider.core.accounting import SpeculationStats
from outrider.core.draft import EMPTY, Draft, Probes
from outrider.drafters.token_recycling import Adjacency

PROMPTS = [
    Prompt(f"t/{at}", "t", (text,)) for at, text in enumerate(("the abc the abc the", "in of the in of", "abab"))
]
TOKENS = 24


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module", params=[0.0, 1.0])
def run(request: pytest.FixtureRequest, models: dict[str, str]) -> Iterator[tuple[rig.Rig, screen.Screen]]:
    found = candidates.candidates([models["draft"]], {}, [])
    wanted = [each for each in found if each.method in ("ngram", "draft_model")]
    with LLM(models["target"], threads=1, kv_cache_tokens=4096) as llm:
        bench = rig.assemble(llm, wanted, max_num_seqs=16, seed=0, every=2)
        plan = screen.Plan(TOKENS, request.param, raw=True)
        yield bench, screen.run(bench, PROMPTS, plan, lambda done, total: None)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("label", ["ngram", "draft_model"])
def test_a_walk_counts_what_the_engine_counts(run: tuple[rig.Rig, screen.Screen], label: str, k: int) -> None:
    bench, seen = run
    stats = []
    for number, prompt in enumerate(PROMPTS):
        params = SamplingParams(
            temperature=seen.plan.temperature, max_tokens=TOKENS, seed=number, speculation=speculation(label, k)
        )
        (answer,) = bench.llm.generate([prompt.turns[0]], params, use_tqdm=False)
        assert list(answer.outputs[0].token_ids) == seen.texts[number].answer_ids
        stats.append(answer.stats)
    engine = SpeculationStats.pooled(stats)
    mine = pooled(text.tally(label, k, TOKENS, chain=True) for text in seen.texts)
    assert mine.num_steps == engine.num_steps
    assert mine.num_tokens == engine.num_committed_tokens
    assert mine.num_draft_tokens == engine.num_draft_tokens
    assert abs(mine.num_accepted - engine.num_accepted_draft_tokens) <= len(PROMPTS)  # behind the end of an answer
    assert mine.num_draft_tokens > 0 or label == "ngram"


def test_laws_are_compared_for_drafts_that_have_one(run: tuple[rig.Rig, screen.Screen]) -> None:
    _, seen = run
    heard = [text.agreement for text in seen.texts]
    assert all(set(each) <= {"draft_model"} for each in heard)
    (mean,) = [each["draft_model"].means() for each in heard[:1]]
    assert mean is not None
    assert 0.0 < mean["overlap"] <= 1.0 + 1e-6


def test_a_draft_that_cannot_load_is_left_out_with_the_reason(models: dict[str, str], tmp_path: Path) -> None:
    found = [
        each
        for each in candidates.candidates([str(tmp_path / "missing")], {}, [])
        if each.method in ("ngram", "draft_model")
    ]
    with LLM(models["target"], threads=1, kv_cache_tokens=1024) as llm:
        bench = rig.assemble(llm, found, max_num_seqs=2, seed=0)
    assert [each.label for each in bench.candidates] == ["ngram"]
    assert "draft_model" in bench.refused


def test_the_first_nodes_of_a_draft_become_probes() -> None:
    chain = recycled(Draft([5, 6, 7, 8]))
    assert chain.probes == Probes([5, 6, 7], range(-1, 2))
    tree = recycled(Draft([5, 6], parents=[-1, -1]))
    assert tree.probes == Probes([5, 6], [-1, -1])
    own = Draft([5], probes=Probes([9], [-1]))
    assert recycled(own) is own
    assert recycled(EMPTY) is EMPTY


def test_a_drafter_that_recycles_rows_sees_rows_of_drafts_in_the_screen(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    update = Adjacency.update

    def counted(self: Adjacency, tokens: Sequence[int], top: Any) -> None:
        rows.append(len(tokens))
        update(self, tokens, top)

    monkeypatch.setattr(Adjacency, "update", counted)
    found = [each for each in candidates.candidates([], {}, []) if each.method == "token_recycling"]
    with LLM(models["target"], threads=1, kv_cache_tokens=4096) as llm:
        bench = rig.assemble(llm, found, max_num_seqs=16, seed=0)
        seen = screen.run(bench, PROMPTS, screen.Plan(TOKENS, 1.0, raw=True), lambda done, total: None)
    assert max(rows) == 1 + RECYCLED
    assert len(rows) >= sum(len(text.answer_ids) - 1 for text in seen.texts) > len(PROMPTS)
