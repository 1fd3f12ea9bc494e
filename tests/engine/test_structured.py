"""Structured outputs: every method stays in the language, with the text of plain decoding; forced tokens are free."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from engine.tiny import VARIANTS, Models, consistent, fitting, idle, prompts, same
from outrider import LLM, SamplingParams
from outrider.core.verifiers.registry import VERIFIERS
from outrider.errors import ConfigError, GrammarError, RequestError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["ab", "cd"]},
        "old": {"type": "boolean"},
    },
    "required": ["name", "kind", "old"],
    "additionalProperties": False,
}
KINDS: dict[str, dict[str, Any]] = {
    "json": {"json": SCHEMA},
    "regex": {"regex": "( (of|the|ab ab|cd cd cd))+"},
    "choice": {"choice": ["the ab", "the cd and the ab", "of"]},
    "grammar": {"grammar": 'start: "the " (WORD " ")+ "end"\nWORD: /[a-d]{2,4}/'},
    "after": {"json": SCHEMA, "after": "of"},
}


def asked(kind: str, temperature: float, **settings: Any) -> SamplingParams:
    """A request for ``kind``."""
    values = {"max_tokens": 90, "seed": 11, "logprobs": 2} | settings
    return SamplingParams(temperature=temperature, structured_outputs=KINDS[kind], **values)


def holds(kind: str, text: str) -> bool:
    """Whether a finished ``text`` is what was asked for."""
    if kind == "json":
        value = json.loads(text)
        return set(value) == {"name", "kind", "old"} and len(value["name"]) <= 6 and value["kind"] in ("ab", "cd")
    if kind == "choice":
        return text in KINDS["choice"]["choice"]
    pattern = KINDS["regex"]["regex"] if kind == "regex" else "the ([a-d]{2,4} )+end"
    return kind == "after" or re.fullmatch(pattern, text) is not None


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_method_has_the_text_of_plain_decoding(models: Models, variant: str, temperature: float) -> None:
    llm = models.llm(VARIANTS[variant])
    (prompt,) = prompts([17])
    params = [asked(kind, temperature) for kind in KINDS]
    for kind, each, output in zip(KINDS, params, llm.generate([prompt] * len(KINDS), params), strict=True):
        same(output.outputs[0], models.plain(prompt, each).outputs[0])
        consistent(output)
        if output.outputs[0].finish_reason == "stop":
            assert holds(kind, output.outputs[0].text)
    idle(llm)


def test_what_ends_is_what_was_asked_for(models: Models) -> None:
    ended = set()
    for seed in range(12):
        for kind in ("json", "choice", "grammar", "regex"):
            params = asked(kind, 1.0, seed=seed, n=2, max_tokens=300)
            for sample in models.plain(prompts([9])[0], params).outputs:
                if sample.finish_reason == "stop":
                    ended.add(kind)
                    assert holds(kind, sample.text)
    assert ended == {"json", "choice", "grammar", "regex"}


@pytest.mark.parametrize(
    ("variant", "rule"),
    [(name, rule) for name, config in VARIANTS.items() for rule in fitting(config) if VERIFIERS[rule].lossless],
)
def test_every_rule_stays_in_the_language(models: Models, variant: str, rule: str) -> None:
    llm = models.llm(VARIANTS[variant] | {"verifier": rule, "num_speculative_tokens": 4})
    for temperature in (0.0, 1.0):
        output = llm.generate(prompts([17])[0], asked("json", temperature))[0].outputs[0]
        if output.finish_reason == "stop":
            assert holds("json", output.text)
        else:
            assert output.text.startswith('{"name": "')


def test_forced_tokens_save_steps(models: Models) -> None:
    params = asked("json", 0.0)
    plain = models.plain(prompts([9])[0], params)
    drafted = models.llm(VARIANTS["grammar"]).generate(prompts([9])[0], params)[0]
    assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids
    assert drafted.stats.num_accepted_draft_tokens > 15  # `"name": "` and the like, a token a letter
    assert drafted.stats.num_accepted_draft_tokens == drafted.stats.num_draft_tokens


def test_drafts_that_leave_the_language_cost_no_row(models: Models) -> None:
    """The prediction breaks the schema at its first letter: not one of its tokens is verified."""
    llm = models.llm({"method": "prediction", "num_speculative_tokens": 4})
    params = asked("json", 0.0, prediction="the ab and the cd " * 8)
    assert llm.generate(prompts([9])[0], params)[0].stats.num_draft_tokens == 0


def test_the_output_is_free_until_it_has_said_so(models: Models) -> None:
    params = asked("after", 1.0, max_tokens=300, seed=2)
    text = models.plain(prompts([9])[0], params).outputs[0].text
    free, _, rest = text.partition("of")
    assert free
    assert rest.startswith('{"name": "')


def test_preempted_sequences_keep_their_place(models: Models) -> None:
    llm = models.llm(VARIANTS["suffix"], kv_cache_tokens=256, max_num_seqs=6)
    asked_for = prompts([60, 61, 62, 63])
    params = [asked("regex", 1.0, seed=seed, max_tokens=70, min_tokens=60) for seed in range(4)]
    outputs = llm.generate(asked_for, params)
    assert sum(output.stats.num_preemptions for output in outputs) > 0
    for prompt, each, output in zip(asked_for, params, outputs, strict=True):
        same(output.outputs[0], models.plain(prompt, each).outputs[0])
    idle(llm)


def test_an_end_token_is_not_needed_where_nothing_can_follow(models: Models) -> None:
    output = models.plain(prompts([9])[0], asked("choice", 0.0, min_tokens=80, ignore_eos=True)).outputs[0]
    assert output.finish_reason == "stop"
    assert output.text in KINDS["choice"]["choice"]


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ({}, "takes one of"),
        ({"regex": "a", "choice": ["b"]}, "given: regex, choice"),
        ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern is about JSON"),
        ({"xml": "a"}, "has no setting 'xml'; it has: json, json_object"),
    ],
)
def test_contradictions_are_refused(wanted: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        SamplingParams(structured_outputs=wanted)


@pytest.mark.parametrize(
    "wanted", [{"regex": "(a"}, {"json": "{"}, {"json": {"type": "nothing"}}, {"grammar": "start: x"}, {"grammar": "%"}]
)
def test_what_is_no_grammar_is_refused(models: Models, wanted: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="structured_outputs"):
        models.llm().generate("the", SamplingParams(structured_outputs=wanted))


def test_without_the_library_the_remedy_is_named(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    llm: LLM = models.llm()
    with pytest.raises(RequestError, match=re.escape("pip install 'outrider[structured]'")):
        llm.generate("the", SamplingParams(structured_outputs={"regex": "never compiled before"}))


@pytest.mark.parametrize("variant", ["ngram", "grammar", "draft_model"])
def test_what_the_vocabulary_cannot_write_fails_alone(models: Models, variant: str) -> None:
    """The tiny vocabulary has no line feed."""
    llm = models.llm(VARIANTS[variant])
    params = [asked("choice", 0.0), SamplingParams(max_tokens=9, structured_outputs={"choice": ["ab\ncd"]})]
    with pytest.raises(GrammarError, match="loosen the constraint") as failed:
        llm.generate(["the", "the"], params)
    assert failed.value.outputs[0].outputs[0].text in KINDS["choice"]["choice"]
    idle(llm)
