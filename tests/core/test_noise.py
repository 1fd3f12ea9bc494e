"""Noise: one definition, bit-equal in scalar, vector, subset and native form; right laws; independent streams."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import outrider
from outrider.core import noise
from outrider.core.noise import (
    GUMBEL_MAX,
    GUMBEL_MIN,
    Stream,
    StreamRandomness,
    categorical,
    derive_seed,
    gumbel,
    gumbel_argmax,
    gumbel_scalar,
    gumbel_topk,
    noise_key,
    noise_words,
)
from outrider.errors import ContractError, NumericsError

KEY = noise_key(20240807, 0)
PINNED = {
    "key": 12793040940332582595,
    "seed": 17431867065046844,
    "words": (3811709550, 2142806796),
    "gumbel": ["-0x1.7fd2445eb6692p-2", "0x1.586a18dc52d7ep+0", "-0x1.57a676d384e7dp-3"],
    "uniform": "0x1.1ddfcc15e9c53p-1",
}
KEYS = st.integers(0, 2**64 - 1)
POSITIONS = st.integers(0, 2**40)


def full_order(scores: Tensor, key: int, position: int) -> list[int]:
    """Unmasked ids by perturbed score, best first, from the full noise vector and no pruning."""
    values = scores.to(torch.float64) + gumbel(key, position, scores.numel())
    order = torch.sort(values, descending=True, stable=True).indices.tolist()
    return [token for token in order if scores[token] != -math.inf]


def tight_scores(key: int, position: int, size: int) -> Tensor:
    """Scores that cancel the noise up to float32 rounding: many tokens are close to the best."""
    return (-gumbel(key, position, size)).to(torch.float32)


def rows(key: int, position: int) -> list[Tensor]:
    """Rows of many shapes: flat, usual, peaked, cancelling the noise, tied, mostly masked, huge, tiny sizes."""
    made = torch.Generator().manual_seed(position)
    sizes = (1, 2, 63, 65, 511, 512, 513, 3000)
    out = [torch.randn(n, generator=made) * scale for n in sizes for scale in (0.0, 1.0, 5.0, 60.0, 1e30)]
    out += [tight_scores(key, position, n) for n in sizes]
    masked = torch.randn(2000, generator=made)
    masked[torch.rand(2000, generator=made) < 0.99] = -math.inf
    single = torch.full((2000,), -math.inf)
    single[1234] = -3.0
    return [*out, masked, single, torch.full((600,), -3.4e38)]


class TestGumbel:
    def test_values_are_pinned(self) -> None:
        """Seeded text must not change between releases."""
        assert noise_key(0, 0) == PINNED["key"]
        assert derive_seed(0, 1) == PINNED["seed"]
        assert noise_words(noise_key(7, 2), 1000) == PINNED["words"]
        assert [gumbel_scalar(KEY, 5, token).hex() for token in (0, 1, 49151)] == PINNED["gumbel"]
        assert Stream(KEY, "accept", 9).uniform(-1, 3).hex() == PINNED["uniform"]

    @settings(deadline=None, max_examples=60)
    @given(KEYS, POSITIONS, st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40))
    def test_vector_equals_scalar(self, key: int, position: int, ids: list[int]) -> None:
        assert gumbel(key, position, 0, torch.tensor(ids)).tolist() == [gumbel_scalar(key, position, i) for i in ids]

    @pytest.mark.parametrize("size", [1, 7, 8, 4097])
    def test_subset_equals_full(self, size: int) -> None:
        full = gumbel(KEY, 3, size)
        picked = torch.randperm(size, generator=torch.Generator().manual_seed(0))[: (size + 1) // 2]
        assert torch.equal(gumbel(KEY, 3, size, picked), full[picked])
        assert full.dtype == torch.float64

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    def test_gpu_equals_cpu(self) -> None:
        assert torch.equal(gumbel(KEY, 3, 50_000, device="cuda").cpu(), gumbel(KEY, 3, 50_000))

    def test_logarithm_is_accurate(self) -> None:
        wide = torch.logspace(-10, 2, 5000, dtype=torch.float64)
        values = torch.cat((wide, 1.0 - wide[wide < 0.5]))
        torch.testing.assert_close(noise._log(values), values.log(), rtol=1e-11, atol=1e-22)

    def test_range_is_the_range_of_the_bits(self) -> None:
        ends = noise._gumbel(torch.tensor([0, 2**32 - 1])).tolist()
        assert ends == [GUMBEL_MIN, GUMBEL_MAX]
        assert ends == pytest.approx([-math.log(33 * math.log(2)), 33 * math.log(2)], rel=1e-9)

    def test_distribution_is_gumbel(self) -> None:
        sample = gumbel(KEY, 11, 200_000)
        assert float(sample.mean()) == pytest.approx(0.5772156649, abs=0.012)
        assert float(sample.var()) == pytest.approx(math.pi**2 / 6, abs=0.03)
        uniform = torch.exp(-torch.exp(-sample)).sort().values
        grid = torch.arange(1, 200_001) / 200_000
        assert float((uniform - grid).abs().max()) < 1.63 / math.sqrt(200_000)  # Kolmogorov-Smirnov, 1 %

    @pytest.mark.parametrize(
        ("other_key", "other_position", "shift"),
        [(KEY, 12, 0), (KEY, 2**32 + 11, 0), (KEY ^ 1, 11, 0), (noise_key(1, 1), 11, 0), (KEY, 11, 1), (KEY, 12, 1)],
    )
    def test_positions_keys_and_tokens_are_uncorrelated(self, other_key: int, other_position: int, shift: int) -> None:
        size = 100_000
        first = gumbel(KEY, 11, size)
        second = gumbel(other_key, other_position, size + shift)[shift:]
        correlation = float(torch.corrcoef(torch.stack((first, second)))[0, 1])
        assert abs(correlation) < 4.5 / math.sqrt(size)

    def test_one_token_over_positions_is_uniform(self) -> None:
        bins = [0] * 16
        for position in range(8000):
            word0, word1 = noise_words(KEY, position)
            bins[noise._mix32_scalar(noise._mix32_scalar(42 ^ word0) ^ word1) >> 28] += 1
        assert sum((count - 500) ** 2 / 500 for count in bins) < 37.7  # chi-square, 15 degrees, 0.1 %

    def test_keys_and_seeds_differ(self) -> None:
        keys = [noise_key(seed, sample) for seed in range(-20, 20) for sample in range(20)]
        assert len(set(keys)) == len(keys)
        seeds = {derive_seed(engine, prompt) for engine in range(30) for prompt in range(30)}
        assert len(seeds) == 900
        assert all(0 <= seed < 2**63 for seed in seeds)


class TestDraws:
    @pytest.mark.parametrize("position", range(6))
    def test_argmax_and_topk_equal_the_unpruned_order(self, position: int) -> None:
        for scores in rows(KEY, position):
            order = full_order(scores, KEY, position)
            assert gumbel_argmax(scores, KEY, position) == order[0]
            for k in (1, 2, 10, 5000):
                assert gumbel_topk(scores, KEY, position, k) == order[:k]
        assert gumbel_topk(torch.zeros(5), KEY, 0, 0) == []

    @settings(deadline=None, max_examples=60)
    @given(KEYS, POSITIONS, st.lists(st.floats(-30, 30, width=32) | st.just(-math.inf), min_size=1, max_size=200))
    def test_any_row(self, key: int, position: int, values: list[float]) -> None:
        scores = torch.tensor(values, dtype=torch.float32)
        order = full_order(scores, key, position)
        if not order:
            with pytest.raises(NumericsError, match="masked"):
                gumbel_argmax(scores, key, position)
            return
        assert gumbel_argmax(scores, key, position) == order[0]
        assert gumbel_topk(scores, key, position, 7) == order[:7]

    def test_ties_go_to_the_lowest_id(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(noise, "_bits", lambda key, position, ids: torch.full_like(ids, 12345))
        scores = torch.tensor([0.0] * 50 + [1.0] * 200)
        assert gumbel_argmax(scores, KEY, 0) == 50
        assert gumbel_topk(scores, KEY, 0, 3) == [50, 51, 52]

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_bad_scores_raise(self, bad: float) -> None:
        for draw in (gumbel_argmax, lambda *args: gumbel_topk(*args, 3)):
            with pytest.raises(NumericsError, match="NaN or"):
                draw(torch.tensor([0.0, bad, -math.inf]), KEY, 0)
            with pytest.raises(NumericsError, match="masked"):
                draw(torch.full((4,), -math.inf), KEY, 0)

    def test_argmax_samples_the_softmax(self) -> None:
        scores = torch.tensor([1.5, 0.0, -1.0, 0.7, -math.inf, -2.5, 0.1, -0.4])
        expected = torch.softmax(scores.double(), 0)
        draws = 6_000
        counts = torch.zeros(8, dtype=torch.float64)
        for position in range(draws):
            counts[gumbel_argmax(scores, KEY, position)] += 1
        assert counts[4] == 0
        support = expected > 0
        statistic = ((counts - draws * expected) ** 2 / (draws * expected))[support].sum()
        assert float(statistic) < 22.5  # chi-square, 6 degrees, 0.1 %

    def test_topk_draws_without_replacement(self) -> None:
        scores = torch.log(torch.tensor([0.5, 0.3, 0.2]))
        draws = 4000
        pairs = [tuple(gumbel_topk(scores, KEY, position, 2)) for position in range(draws)]
        p = [0.5, 0.3, 0.2]
        cells = [(a, b) for a in range(3) for b in range(3) if a != b]
        expected = {(a, b): draws * p[a] * p[b] / (1 - p[a]) for a, b in cells}
        assert sum((pairs.count(cell) - expected[cell]) ** 2 / expected[cell] for cell in cells) < 20.5  # 5 degrees


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The native draw, compiled as the library compiles it."""
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    source = Path(outrider.__file__).parent / "native" / "noise.cpp"
    target = tmp_path_factory.mktemp("native") / "noise.so"
    flags = ["-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", "-std=c++17"]
    subprocess.run([compiler, *flags, str(source), "-o", str(target)], check=True)
    library = ctypes.CDLL(str(target))
    words = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint32]
    library.outrider_gumbel_argmax.argtypes = words
    library.outrider_gumbel_argmax.restype = ctypes.c_int64
    library.outrider_gumbel.argtypes = [*words[1:], ctypes.c_void_p]
    library.outrider_gumbel.restype = None
    library.outrider_gumbel_topk.argtypes = [*words, ctypes.c_int64, ctypes.c_void_p]
    library.outrider_gumbel_topk.restype = ctypes.c_int64
    return library


class TestNative:
    def test_every_bit_of_the_noise(self, native: ctypes.CDLL) -> None:
        for position in (0, 3, 10**6):
            out = torch.zeros(200_000, dtype=torch.float64)
            native.outrider_gumbel(out.numel(), *noise_words(KEY, position), out.data_ptr())
            assert torch.equal(out, gumbel(KEY, position, out.numel()))

    @pytest.mark.parametrize("position", [0, 1, 2, 77, 2**33 + 5])
    def test_equals_the_unpruned_order(self, native: ctypes.CDLL, position: int) -> None:
        words = noise_words(KEY, position)
        for scores in rows(KEY, position):
            order = full_order(scores, KEY, position)
            assert native.outrider_gumbel_argmax(scores.data_ptr(), scores.numel(), *words) == order[0]
            for k in (1, 5, 100):
                ids = torch.zeros(k, dtype=torch.int64)
                found = native.outrider_gumbel_topk(scores.data_ptr(), scores.numel(), *words, k, ids.data_ptr())
                assert ids[:found].tolist() == order[:k]

    def test_large_vocabulary(self, native: ctypes.CDLL) -> None:
        for position in range(8):
            scores = tight_scores(KEY, position, 49_152)
            found = native.outrider_gumbel_argmax(scores.data_ptr(), scores.numel(), *noise_words(KEY, position))
            assert found == full_order(scores, KEY, position)[0]

    def test_bad_scores_have_their_codes(self, native: ctypes.CDLL) -> None:
        words = noise_words(KEY, 0)
        masked = torch.full((700,), -math.inf)
        assert native.outrider_gumbel_argmax(masked.data_ptr(), 700, *words) == -1
        for bad in (math.nan, -math.nan, math.inf):
            for place in (0, 511, 699):
                scores = torch.zeros(700)
                scores[place] = bad
                assert native.outrider_gumbel_argmax(scores.data_ptr(), 700, *words) == -2


class TestStreams:
    def test_uniform_is_open_and_uniform(self) -> None:
        stream = Stream(KEY, "accept", 100)
        values = torch.tensor([stream.uniform(node, index) for node in range(-1, 199) for index in range(50)]).double()
        assert 0.0 < float(values.min()) < float(values.max()) < 1.0
        counts = torch.histc(values, 20, 0.0, 1.0)
        assert float(((counts - 500) ** 2 / 500).sum()) < 43.8  # chi-square, 19 degrees, 0.1 %

    @pytest.mark.parametrize("state", [0, 2**64 - 1])
    def test_extreme_states_stay_inside(self, monkeypatch: pytest.MonkeyPatch, state: int) -> None:
        monkeypatch.setattr(noise, "_combine", lambda *words: state)
        assert 0.0 < Stream(KEY, "accept", 0).uniform(0) < 1.0

    def test_every_part_of_the_name_counts(self) -> None:
        draws = {
            Stream(key, purpose, root).uniform(node, index)
            for key in (KEY, KEY + 1)
            for purpose in ("accept", "residual")
            for root in (5, 6)
            for node in (-1, 0, 1)
            for index in (0, 1)
        }
        assert len(draws) == 48

    def test_streams_do_not_repeat_the_shared_noise(self) -> None:
        shared = {noise_words(KEY, position) for position in range(100)}
        assert len(shared) == 100
        assert noise._combine("stream", KEY, 5) != noise._combine("shared", KEY, 5)

    def test_a_draw_is_made_once(self) -> None:
        rng = StreamRandomness(KEY, 3)
        rng.bernoulli(0.5, "accept", 0)
        rng.categorical(torch.ones(3), "accept", 1)
        for again in (lambda: rng.categorical(torch.ones(3), "accept", 0), lambda: rng.bernoulli(0.5, "accept", 1)):
            with pytest.raises(ContractError, match="twice"):
                again()

    def test_the_same_walk_draws_the_same(self) -> None:
        weights = torch.rand(1000, generator=torch.Generator().manual_seed(1))
        cells = [(root, node) for root in range(20) for node in range(3)]
        first, second = (
            [StreamRandomness(KEY, root).categorical(weights, "residual", node) for root, node in cells]
            for _ in range(2)
        )
        assert first == second
        assert len(set(first)) > 40

    def test_bernoulli_bounds_and_rate(self) -> None:
        rng = StreamRandomness(KEY, 3)
        assert all(rng.bernoulli(1.0, "sure", node) for node in range(500))
        assert not any(rng.bernoulli(0.0, "never", node) for node in range(500))
        assert sum(rng.bernoulli(0.3, "some", node) for node in range(10_000)) == pytest.approx(3000, abs=150)

    def test_categorical_follows_the_weights(self) -> None:
        weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 6.0, 0.0])
        rng = StreamRandomness(KEY, 8)
        counts = torch.zeros(6)
        for node in range(10_000):
            counts[rng.categorical(weights, "draw", node)] += 1
        expected = weights * 1000
        assert (counts[weights == 0] == 0).all()
        assert float(((counts - expected) ** 2 / expected)[weights > 0].sum()) < 13.8  # 2 degrees, 0.1 %

    @settings(deadline=None)
    @given(
        st.lists(st.just(0.0) | st.floats(1e-30, 1e30), min_size=1, max_size=20).filter(any),
        st.sampled_from([2.0**-53, 0.5, 1.0 - 2.0**-53]),
    )
    def test_categorical_never_returns_weight_zero(self, weights: list[float], uniform: float) -> None:
        assert weights[categorical(torch.tensor(weights, dtype=torch.float64), uniform)] > 0.0

    @pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -0.5], [math.nan, 1.0], [math.inf, 1.0]])
    def test_categorical_refuses_what_is_no_law(self, weights: list[float]) -> None:
        with pytest.raises(NumericsError):
            StreamRandomness(KEY, 0).categorical(torch.tensor(weights), "draw", 0)
