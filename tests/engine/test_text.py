"""Text and stop strings: what is shown depends on neither the cuts between tokens nor when it is asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.tiny import EMOJI, tokenizer
from outrider.engine.text import OutputText
from outrider.target.tokenizer import Tokenizer

WORDS = Tokenizer(tokenizer())
IDS = [id_ for id_, text in enumerate(WORDS.pieces) if text in ("a", "b", "c", "ab", "abc", "Ġthe", *EMOJI)]
STOPS = st.lists(
    st.sampled_from(["b", "bc", "ca", "abca", "abcabc", " th", "aab", "\U0001f600"]), max_size=3, unique=True
)


def cut(text: str, stops: list[str], include: bool) -> tuple[str, bool]:
    """The text up to the first stop string that is complete, character by character."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end if include else end - len(longest)], True
    return text, False


@given(tokens=st.lists(st.sampled_from(IDS), max_size=14), stops=STOPS, include=st.booleans(), data=st.data())
def test_a_text_ends_where_a_stop_string_is_first_complete(
    tokens: list[int], stops: list[str], include: bool, data: st.DataObject
) -> None:
    text, shown, found = OutputText(WORDS, (), stops, include_stop=include), "", None
    for token in tokens:
        found = text.push(token)
        if data.draw(st.booleans()):
            shown += text.released()
        if found is not None:
            break
    else:
        found = text.finish(stoppable=True)
    shown += text.released()
    want, stopped = cut(WORDS.decode(tokens), stops, include)
    assert (text.text, found is not None) == (want, stopped)
    assert shown == text.text


def test_what_the_decoder_held_back_may_complete_a_stop_string() -> None:
    text = OutputText(WORDS, (), ["\N{REPLACEMENT CHARACTER}"])
    half = WORDS.encode("\U0001f600", add_special_tokens=False)[0]
    for token in [*WORDS.encode("ab", add_special_tokens=False), half]:
        assert text.push(token) is None
    assert text.finish(stoppable=True) == "\N{REPLACEMENT CHARACTER}"
    assert text.text == "ab"
