"""The logits pipeline against a brute-force reference, its sense of history, and its refusals."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.core.logits import LogitsPipeline
from outrider.errors import ContractError, NumericsError, RequestError

VOCAB = 12
IDS = st.integers(0, VOCAB - 1)
# On a grid, so that ties happen; masses and thresholds off it, so that no float32 rounding decides a comparison.
GRID = st.integers(-24, 24).map(lambda n: n / 4)
MASS = st.integers(1, 1008).map(lambda n: n / 1009)
HISTORY = st.lists(IDS, max_size=10)

PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.5, 0.7, 1.0, 1.3]),
        "top_k": st.integers(-1, VOCAB + 3),
        "top_p": MASS,
        "min_p": st.just(0.0) | MASS,
        "typical_p": MASS,
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.25, 2.0]),
        "presence_penalty": st.sampled_from([-1.0, 0.0, 0.5]),
        "frequency_penalty": st.sampled_from([-0.5, 0.0, 0.25]),
        "logit_bias": st.dictionaries(IDS, GRID, max_size=4),
        "bad_words_ids": st.lists(st.lists(IDS, min_size=1, max_size=3), max_size=3),
        "allowed_token_ids": st.lists(IDS, min_size=6, max_size=12),
        "min_tokens": st.integers(0, 6),
        "eos_ids": st.frozensets(IDS, max_size=2),
        "stop_token_ids": st.lists(IDS, max_size=2),
    },
)


def reference_edits(raw: np.ndarray, prompt: Sequence[int], history: Sequence[int], **p: Any) -> np.ndarray:
    """Everything before temperature, token by token, in float32."""
    scores = raw.astype(np.float32).copy()
    for token in range(VOCAB):
        if token not in p.get("allowed_token_ids", range(VOCAB)):
            scores[token] = -np.inf
    for word in p.get("bad_words_ids", []):
        if list(history[len(history) - len(word) + 1 :]) == word[:-1] and len(history) >= len(word) - 1:
            scores[word[-1]] = -np.inf
    if len(history) < p.get("min_tokens", 0):
        for token in {*p.get("eos_ids", ()), *p.get("stop_token_ids", ())}:
            scores[token] = -np.inf
    for token, bias in p.get("logit_bias", {}).items():
        scores[token] += np.float32(bias)
    for token in range(VOCAB):
        count = list(history).count(token)
        if count or token in prompt:
            factor = np.float32(p.get("repetition_penalty", 1.0))
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
        scores[token] -= np.float32(count) * np.float32(p.get("frequency_penalty", 0.0))
        scores[token] -= np.float32(p.get("presence_penalty", 0.0)) if count else np.float32(0)
    return scores


def normalised(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores.astype(np.float64) - scores.max())
    return weights / weights.sum()


def reference_law(raw: np.ndarray, prompt: Sequence[int], history: Sequence[int], **p: Any) -> np.ndarray | None:
    """The processed law in float64; None when every token is masked."""
    scores = reference_edits(raw, prompt, history, **p)
    if scores.max() == -np.inf:
        return None
    temperature = p.get("temperature", 1.0)
    if temperature == 0.0:
        return np.eye(VOCAB)[int(scores.argmax())]
    scores = scores / np.float32(temperature)
    law = normalised(scores)
    scores[law < p.get("min_p", 0.0) * law.max()] = -np.inf
    if p.get("typical_p", 1.0) < 1.0:
        law = normalised(scores)
        surprise = np.where(law > 0, -np.log(np.where(law > 0, law, 1.0)), 0.0)
        gap = np.where(law > 0, np.abs(surprise - (law * surprise).sum()), np.inf)
        # as many digits as two ways to compute it share: equal gaps are ties
        keep_mass(scores, law, sorted(range(VOCAB), key=lambda v: (round(gap[v], 9), v)), p["typical_p"])
    top_k = p.get("top_k", 0)
    if 0 < top_k < VOCAB:
        scores[scores < np.sort(scores)[::-1][top_k - 1]] = -np.inf
    if p.get("top_p", 1.0) < 1.0:
        keep_mass(scores, normalised(scores), sorted(range(VOCAB), key=lambda v: (-scores[v], v)), p["top_p"])
    return normalised(scores)


def keep_mass(scores: np.ndarray, law: np.ndarray, order: Sequence[int], mass: float) -> None:
    before = 0.0
    for token in order:
        if before >= mass:
            scores[token] = -np.inf
        before += law[token]


def law(
    pipeline: LogitsPipeline, raw: torch.Tensor, history: Sequence[int] = (), path: Sequence[int] = ()
) -> np.ndarray:
    return pipeline.probs(raw, history, path, dtype=torch.float64).numpy()


class TestAgainstReference:
    @settings(deadline=None, max_examples=300)
    @given(st.lists(GRID, min_size=VOCAB, max_size=VOCAB), HISTORY, HISTORY, HISTORY, PARAMETERS)
    def test_any_parameters(
        self, raw: list[float], prompt: list[int], output: list[int], path: list[int], parameters: dict[str, Any]
    ) -> None:
        try:
            pipeline = LogitsPipeline(vocab_size=VOCAB, prompt_ids=prompt, **parameters)
        except RequestError:  # bad words forbid all that is allowed
            assert reference_law(np.array(raw), prompt, [*output, *path], **parameters) is None
            return
        expected = reference_law(np.array(raw), prompt, [*output, *path], **parameters)
        row = torch.tensor(raw)
        if expected is None:
            with pytest.raises(NumericsError, match="masked"):
                pipeline.process(row, output, path)
            return
        got = law(pipeline, row, output, path)
        assert ((got > 0) == (expected > 0)).all()
        np.testing.assert_allclose(got, expected, atol=2e-6)
        assert torch.equal(row, torch.tensor(raw))

    @settings(deadline=None, max_examples=150)
    @given(st.lists(GRID, min_size=VOCAB, max_size=VOCAB), PARAMETERS)
    def test_plain_means_that_nothing_moves_the_argmax(self, raw: list[float], parameters: dict[str, Any]) -> None:
        try:
            pipeline = LogitsPipeline(vocab_size=VOCAB, prompt_ids=[1, 2], **(parameters | {"temperature": 0.0}))
        except RequestError:
            return
        assert pipeline.greedy
        if pipeline.plain:
            assert int(law(pipeline, torch.tensor(raw), [3], [4]).argmax()) == int(np.argmax(raw))

    @pytest.mark.parametrize("size", [300, 512, 600, 5000, 49_152])
    @pytest.mark.parametrize("spread", [0.0, 0.3, 3.0])
    def test_long_rows_are_cut_as_by_a_full_sort(self, size: int, spread: float) -> None:
        raw = torch.randn(size, generator=torch.Generator().manual_seed(size)).mul_(spread * 4).round_().div_(4)
        for top_p in (0.1, 0.503, 0.9, 0.9999):
            p = torch.softmax(raw.double(), 0)
            order = torch.sort(raw, descending=True, stable=True).indices
            cumulative = p[order].cumsum(0)
            expected = order[: int((cumulative < top_p).sum()) + 1].sort().values
            scores = LogitsPipeline(vocab_size=size, top_p=top_p).process(raw)
            assert torch.equal(torch.nonzero(scores > -math.inf).flatten(), expected)
            both = LogitsPipeline(vocab_size=size, top_p=top_p, top_k=40, typical_p=0.7).process(raw)
            assert 0 < int((both > -math.inf).sum()) <= size

    def test_top_k_keeps_ties_and_top_p_takes_the_lowest_ids(self) -> None:
        raw = torch.tensor([0.0, 1.0, 1.0, 2.0, 1.0])
        assert law(LogitsPipeline(vocab_size=5, top_k=2), raw).nonzero()[0].tolist() == [1, 2, 3, 4]
        assert law(LogitsPipeline(vocab_size=5, top_p=0.6), raw).nonzero()[0].tolist() == [1, 3]
        assert law(LogitsPipeline(vocab_size=5, top_k=2, top_p=0.6), raw).nonzero()[0].tolist() == [1, 3]


class TestOrder:
    """Cases in which swapping two neighbours of the order gives another law."""

    @pytest.mark.parametrize(
        ("values", "support"),
        [
            ({"top_k": 2, "top_p": 0.5}, [0]),  # top-p first would keep 0 and 1
            ({"min_p": 0.4, "top_p": 0.75}, [0, 1]),  # top-p first would keep 2 as well
            ({"typical_p": 0.4, "top_k": 1}, [1]),  # top-k first would keep 0
            ({"temperature": 0.5, "min_p": 0.3}, [0, 1]),  # min-p first would keep 2 as well
            ({"min_p": 0.6, "typical_p": 0.4}, [0]),  # typical-p first would leave 1 and 2
        ],
    )
    def test_filters(self, values: dict[str, Any], support: list[int]) -> None:
        raw = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))
        assert law(LogitsPipeline(vocab_size=4, **values), raw).nonzero()[0].tolist() == support

    def test_bias_then_penalties_then_temperature(self) -> None:
        pipeline = LogitsPipeline(
            vocab_size=2, logit_bias={0: 3.0}, repetition_penalty=2.0, presence_penalty=0.5, temperature=0.5
        )
        assert pipeline.process(torch.tensor([1.0, 0.0]), [0]).tolist() == [((1.0 + 3.0) / 2.0 - 0.5) / 0.5, 0.0]


class NotTwice:
    """A constraint: no token twice in a row."""

    def allowed(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.arange(VOCAB) != tokens[-1]

    def accepts(self, tokens: Sequence[int]) -> bool:
        raise NotImplementedError

    def forced(self, tokens: Sequence[int]) -> Sequence[int]:
        raise NotImplementedError

    def complete(self, tokens: Sequence[int]) -> bool:
        raise NotImplementedError


def test_a_constraint_looks_along_the_path() -> None:
    pipeline = LogitsPipeline(vocab_size=VOCAB, constraint=NotTwice())
    assert law(pipeline, RAW, [1, 2])[2] == 0.0
    assert pipeline.probs(RAW, [1, 2], [0, 5])[[2, 5]].tolist() == [
        pytest.approx(float(law(pipeline, RAW, [5])[2])),
        0.0,
    ]


RAW = torch.tensor([2.0, 1.5, 1.25, 1.0, 0.5, 0.25, 0.0, -0.25, -0.5, -1.0, -1.5, -2.0])
# One value per setting that must change the law of RAW after prompt [0] and output [1, 1, 2].
EFFECTS: dict[str, dict[str, Any]] = {
    "prompt_ids": {"repetition_penalty": 1.5, "prompt_ids": [0]},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.5},
    "min_p": {"min_p": 0.3},
    "typical_p": {"typical_p": 0.4},
    "repetition_penalty": {"repetition_penalty": 1.5},
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "logit_bias": {"logit_bias": {7: 3.0}},
    "bad_words_ids": {"bad_words_ids": [[1, 2, 0]]},
    "allowed_token_ids": {"allowed_token_ids": [0, 3]},
    "min_tokens": {"min_tokens": 4, "eos_ids": {0}},
    "eos_ids": {"min_tokens": 4, "eos_ids": {0}},
    "stop_token_ids": {"min_tokens": 4, "stop_token_ids": [1]},
    "constraint": {"constraint": NotTwice()},
}


class TestEverySettingCounts:
    def test_the_table_names_every_setting(self) -> None:
        assert set(inspect.signature(LogitsPipeline).parameters) - {"vocab_size"} == set(EFFECTS)

    @pytest.mark.parametrize("setting", EFFECTS)
    def test_it_changes_the_law(self, setting: str) -> None:
        settings_ = EFFECTS[setting]
        without = {key: value for key, value in settings_.items() if key != setting}
        got, base = (law(LogitsPipeline(vocab_size=VOCAB, **kw), RAW, [1, 1, 2]) for kw in (settings_, without))
        assert np.abs(got - base).max() > 1e-3

    @pytest.mark.parametrize("off", [{"top_k": 0}, {"top_k": -1}, {"top_k": 500}, {"min_p": 0.0}, {"top_p": 1.0}, {}])
    def test_off_leaves_the_row_alone(self, off: dict[str, Any]) -> None:
        pipeline = LogitsPipeline(vocab_size=VOCAB, **off)
        assert torch.equal(pipeline.process(RAW, [1]), RAW)
        assert pipeline.plain
        assert not pipeline.needs_history
        assert not pipeline.greedy

    @pytest.mark.parametrize("setting", EFFECTS)
    def test_plain_and_needs_history_say_what_may_change_the_argmax(self, setting: str) -> None:
        pipeline = LogitsPipeline(vocab_size=VOCAB, **EFFECTS[setting])
        shape = {"temperature", "top_k", "top_p", "min_p", "typical_p"}
        assert pipeline.plain == (setting in shape)
        assert pipeline.needs_history == (setting not in {*shape, "logit_bias", "allowed_token_ids"})


class TestHistory:
    @settings(deadline=None, max_examples=120)
    @given(
        st.lists(GRID, min_size=VOCAB, max_size=VOCAB),
        HISTORY,
        st.lists(st.tuples(HISTORY, HISTORY), min_size=1, max_size=5),
        PARAMETERS,
    )
    def test_path_counts_as_output_exactly_once(
        self, raw: list[float], prompt: list[int], nodes: list[tuple[list[int], list[int]]], parameters: dict[str, Any]
    ) -> None:
        """One pipeline through outputs that grow, shrink and change equals a new one at every node, to the last bit."""
        row = torch.tensor(raw)

        def scores(pipeline: LogitsPipeline, output: Sequence[int], path: Sequence[int]) -> list[float] | str:
            try:
                return pipeline.process(row, output, path).tolist()
            except NumericsError as error:
                return str(error)

        try:
            used = LogitsPipeline(vocab_size=VOCAB, prompt_ids=prompt, **parameters)
        except RequestError:
            return
        for output, path in nodes:
            fresh = LogitsPipeline(vocab_size=VOCAB, prompt_ids=prompt, **parameters)
            expected = scores(fresh, [*output, *path], ())
            assert scores(used, output, path) == expected
            assert scores(used, tuple(output), tuple(path)) == expected
            assert scores(used, [*output, *path], ()) == expected

    def test_a_list_that_grows_in_place_is_counted_on(self) -> None:
        pipeline = LogitsPipeline(vocab_size=VOCAB, frequency_penalty=1.0)
        output: list[int] = []
        for token in (3, 3, 4, 3):
            output.append(token)
            expected = RAW - torch.tensor([float(output.count(v)) for v in range(VOCAB)])
            assert torch.equal(pipeline.process(RAW, output), expected)
        output[:] = [5, 5]
        assert pipeline.process(RAW, output)[5] == RAW[5] - 2
        output[0] = 6
        assert pipeline.process(RAW, output)[5] == RAW[5] - 1

    def test_presence_and_frequency_do_not_see_the_prompt(self) -> None:
        pipeline = LogitsPipeline(vocab_size=VOCAB, prompt_ids=[0, 1], presence_penalty=1.0, frequency_penalty=1.0)
        assert torch.equal(pipeline.process(RAW), RAW)

    @pytest.mark.parametrize(("output", "path", "masked"), [([], [], True), ([5], [5], True), ([5], [5, 5], False)])
    def test_min_tokens_counts_the_path(self, output: list[int], path: list[int], masked: bool) -> None:
        pipeline = LogitsPipeline(vocab_size=VOCAB, min_tokens=3, eos_ids=frozenset({0}), stop_token_ids=[1])
        scores = pipeline.process(RAW, output, path)
        assert (scores[:2] == -math.inf).tolist() == [masked, masked]
        assert int((scores == -math.inf).sum()) == 2 * masked

    def test_a_bad_word_may_begin_in_the_output_and_end_on_the_path(self) -> None:
        pipeline = LogitsPipeline(vocab_size=VOCAB, bad_words_ids=[[4, 5, 6], [7]])
        masked = {
            (output, path): torch.nonzero(pipeline.process(RAW, output, path) == -math.inf).flatten().tolist()
            for output, path in (((4,), (5,)), ((4, 5), ()), ((), (4, 5)), ((5,), ()), ((4, 5), (5,)), ((), ()))
        }
        assert list(masked.values()) == [[6, 7], [6, 7], [6, 7], [7], [7], [7]]


class TestNumbers:
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_bad_logits_raise_even_where_masked(self, bad: float, temperature: float) -> None:
        raw = RAW.clone()
        raw[7] = bad
        pipeline = LogitsPipeline(vocab_size=VOCAB, temperature=temperature, allowed_token_ids=[1])
        for call in (pipeline.process, pipeline.probs):
            with pytest.raises(NumericsError, match="NaN or"):
                call(raw)

    def test_masks_in_the_raw_row_are_legal(self) -> None:
        raw = RAW.clone()
        raw[[0, 3]] = -math.inf
        values = {"repetition_penalty": 2.0, "presence_penalty": -1.0, "logit_bias": {0: 5.0}, "top_p": 0.9}
        pipeline = LogitsPipeline(vocab_size=VOCAB, prompt_ids=[0], **values)
        p = law(pipeline, raw, [0, 3])
        assert p[0] == p[3] == 0.0
        assert p.sum() == pytest.approx(1.0)
        with pytest.raises(NumericsError, match="every logit"):
            pipeline.process(torch.full((VOCAB,), -math.inf))

    def test_nothing_left_raises_and_names_the_settings(self) -> None:
        pipeline = LogitsPipeline(vocab_size=VOCAB, allowed_token_ids=[3], min_tokens=2, eos_ids=frozenset({3}))
        with pytest.raises(NumericsError, match="min_tokens"):
            pipeline.process(RAW, [1])
        assert law(pipeline, RAW, [1, 1])[3] == 1.0

    @pytest.mark.parametrize("temperature", [0.0, 1e-6])
    def test_temperature_zero_is_one_hot_with_ties_to_the_lowest_id(self, temperature: float) -> None:
        raw = torch.tensor([0.0, 3.0, 1.0, 3.0])
        pipeline = LogitsPipeline(vocab_size=4, temperature=temperature, top_p=0.5, min_p=0.5, typical_p=0.1)
        assert pipeline.greedy
        assert law(pipeline, raw).tolist() == [0.0, 1.0, 0.0, 0.0]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
    def test_any_float_row(self, dtype: torch.dtype) -> None:
        raw = RAW.to(dtype)
        pipeline = LogitsPipeline(vocab_size=VOCAB, top_k=4, presence_penalty=0.5, logit_bias={2: 1.0})
        scores = pipeline.process(raw, [1])
        assert scores.dtype == torch.float32
        assert torch.equal(scores, pipeline.process(RAW, [1]))
        assert torch.equal(raw, RAW.to(dtype))

    def test_bits_do_not_depend_on_threads_or_memory(self) -> None:
        size = 151_936
        raw = torch.randn(3, size, generator=torch.Generator().manual_seed(4)) * 3
        cases = [{"typical_p": 0.9}, {"top_p": 0.95}, {"top_k": 100, "top_p": 0.8}, {"min_p": 0.01}, {}]
        pipelines = [LogitsPipeline(vocab_size=size, repetition_penalty=1.1, **case) for case in cases]
        alone = [pipeline.probs(raw[1].clone(), [5, 6]) for pipeline in pipelines]
        torch.set_num_threads(2)
        try:
            threaded = [pipeline.probs(raw[1], [5, 6]) for pipeline in pipelines]
        finally:
            torch.set_num_threads(1)
        assert all(torch.equal(a, b) for a, b in zip(alone, threaded, strict=True))


class TestRefusals:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"logit_bias": {VOCAB: 1.0}}, "logit_bias: token id 12 is outside"),
            ({"logit_bias": {0: math.nan}}, "logit_bias holds NaN"),
            ({"bad_words_ids": [[0, -1]]}, "bad_words: token id -1"),
            ({"allowed_token_ids": [99]}, "allowed_token_ids: token id 99"),
            ({"allowed_token_ids": []}, "leave no token"),
            ({"allowed_token_ids": [2], "bad_words_ids": [[2]]}, "leave no token"),
            ({"eos_ids": {50}}, "eos_ids: token id 50"),
            ({"stop_token_ids": [50]}, "stop_token_ids: token id 50"),
            ({"prompt_ids": [50]}, "prompt: token id 50"),
            ({"top_k": -2}, "top_k=-2"),
            ({"top_p": 0.0}, "top_p=0.0"),
            ({"min_p": 1.5}, "min_p=1.5"),
            ({"typical_p": 0.0}, "typical_p=0.0"),
            ({"temperature": -1.0}, "temperature=-1.0"),
            ({"temperature": math.nan}, "temperature=nan"),
            ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
            ({"presence_penalty": math.inf}, "presence_penalty=inf"),
            ({"frequency_penalty": math.nan}, "frequency_penalty=nan"),
        ],
    )
    def test_one_line_that_names_the_setting(self, values: dict[str, Any], message: str) -> None:
        with pytest.raises(RequestError) as caught:
            LogitsPipeline(vocab_size=VOCAB, **values)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_row_of_the_wrong_shape(self) -> None:
        for raw in (torch.zeros(VOCAB + 1), torch.zeros(1, VOCAB)):
            with pytest.raises(ContractError, match="vocabulary of 12"):
                LogitsPipeline(vocab_size=VOCAB).process(raw)
