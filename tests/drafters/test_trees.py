"""Tree shapes against brute force, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.config import SpeculativeConfig
from outrider.core.draft import Draft
from outrider.drafters import registry
from outrider.drafters.static_trees import AcceptanceTable, StaticTree, best_tree, read_table
from outrider.drafters.trees import Comb, Dynamic, Growth, Paths, Shape, Static, Widths
from outrider.errors import ConfigError

quick = settings(max_examples=60, deadline=None)
rows = st.lists(st.floats(0.0, 0.6), min_size=1, max_size=3)


def subtrees(acceptance: Sequence[Sequence[float]], depth: int, count: int) -> Iterator[float]:
    """The value of every forest of at most ``count`` nodes below a node at ``depth``."""
    ranks = len(acceptance[depth]) if depth < len(acceptance) else 0
    yield 0.0
    for children in range(1, min(ranks, count) + 1):
        for sizes in itertools.product(range(1, count + 1), repeat=children):
            if sum(sizes) > count:
                continue
            below = [list(subtrees(acceptance, depth + 1, size - 1)) for size in sizes]
            yield sum(acceptance[depth][rank] * (1.0 + max(values)) for rank, values in enumerate(below))


def value(tree: StaticTree, acceptance: Sequence[Sequence[float]]) -> float:
    chances: list[float] = []
    for node, depth in enumerate(tree.depths()):
        above = chances[tree.parents[node]] if tree.parents[node] >= 0 else 1.0
        chances.append(above * acceptance[depth - 1][tree.ranks[node]])
    return sum(chances)


@quick
@given(acceptance=st.lists(rows, min_size=1, max_size=3), nodes=st.integers(1, 6))
def test_the_static_tree_is_the_best_of_all(acceptance: list[list[float]], nodes: int) -> None:
    tree = best_tree(acceptance, nodes)
    assert len(tree.parents) <= nodes
    assert value(tree, acceptance) == pytest.approx(tree.value)
    assert tree.value == pytest.approx(max(subtrees(acceptance, 0, nodes)))
    for node in range(-1, len(tree.parents)):
        assert [tree.ranks[child] for child in tree.children(node)] == list(range(len(tree.children(node))))


def test_a_good_third_child_is_worth_a_bad_second_one() -> None:
    assert best_tree([[0.4, 0.0, 0.5]], 3).value == pytest.approx(0.9)
    assert len(best_tree([[0.4, 0.0, 0.5]], 2).parents) == 1


class Law:
    """Scores of the children of any path, best first: random, but a function of the path."""

    def __init__(self, seed: int, vocab: int) -> None:
        self._seed, self._vocab = seed, vocab

    def __call__(self, path: Sequence[int]) -> list[float]:
        import random

        drawn = random.Random(repr((self._seed, tuple(path))))
        weights = sorted((drawn.random() ** 3 + 1e-3 for _ in range(self._vocab)), reverse=True)
        return [weight / sum(weights) for weight in weights]


def grow(shape: Shape, law: Law, budget: int) -> tuple[Growth, Draft]:
    """What a drafter does, without a model: token ``rank`` is the child of that rank."""
    growth, depth = Growth(budget, shape.levels(budget)), 0
    shape.start(growth)
    expanded = 0
    while growth.frontier and depth < growth.levels and len(growth.tokens) < shape.limit(budget):
        first = len(growth.tokens)
        expanded += len(growth.frontier)
        for node in growth.frontier:
            scores = law([growth.tokens[n] for n in growth.path(node)])
            room = shape.limit(budget) - len(growth.tokens)
            for rank in range(min(shape.width(growth, node, depth, False), room, len(scores))):
                growth.add(node, shape.place(growth, node, rank), rank, scores[rank], None, 1)
        growth.frontier = shape.frontier(growth, range(first, len(growth.tokens)))
        depth += 1
    assert expanded <= shape.rows(budget) + 1
    draft, kept = growth.draft(False, "x"), shape.kept(growth)
    return growth, draft if kept is None else draft.keep(kept)


def reached(draft: Draft) -> dict[tuple[int, ...], float]:
    """Path probability of every node, by its tokens."""
    out = {}
    assert draft.scores is not None
    for node in range(len(draft)):
        chance = 1.0
        for above in draft.path(node):
            chance *= draft.scores[above]
        out[tuple(draft.tokens[n] for n in draft.path(node))] = chance
    return out


def everything(law: Law, vocab: int, depth: int) -> dict[tuple[int, ...], float]:
    """Path probability of every path of the full tree."""
    out: dict[tuple[int, ...], float] = {}
    for length in range(1, depth + 1):
        for path in itertools.product(range(vocab), repeat=length):
            out[path] = out.get(path[:-1], 1.0) * law(path[:-1])[path[-1]]
    return out


@quick
@given(seed=st.integers(0, 999), nodes=st.integers(1, 10), depth=st.integers(1, 4))
def test_the_dynamic_tree_is_the_top_n_of_the_full_tree(seed: int, nodes: int, depth: int) -> None:
    law = Law(seed, 4)
    _, draft = grow(Dynamic(nodes, depth, topk=nodes), law, nodes)
    full = everything(law, 4, depth)
    best = sorted(full.values(), reverse=True)[:nodes]
    assert sorted(reached(draft).values(), reverse=True) == pytest.approx(best)


@quick
@given(seed=st.integers(0, 999), nodes=st.integers(1, 12), topk=st.integers(1, 3), depth=st.integers(1, 4))
def test_a_narrow_dynamic_tree_is_the_top_n_of_what_the_beam_sees(seed: int, nodes: int, topk: int, depth: int) -> None:
    law = Law(seed, 4)
    growth, draft = grow(Dynamic(nodes, depth, topk), law, nodes)
    seen: dict[tuple[int, ...], float] = {}
    beam: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for _ in range(depth):
        below = [((*path, rank), chance * law(path)[rank]) for path, chance in beam for rank in range(topk)]
        seen.update(below)
        beam = sorted(below, key=lambda item: -item[1])[:topk]
    best = sorted(seen.values(), reverse=True)[:nodes]
    assert sorted(reached(draft).values(), reverse=True) == pytest.approx(best)
    draft.check(4, nodes)  # a parent stands before its children
    assert len(growth.tokens) <= Dynamic(nodes, depth, topk).limit(nodes)


def test_growth_ends_with_the_level_that_adds_too_little() -> None:
    for seed in range(20):
        law, expected = Law(seed, 4), [0.0]
        for depth in range(1, 6):
            _, draft = grow(Dynamic(8, depth, 8), law, 8)
            expected.append(sum(reached(draft).values()))
        gains = [after - before for before, after in itertools.pairwise(expected)]
        assert gains == sorted(gains, reverse=True)
        _, draft = grow(Dynamic(8, 5, 8, min_gain=0.2), law, 8)
        levels = next((level for level, gain in enumerate(gains, 1) if gain <= 0.2), 5)
        assert sum(reached(draft).values()) == pytest.approx(expected[levels])


@quick
@given(seed=st.integers(0, 99), nodes=st.integers(1, 12), budget=st.integers(1, 12))
def test_a_static_tree_grows_as_planned(seed: int, nodes: int, budget: int) -> None:
    acceptance = [[0.6, 0.2, 0.1], [0.5, 0.2], [0.4, 0.1]]
    _, draft = grow(Static(acceptance, nodes, 3), Law(seed, 4), budget)
    tree = best_tree(acceptance, min(nodes, budget))
    paths = []
    for node in range(len(tree.parents)):
        above = paths[tree.parents[node]] if tree.parents[node] >= 0 else ()
        paths.append((*above, tree.ranks[node]))
    assert set(reached(draft)) == set(paths)


@pytest.mark.parametrize(
    "shape",
    [
        Paths(),
        Paths(3),
        Widths([3, 2, 1]),
        Comb(3, 4),
        Static([[0.5, 0.2]] * 4, 9, 4),
        Dynamic(9, 4, 3),
    ],
)
def test_sizes_and_times_grow_with_the_levels(shape: Shape) -> None:
    sizes = [shape.nodes(level) for level in range(shape.max_levels or 5)]
    assert sizes[0] == 0
    assert sizes == sorted(sizes)
    times = [shape.seconds(size, lambda rows: 1.0 + rows / 10) for size in sizes]
    assert times[0] == 0.0
    assert times == sorted(times)


def config(**values: Any) -> SpeculativeConfig:
    return SpeculativeConfig(**{"method": "draft_model", "model": "x", **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tree_kind": "widths"}, "tree: tree_kind 'widths' needs it"),
        ({"tree_kind": "static"}, "tree_file: tree_kind 'static' needs it; write one with `outrider tune tree`"),
        ({"tree_kind": "dynamic", "tree": [2]}, "tree: it is used by tree_kind widths"),
        ({"tree_kind": "dynamic", "tree_file": "x"}, "tree_file: it is used by tree_kind static"),
        ({"tree_nodes": 4}, "tree_nodes: it is used by tree_kind static or dynamic; set tree_kind"),
        ({"tree_kind": "dynamic", "num_paths": 2}, "tree_kind: .* does not go with num_paths"),
        ({"tree_kind": "dynamic", "verifier": "rejection"}, "tree_kind: .* would bias the text; use verifier 'sample'"),
        ({"tree_kind": "dynamic", "verifier": "traversal"}, "tree_kind: .* would bias the text"),
        ({"tree_kind": "static", "tree_file": "x", "verifier": "block"}, "tree_kind: .* chains only; leave tree_kind"),
        ({"tree_kind": "static", "tree_file": "x", "verifier": "kseq"}, "tree: .* set num_paths instead"),
        ({"method": "specinfer", "model": None}, "models: method 'specinfer' needs it"),
        ({"method": "specinfer", "model": None, "models": ["a", "b"], "verifier": "kseq"}, "models: .* name one model"),
        ({"method": "specinfer", "model": None, "models": ["a"], "num_paths": 2}, "num_paths is not used by method"),
        ({"method": "spectr", "tree": [2]}, "setting tree is not used by method 'spectr'"),
        ({"method": "ngram", "model": None, "tree_kind": "dynamic"}, "setting tree_kind is not used by method 'ngram'"),
    ],
)
def test_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.check(config(**values))


@pytest.mark.parametrize("rule", ["sample", "rejection", "traversal", "kseq"])
def test_several_rules_take_spectr(rule: str) -> None:
    registry.check(config(method="spectr", verifier=rule))


def test_spectr_verifies_with_kseq_and_four_paths_unless_told_otherwise() -> None:
    given_nothing = config(method="spectr")
    assert (given_nothing.verifier, given_nothing.num_paths) == ("kseq", 4)
    assert "verifier" not in given_nothing.model_fields_set
    assert config(method="spectr", verifier="sample", num_paths=2).verifier == "sample"
    assert config(method="draft_model").verifier == "sample"


def test_every_model_of_specinfer_has_a_config_of_its_own() -> None:
    both = SpeculativeConfig(
        method="specinfer", models=["a", {"model": "b", "draft_dtype": "int8"}], tree=[2, 1], draft_dtype="int4"
    )
    first, second = both.members
    assert (first.model, first.draft_dtype, first.tree) == ("a", "int4", [2, 1])
    assert (second.model, second.draft_dtype, second.tree) == ("b", "int8", [2, 1])
    assert list(registry.everyone(both)) == [both, first, second]
    assert both.members == both.members


def test_a_depth_without_children_is_refused() -> None:
    with pytest.raises(ConfigError, match="every depth needs one child or more"):
        config(tree=[2, 0])


def test_tables_are_written_and_read(tmp_path: Path) -> None:
    table = AcceptanceTable("a", "b", 0.0, [100, 50], [[60, 20], [30, 5]], prompts=3)
    table.write(tmp_path / "t.json")
    assert read_table(str(tmp_path / "t.json")) == table
    first, second = table.acceptance
    assert first[0] == pytest.approx((60 + 20 * 0.6) / 120)
    assert second[1] == pytest.approx((5 + 20 * 25 / 150) / 70)
    for text, message in (("{}", "no acceptance table"), ("[", "no acceptance table"), (None, "cannot be read")):
        path = tmp_path / "other.json"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_table(str(path))
    AcceptanceTable("a", "b", 0.0, [], []).write(tmp_path / "t.json")
    with pytest.raises(ConfigError, match="no counts"):
        read_table(str(tmp_path / "t.json"))
