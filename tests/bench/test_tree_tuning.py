"""Calibration of static trees: what is counted, and that the file is one that the engine reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.tiny import Models
from outrider import SamplingParams
from outrider.bench import tree_tuning
from outrider.bench.data import Prompt
from outrider.bench.tree_tuning import RankCounts, calibrate, comb
from outrider.core.draft import Draft
from outrider.drafters.static_trees import read_table
from outrider.errors import ConfigError

COMB = Draft(tokens=[5, 6, 7, 8, 9, 4], parents=[-1, -1, -1, 0, 0, 0])


@pytest.mark.parametrize(
    ("emitted", "trials", "hits"),
    [
        ([5, 9, 1], [1, 1], [[1, 0, 0], [0, 1, 0]]),
        ([6, 9], [1, 0], [[0, 1, 0], [0, 0, 0]]),
        ([3], [1, 0], [[0, 0, 0], [0, 0, 0]]),
        ([5, 3], [1, 1], [[1, 0, 0], [0, 0, 0]]),
        ([], [0, 0], [[0, 0, 0], [0, 0, 0]]),
    ],
)
def test_ranks_are_counted_along_what_was_emitted(emitted: list[int], trials: list[int], hits: list[list[int]]) -> None:
    counts = RankCounts(2, 3)
    counts(COMB, emitted)
    assert (counts.trials, counts.hits) == (trials, hits)


def test_a_level_that_was_cut_short_is_not_counted() -> None:
    counts = RankCounts(2, 3)
    counts(COMB.keep([0, 1]), [5, 9])
    assert counts.trials == [0, 0]


def test_a_run_writes_a_table_for_its_models(tmp_path_factory: Any, tmp_path: Path) -> None:
    models = Models(tmp_path_factory.mktemp("tuning"))
    llm = models.fresh(comb("draft", 3, 2))
    prompts = [Prompt("a", "x", ("the cab in the",)), Prompt("b", "x", ("abc abc",))]
    table = calibrate(llm, prompts, SamplingParams(temperature=0.0, max_tokens=20), raw=True)
    assert not llm._engine.planner.watchers
    assert table.trials[0] > table.trials[2] > 0
    assert all(sum(row) <= count for row, count in zip(table.hits, table.trials, strict=True))
    assert sum(map(sum, table.hits)) > 0
    path = str(tmp_path / "tree.json")
    table.write(path)
    assert read_table(path) == table
    static = {"method": "draft_model", "model": "draft", "tree_kind": "static", "tree_file": path}
    output = models.fresh(static).generate("the cab", SamplingParams(temperature=0.0, max_tokens=8))[0]
    assert output.stats.num_draft_tokens > 0
    with pytest.raises(ConfigError, match="made for the draft model"):
        models.fresh({**static, "model": "long draft"})
    assert [part.row_count for part in tree_tuning.report(table)] == [3, len(tree_tuning.SIZES)]
