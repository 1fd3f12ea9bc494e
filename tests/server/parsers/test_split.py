"""However a text is cut, its parsers say the same of it, and what they say of a stream adds up to the whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.server.parsers.answer import AnswerParser, Part
from outrider.server.parsers.formats import REASONING_PARSERS, TOOL_PARSERS
from outrider.server.parsers.reasoning import ReasoningParser

NAMES = ["f", "get_weather", "a.b-c"]
FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|python_start|>", "<|python_end|>"),
    *("<think>", "</think>", "[THINK]", "[/THINK]", "[ARGS]", "[CALL_ID]", "<tool", "</", "[TOOL", "<|"),
    *('{"name": "f", "arguments": {"a": "x}"}}', '{"name": "g", "parameters": {}}', '{"name": "f"}', '{"name": "f",'),
    *('"arguments": ', '{"arguments": {"b": [1, "]"]}, "name": "f"}', 'f{"a": 1}', '[f(a=1, b="x,)")', "f(x=[1])]"),
    *(
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        '"',
        "'",
        "\\",
        ",",
        ":",
        ";",
        "=",
        " ",
        "\n",
        "f",
        "name",
        "null",
        "1",
        "é",
        "text",
    ),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12).map("".join)


def parser(tools: str | None, reasoning: str | None, thinking: bool) -> AnswerParser:
    """A new one."""
    thoughts = None if reasoning is None else ReasoningParser(REASONING_PARSERS[reasoning], thinking)
    return AnswerParser(thoughts, None if tools is None else TOOL_PARSERS[tools](NAMES))


def parts(one: AnswerParser, texts: Sequence[str]) -> Part:
    """All that a parser says of a text in parts, added up as a client adds up a stream."""
    total = Part()
    for number, text in enumerate(texts, start=1):
        part = one.feed(text, last=number == len(texts))
        total.content += part.content
        total.reasoning += part.reasoning
        for call in part.calls:
            if call.name:
                assert call.index == len(total.calls)
                assert call.call_id
                total.calls.append(call)
            else:
                assert call.arguments
                assert not call.call_id
                total.calls[call.index].arguments += call.arguments
    for call in total.calls:
        call.call_id = ""
    return total


@st.composite
def cuts(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> tuple[str, list[str]]:
    """A text, and parts that make it up, empty ones among them."""
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return text, [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


@settings(max_examples=400, deadline=None)
@given(
    cut=cuts(TEXTS),
    tools=st.sampled_from([None, *TOOL_PARSERS]),
    reasoning=st.sampled_from([None, "think", "mistral"]),
    thinking=st.booleans(),
)
def test_no_cut_changes_anything(
    cut: tuple[str, list[str]], tools: str | None, reasoning: str | None, thinking: bool
) -> None:
    text, pieces = cut
    whole = parts(parser(tools, reasoning, thinking), [text])
    assert parts(parser(tools, reasoning, thinking), pieces) == whole
    assert parts(parser(tools, reasoning, thinking), [*text, ""]) == whole
    if not whole.calls and reasoning is None:
        assert whole.content == text


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=6)
    | st.sampled_from(['"}', "</tool_call>", "[,("]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text(max_size=4), VALUES, max_size=3)), min_size=1, max_size=3
)
SPACE = st.sampled_from(["", " ", "\n", "\n\n "])


def hermes(calls: Any, space: str, dump: Any) -> str:
    return space.join(
        f"<tool_call>{space}{dump({'name': name, 'arguments': values})}{space}</tool_call>" for name, values in calls
    )


def llama3_json(calls: Any, space: str, dump: Any) -> str:
    return space + f"{space};{space}".join(dump({"name": name, "parameters": values}) for name, values in calls)


def mistral(calls: Any, space: str, dump: Any) -> str:
    return "[TOOL_CALLS]" + space + dump([{"arguments": values, "name": name} for name, values in calls]) + space


def newer_mistral(calls: Any, space: str, dump: Any) -> str:
    return "".join(f"[TOOL_CALLS]{name}{space}{dump(values)}" for name, values in calls)


def pythonic(calls: Any, space: str, dump: Any) -> str:
    made = (f"{name.replace('-c', '')}({', '.join(f'{k}={v!r}' for k, v in values.items())})" for name, values in calls)
    return f"{space}[{f',{space}'.join(made)}]{space}"


@settings(max_examples=150, deadline=None)
@given(calls=CALLS, space=SPACE, before=st.sampled_from(["", "Let me look."]), ascii=st.booleans(), data=st.data())
@pytest.mark.parametrize("write", [hermes, llama3_json, mistral, newer_mistral, pythonic])
def test_what_a_model_wrote_is_what_is_called(
    write: Any, calls: Any, space: str, before: str, ascii: bool, data: st.DataObject
) -> None:
    marked = write in (hermes, mistral, newer_mistral)
    if write is pythonic:  # keys are Python's names
        calls = [
            (name.replace("-c", ""), {f"k{i}": v for i, v in enumerate(values.values())}) for name, values in calls
        ]

    def dump(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ascii, indent=data.draw(st.sampled_from([None, 1])))

    text = (before + space if marked else "") + write(calls, space, dump)
    kind = "mistral" if write is newer_mistral else write.__name__
    names = [name for name, _ in calls]
    one = AnswerParser(None, TOOL_PARSERS[kind](names))
    _, pieces = data.draw(cuts(st.just(text)))
    got = parts(one, pieces)
    assert [call.name for call in got.calls] == names
    assert [json.loads(call.arguments) for call in got.calls] == [values for _, values in calls]
    assert got.content == (before if marked else "")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("hermes", 'The form is <tool_call>{"nam": 1}</tool_call>, see?'),
        ("hermes", "a <tool_call> b"),
        ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f'),
        ("hermes", '<tool_call>{"arguments": {"a": 1}'),
        ("hermes", '{"name": "Bob", "arguments": {}}'),
        ("hermes", ' {"answer": 5}'),
        ("llama3_json", '{"name": "Bob", "parameters": {}}'),
        ("llama3_json", '{"answer": 5} and more'),
        ("llama3_json", "<|python_tag|>print(5)"),
        ("llama3_json", 'So: {"name": "f", "parameters": {}}'),
        ("mistral", "[TOOL_CALLS] hello, world"),
        ("mistral", "[TOOL_CALLS][5]"),
        ("pythonic", "[1, 2, f(a=1)]"),
        ("pythonic", "[other(a=1)]"),
        ("pythonic", "[f(1)]"),
        ("pythonic", "[f(a=open('x'))]"),
        ("pythonic", "[f(a=1e999)]"),
        ("pythonic", "[f(a='\\ud800')]"),
        ("pythonic", "[f(a=1"),
        ("pythonic", "[]"),
    ],
)
def test_what_is_no_call_is_content(kind: str, text: str) -> None:
    assert parts(parser(kind, None, False), [text]) == Part(content=text)


def test_a_call_that_was_cut_off_keeps_what_there_is() -> None:
    got = parts(parser("hermes", None, False), ['Look: <tool_call>{"name": "f", "arguments": {"a": [1, "x'])
    assert (got.content, got.calls[0].name, got.calls[0].arguments) == ("Look:", "f", '{"a": [1, "x')


@pytest.mark.parametrize("arguments", ['"{\\"a\\": 1}"', '{"a": 1}'])
def test_arguments_may_stand_in_a_string(arguments: str) -> None:
    got = parts(parser("hermes", None, False), [f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'])
    assert json.loads(got.calls[0].arguments) == {"a": 1}


@pytest.mark.parametrize("ending", ["{}", '{"arguments": null}'])
def test_a_call_without_arguments_has_empty_ones(ending: str) -> None:
    more = "" if ending == "{}" else ', "arguments": null'
    got = parts(parser("hermes", None, False), [f'<tool_call>{{"name": "f"{more}}}</tool_call>'])
    assert got.calls[0].arguments == "{}"


@pytest.mark.parametrize(
    ("text", "thinking", "want"),
    [
        ("<think>\nSo.\n</think>\n\nYes.", False, ("So.", "Yes.")),
        ("So.\n</think>\n\nYes.", True, ("So.", "Yes.")),
        ("Yes.", False, ("", "Yes.")),
        ("\n <think>So", False, ("So", "")),
        ("I <think> not", False, ("", "I <think> not")),
        ("a </thin", True, ("a </thin", "")),
        ("a</think>b</think>", True, ("a", "b</think>")),
    ],
)
def test_reasoning_stands_before_content(text: str, thinking: bool, want: tuple[str, str]) -> None:
    got = parts(parser("hermes", "think", thinking), [text])
    assert (got.reasoning, got.content) == want


@pytest.mark.parametrize("text", ['{"name": "f", "arguments": {"a": 1}}', '\n{"name": "f", "arguments": {"a": 1}}\n'])
def test_an_answer_of_objects_alone_is_calls_too(text: str) -> None:
    got = parts(parser("hermes", None, False), [text])
    assert [(call.name, call.arguments) for call in got.calls] == [("f", '{"a": 1}')]
    assert got.content == ""
    more = parts(parser("hermes", None, False), [text + " " + text + "\nDone."])
    assert [call.name for call in more.calls] == ["f", "f"]
    assert more.content == "Done."


def test_what_cannot_be_a_call_is_not_held_back() -> None:
    assert parser("llama3_json", None, False).feed('{"answer": "a long', last=False).content == '{"answer": "a long'


def test_only_one_call_where_one_is_wanted() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * 2
    one = AnswerParser(None, TOOL_PARSERS["hermes"](NAMES), one_call=True)
    assert [call.name for call in parts(one, [*text]).calls] == ["f"]
