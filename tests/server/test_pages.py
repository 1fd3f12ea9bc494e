"""The playground and the dashboard in a real browser, over the tiny server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from fastapi.testclient import TestClient

from outrider.cli.main import run
from outrider.server.runner import Runner
from server.browser import browser
from server.conftest import serving, tiny
from server.test_runner import slow, until

if TYPE_CHECKING:
    from fastapi import FastAPI
    from playwright.sync_api import Browser, Page

PROMPT = "the ab of the cd of the ab of the"
FILES = {entry.name: entry.read_text() for entry in (resources.files("outrider.server") / "pages").iterdir()}
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture
def visit(chromium: Browser) -> Open:
    """Opens a page; its console must stay silent, and it must ask nobody but its server."""

    @contextmanager
    def opened(address: str, path: str = "/", expected: str = "", **settings: Any) -> Iterator[Page]:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})
        page, said = context.new_page(), []
        page.set_default_timeout(20000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: request.url.startswith(address) or said.append(request.url))
        page.goto(address + path)
        yield page
        context.close()
        assert [text for text in said if not expected or expected not in text] == []

    return opened


def ask(page: Page, text: str = PROMPT, **fields: Any) -> None:
    """Fill in the settings and send ``text``."""
    page.wait_for_selector("#send:enabled")
    for name, value in {"temperature": 0, "max_tokens": 32, "seed": 5, "tokens": 4, **fields}.items():
        if page.is_enabled(f"#{name}"):  # K is not for plain decoding
            page.fill(f"#{name}", str(value))
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")


def shown(page: Page, selector: str) -> str:
    """The text of an answer as it is drawn, without what was rejected."""
    script = """box => {
      const copy = box.cloneNode(true);
      copy.querySelectorAll("del").forEach(node => node.remove());
      return copy.textContent;
    }"""
    return str(page.eval_on_selector(selector, script))


def told(events: str) -> list[dict[str, Any]]:
    """The steps of a streamed answer."""
    chunks = [json.loads(event[6:]) for event in events.split("\n\n") if event and not event.endswith("[DONE]")]
    return [step for chunk in chunks for step in chunk["choices"][0].get("outrider", {"steps": []})["steps"]]


def colour(page: Page, selector: str, name: str = "background-color") -> str:
    return str(page.eval_on_selector(selector, f"node => getComputedStyle(node).getPropertyValue({name!r})"))


def test_pages_are_files_that_need_nothing_else(server: tuple[str, Runner]) -> None:
    for path, title in (("/", "playground"), ("/dashboard", "dashboard"), ("/docs", "API")):
        answer = httpx.get(server[0] + path)
        assert title in answer.text
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
        for name in re.findall(r'(?:src|href)="pages/([^"]+)"', answer.text):
            assert httpx.get(f"{server[0]}/pages/{name}").text == FILES[name]
    assert httpx.get(f"{server[0]}/pages/nothing.js").status_code == 404
    assert httpx.get(f"{server[0]}/pages/..%2Fapp.py").status_code == 404
    for name, text in FILES.items():
        assert "innerHTML" not in text
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}, name


def test_no_pages(folder: str) -> None:
    with serving(tiny(folder), pages=False) as (address, _):
        for path in ("/", "/dashboard", "/docs", "/pages/style.css"):
            assert httpx.get(address + path).status_code == 404
        assert httpx.get(f"{address}/v1/models").status_code == 200


@pytest.mark.parametrize("option", ["--pages", "--no-pages"])
def test_the_command_says_where_the_pages_are(
    folder: str, option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    apps: list[FastAPI] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: apps.append(self.config.app))
    assert run(["serve", folder, "--method", "suffix", "--threads", "1", "--port", "0", option]) == 0
    said = capsys.readouterr().err
    address = re.search("(http://127.0.0.1:[1-9][0-9]*)/v1", said)
    assert address is not None
    assert (f"playground: {address[1]}/, dashboard: {address[1]}/dashboard" in said) is (option == "--pages")
    status = TestClient(apps[0]).get("/").status_code
    assert status == (200 if option == "--pages" else 404)


def test_the_api_page_shows_all_routes_and_asks_nobody_else(server: tuple[str, Runner], visit: Open) -> None:
    known = httpx.get(f"{server[0]}/openapi.json").json()["paths"]
    with visit(server[0], "/docs") as page:
        page.wait_for_selector("details.route")
        assert page.locator("details.route .path").all_inner_texts() == [path for path in known for _ in known[path]]
        page.locator("details.route", has_text="/v1/chat/completions").click()
        shown = page.locator("details.route[open]").inner_text()
        for word in ("messages", "required", "temperature", "speculation", "num_speculative_tokens", "curl http"):
            assert word in shown
        assert page.inner_text("#version").startswith("outrider ")


def test_a_chat_shows_who_each_token_is_from(server: tuple[str, Runner], visit: Open) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 1, "max_tokens": 64, "seed": 5}
    whole = httpx.post(f"{server[0]}/v1/chat/completions", json=body).json()
    text = whole["choices"][0]["message"]["content"]
    with visit(server[0]) as page:
        page.wait_for_selector("#send:enabled")
        page.select_option("#method", "auto")
        page.uncheck("#markdown")
        with page.expect_response("**/v1/chat/completions") as streamed:
            ask(page, temperature=1, max_tokens=64)
        page.wait_for_selector(".turn.assistant footer button")
        steps = told(streamed.value.text())
        assert shown(page, ".turn.assistant .answer") == text
        page.wait_for_function(
            "words => document.querySelector('#announcer').textContent === words", arg=f"Answer: {text}"
        )
        drafted = sum(token["drafted"] and bool(token["text"]) for step in steps for token in step["tokens"])
        assert page.locator(".answer .t.drafted").count() == drafted > 0
        assert page.locator(".answer .ghost").count() == sum(bool(step["rejected"]) for step in steps) > 0
        assert "auto · 64 tokens" in page.inner_text(".turn.assistant footer")
        assert "seed 5" in page.inner_text(".turn.assistant footer")
        assert float(page.inner_text("#meter div:nth-child(2) dd")) > 1.0
        plain = colour(page, ".answer .t.own")
        assert colour(page, ".answer .t.drafted") not in (plain, "rgba(0, 0, 0, 0)")
        assert "line-through" in colour(page, ".answer .ghost", "text-decoration")
        page.uncheck("#colours")
        page.uncheck("#ghosts")
        assert colour(page, ".answer .t.drafted") == plain
        assert not page.is_visible(".answer .ghost")
        page.reload()
        page.wait_for_selector("#send:enabled")
        assert not page.is_checked("#colours")  # remembered in this tab


def test_a_conversation_goes_on_with_another_method_and_k(server: tuple[str, Runner], visit: Open) -> None:
    bodies: list[dict[str, Any]] = []
    with visit(server[0]) as page:
        page.on("request", lambda request: request.method == "POST" and bodies.append(json.loads(request.post_data)))
        page.wait_for_selector("#send:enabled")
        page.fill("#system", "the ab")
        for number, method in enumerate(("suffix", "auto", "plain")):
            page.select_option("#method", method)
            ask(page, max_tokens=8, tokens="" if method == "suffix" else 3)
            page.locator(".turn.assistant footer button").nth(number).wait_for()
        page.click("#clear")
        assert page.is_visible("#welcome")
        assert page.locator(".turn").count() == 0
    assert [len(body["messages"]) for body in bodies] == [2, 4, 6]
    assert bodies[0]["messages"][0] == {"role": "system", "content": "the ab"}
    assert [body["speculation"] for body in bodies] == [
        {"explain": True, "enabled": True, "method": "suffix"},
        {"explain": True, "enabled": True, "method": "auto", "num_speculative_tokens": 3},
        {"explain": True, "enabled": False},
    ]


def test_escape_and_the_button_stop_an_answer(folder: str, visit: Open) -> None:
    with serving(slow(tiny(folder))) as (address, runner), visit(address) as page:
        for number, stop in enumerate((lambda: page.keyboard.press("Escape"), lambda: page.click("#stop"))):
            ask(page, temperature=1, max_tokens=150)
            page.locator(".turn.assistant .t").nth(number).wait_for()
            stop()
            page.locator(".turn.assistant footer button").nth(number).wait_for()
            assert page.locator(".turn.assistant footer").nth(number).inner_text().endswith("stopped")
            until(lambda: runner.num_requests == 0)
            assert page.is_enabled("#prompt")


@pytest.mark.parametrize("order", ["one", "both"])
def test_a_race_is_won_with_the_same_text(server: tuple[str, Runner], visit: Open, order: str) -> None:
    with visit(server[0], "/#race") as page:
        page.check(f"[name=order][value={order}]")
        ask(page)
        page.wait_for_selector(".verdict.same")
        assert re.search(r"Identical text, \d+\.\d\d times the speed", page.inner_text("#verdict"))
        said = "one after the other" if order == "one" else "sharing the machine"
        assert said in page.inner_text("#verdict")
        assert shown(page, ".lane.plain .answer") == shown(page, ".lane.speculative .answer") != ""
        assert page.locator(".lane.plain .drafted").count() == 0 < page.locator(".lane.speculative .drafted").count()


def test_texts_that_differ_are_said_to_differ(folder: str, visit: Open) -> None:
    lossy = {"method": "suffix", "verifier": "threshold", "typical_threshold": 0.001, "num_speculative_tokens": 4}
    with serving(tiny(folder, speculative_config=lossy)) as (address, _), visit(address, "/#race") as page:
        page.wait_for_selector("#method-hint:has-text('lossy')")
        ask(page, temperature=1, max_tokens=64)
        page.wait_for_selector(".verdict.differs")
        assert "(threshold) is lossy" in page.inner_text("#verdict")
        left, right = (shown(page, f".lane.{kind} .answer") for kind in ("plain", "speculative"))
        place = int(re.findall(r"from character (\d+)", page.inner_text("#verdict"))[0])
        assert left[: place - 1] == right[: place - 1]
        assert left[:place] != right[:place]


def test_what_a_model_says_is_never_markup(server: tuple[str, Runner], visit: Open) -> None:
    text = (
        "# <b>x</b>\n\n<img src=x onerror=alert(1)> **bold `c` <i>** [no](javascript:alert(1)) [yes](https://a.b/c)\n\n"
        "- one\n  - *two*\n\n1. three\n\n> said\n\n| a | b |\n|---|---|\n| <s> | d |\n\n"
        "```html\n<script>1</script>\n```\n---"
    )
    script = """async text => {
      const { blocks, draw } = await import("/pages/markdown.js");
      const run = (parent, from, to) => parent.append(text.slice(from, to));
      const box = document.createElement("div");
      for (const block of blocks(text)) box.append(draw(text, block, run));
      document.body.append(box);
      return { tags: [...box.querySelectorAll("*")].map(node => node.localName), text: box.textContent,
               links: [...box.querySelectorAll("a")].map(node => node.href) };
    }"""
    with visit(server[0]) as page:
        found = page.evaluate(script, text)
    assert not {"img", "b", "i", "s", "script"} & set(found["tags"])
    assert {"h3", "strong", "em", "ul", "blockquote", "table", "pre", "hr", "code"} <= set(found["tags"])
    assert found["links"] == ["https://a.b/c"]
    for part in ("<b>x</b>", "<img src=x onerror=alert(1)>", "[no](javascript:alert(1))", "<script>1</script>"):
        assert part in found["text"]


def test_light_and_dark(server: tuple[str, Runner], visit: Open) -> None:
    for path in ("/", "/dashboard"):
        seen = []
        for scheme in ("light", "dark"):
            with visit(server[0], path, color_scheme=scheme) as page:
                seen.append(colour(page, "body"))
                page.click("#theme")
                seen.append(colour(page, "body"))
                assert page.get_attribute("#theme", "aria-pressed") == str(scheme == "light").lower()
                page.reload()
                assert colour(page, "body") == seen[-1]
        light, dark = seen[:2]
        assert light != dark
        assert seen[2:] == [dark, light]


def test_a_wrong_key_is_refused_and_the_right_one_kept_in_the_tab(folder: str, visit: Open) -> None:
    with (
        serving(tiny(folder), api_keys=("right",)) as (address, _),
        visit(address, expected="401 (Unauthorized)") as page,
    ):
        page.wait_for_selector("#key-field")
        assert page.is_disabled("#send")
        for given, said in (("", "asks for an API key"), ("wrong", "does not take this API key")):
            page.fill("#key", given)
            page.click("#connect")
            page.wait_for_selector(f"#trouble:has-text('{said}')")
        page.fill("#key", "right")
        page.press("#key", "Enter")
        page.wait_for_selector("#send:enabled")
        assert not page.is_visible("#trouble")
        assert page.evaluate("[sessionStorage['outrider.key'], Object.values(localStorage).join()]") == ["right", ""]
        ask(page)
        page.wait_for_selector(".turn.assistant footer button")


def test_what_the_server_refuses_is_said(server: tuple[str, Runner], visit: Open) -> None:
    with visit(server[0], expected="400 (Bad Request)") as page:
        ask(page, "the ab " * 300)
        page.wait_for_selector("#trouble:has-text('leaves no room')")
        assert page.input_value("#prompt").startswith("the ab")
        assert page.locator(".turn").count() == 0
        ask(page, top_p=7)
        page.wait_for_selector("#trouble:has-text('Top-p')")


def test_the_keyboard_reaches_everything_and_small_screens_fit(server: tuple[str, Runner], visit: Open) -> None:
    with visit(server[0]) as page:
        page.wait_for_selector("#send:enabled")
        page.focus("#tab-chat")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.id") == "tab-race"
        assert page.is_visible("#race")
        assert not page.is_visible("#chat")
        unnamed = """() => [...document.querySelectorAll("input, select, textarea, button")].filter(node =>
            !(node.labels?.length || node.getAttribute("aria-label") || node.textContent.trim())
        ).map(node => node.outerHTML)"""
        assert page.evaluate(unnamed) == []
    for path in ("/", "/#race", "/dashboard"):
        with visit(server[0], path, viewport={"width": 360, "height": 700}) as page:
            assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_dashboard_shows_what_the_server_counts(server: tuple[str, Runner], visit: Open) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    for speculation in ({"method": "suffix"}, {"enabled": False}):
        httpx.post(f"{server[0]}/v1/completions", json={**body, "speculation": speculation})
    stats = httpx.get(f"{server[0]}/stats").json()["methods"]["suffix"]
    with visit(server[0], "/dashboard", expected="ERR_FAILED") as page:
        page.wait_for_selector(".state.live")
        page.check("[name=range][value='']", force=True)
        row = page.locator("#methods tbody tr", has_text="suffix")
        cells = [cell.replace(",", "") for cell in row.locator("td").all_inner_texts()]
        assert cells[:3] == ["suffix", str(stats["num_tokens"]), str(stats["num_steps"])]
        assert cells[6] == f"{100 * stats['num_accepted_tokens'] / stats['num_draft_tokens']:.0f} %"
        assert page.locator("#positions rect").count() > 0
        assert page.get_attribute("#speed svg", "aria-label").startswith("Tokens per second, now")
        page.select_option("#method", "plain")
        assert "Nothing was drafted" in page.inner_text("#positions")
        page.click("#pause")
        assert page.inner_text("#state-words") == "paused"
        page.click("#pause")
        page.wait_for_selector(".state.live")
        page.route("**/stats", lambda route: route.abort())
        page.wait_for_selector(".state.lost:has-text('does not answer')")
        page.unroute("**/stats")
        page.wait_for_selector(".state.live")
