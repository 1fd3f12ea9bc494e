"""The page stands alone, carries its record, and takes nothing in it for markup."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from engine.tiny import VARIANTS, Models
from outrider import SamplingParams
from outrider.config import SpeculativeConfig
from outrider.telemetry.page import embedded, render
from outrider.telemetry.record import Trace
from outrider.telemetry.trace import trace

HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> & \u2028 \ud800 \"'`${1}"


class Page(HTMLParser):
    """Elements, their attributes, and the text of script elements by id."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script":
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def record(models: Models) -> Trace:
    llm = models.llm(VARIANTS["suffix tree"])
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    return trace(llm, llm.get_tokenizer().encode("the abc <b> the abc"), params, SpeculativeConfig(method="suffix"))


def hostile(record: Trace) -> Trace:
    step = record.steps[1]
    token = replace(step.emitted[0], text=HOSTILE)
    return replace(
        record,
        prompt=HOSTILE,
        text=HOSTILE,
        method=HOSTILE,
        steps=[record.steps[0], replace(step, root=HOSTILE, words=HOSTILE, emitted=[token, *step.emitted[1:]])],
    )


def test_the_page_embeds_the_record(record: Trace) -> None:
    page = Page(render(record))
    found = json.loads(page.scripts[0])
    assert found == json.loads(json.dumps(record.to_dict()))
    assert found["format"] == "outrider-trace/1"
    assert found["stats"]["num_steps"] == len(found["steps"]) - 1
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_hostile_text_stays_text(record: Trace) -> None:
    bad = hostile(record)
    text = embedded(bad)
    assert not set(text) & set("<>&")
    assert text.isascii()
    page = Page(render(bad))
    assert json.loads(page.scripts[0])["prompt"] == HOSTILE
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in Page(render(record)).elements]
    assert "onerror" not in render(bad).replace(text, "")


def test_nothing_is_loaded_from_elsewhere(record: Trace) -> None:
    text = render(record)
    page = Page(text)
    assert not [tag for tag, attributes in page.elements if {"src", "href"} & set(attributes)]
    assert not {"link", "iframe", "object", "base"} & {tag for tag, _ in page.elements}
    shell = text.replace(embedded(record), "").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in shell.replace("http-equiv", "")
    assert "@import" not in shell
    assert "url(" not in shell
    policy = next(a["content"] for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_the_script_never_writes_markup(record: Trace) -> None:
    script = Page(render(record)).scripts[1]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in script
