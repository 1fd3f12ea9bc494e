"""The conformance suite over every drafter that needs no model."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafters import conformance
from drafters.conformance import EOS_ID, LISTED, MAX_MODEL_LEN, SETTINGS, check_budgets, grow, make, one
from drafters.fakes import FakeSequence
from outrider.drafters import registry
from outrider.errors import ContractError

token = st.sampled_from([0, 1, 2, 3, EOS_ID])
texts = st.lists(token, min_size=4, max_size=60)
sizes = st.lists(st.integers(1, 20), min_size=1, max_size=6)
names = pytest.mark.parametrize("name", SETTINGS)
WITHOUT_TEXT = {"token_recycling", "token_recycling, widths", "lookahead, window only"}  # know what the target said
quick = settings(max_examples=60, deadline=None)


def test_every_method_without_a_model_is_covered() -> None:
    covered = {setting["method"] for setting in SETTINGS.values()}
    rows = registry.REGISTRY.values()
    without = [
        row for row in rows if not (row.needs_model or row.needs_head or row.needs_target or "models" in row.required)
    ]
    assert covered == {row.method for row in without}


@names
@quick
@given(text=texts, start=st.integers(2, 4), sizes=sizes, prediction=texts)
def test_budgets_and_repeats(name: str, text: list[int], start: int, sizes: list[int], prediction: list[int]) -> None:
    drafter = make(name)
    for seq in grow(drafter, text, start, sizes, prediction):
        check_budgets(drafter, seq)


@names
@quick
@given(text=texts, start=st.integers(2, 4), sizes=sizes, prediction=texts)
def test_begin_equals_observe(name: str, text: list[int], start: int, sizes: list[int], prediction: list[int]) -> None:
    conformance.check_begin_equals_observe(partial(make, name), text, start, sizes, prediction)


@names
@quick
@given(text=texts, start=st.integers(2, 4), sizes=sizes, cut=st.integers(2, 60), prediction=texts)
def test_truncate_undoes_observe(
    name: str, text: list[int], start: int, sizes: list[int], cut: int, prediction: list[int]
) -> None:
    conformance.check_truncate(partial(make, name), text, start, sizes, cut, prediction)


@names
@quick
@given(batch=st.lists(texts, min_size=1, max_size=4), prediction=texts)
def test_batch_equals_alone(name: str, batch: list[list[int]], prediction: list[int]) -> None:
    conformance.check_batch(partial(make, name), batch, prediction)


@names
def test_drafts_stay_within_the_context_of_the_target(name: str) -> None:
    text = [1, 2, 3] * (MAX_MODEL_LEN // 3 + 1)
    for length in range(MAX_MODEL_LEN - 4, MAX_MODEL_LEN + 1):
        drafter = make(name)
        seq = FakeSequence(text[:length], num_prompt_tokens=1, prediction=text[1:])
        drafter.begin(seq)
        draft = one(drafter, seq, 16)
        assert max(draft.depths(), default=0) <= MAX_MODEL_LEN - length
        if length < MAX_MODEL_LEN and name in LISTED and name not in WITHOUT_TEXT:
            assert len(draft)


@pytest.mark.parametrize("name", LISTED)
def test_repeated_text_is_drafted(name: str) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 3
    drafter = make(name)
    seq = FakeSequence(text[:17], num_prompt_tokens=8, prediction=text[8:])
    drafter.begin(seq)
    draft = one(drafter, seq, 3)
    if name in WITHOUT_TEXT:
        assert not len(draft)
        return
    assert draft.tokens[0] == 2 or name == "synthetic"
    assert len(draft) == 3 or name.startswith("suffix")


@pytest.mark.parametrize("name", [name for name in LISTED if name not in ("synthetic", "auto")])  # some keep no state
def test_a_missing_begin_or_truncate_is_an_error(name: str) -> None:
    drafter = make(name)
    seq = FakeSequence([1, 2, 3])
    with pytest.raises(ContractError, match="never given begin"):
        one(drafter, seq, 3)
    drafter.begin(seq)
    del seq.token_ids[-1]
    with pytest.raises(ContractError, match="missing"):
        one(drafter, seq, 3)
    drafter.release(seq)
    with pytest.raises(ContractError, match="never given begin"):
        one(drafter, seq, 3)
