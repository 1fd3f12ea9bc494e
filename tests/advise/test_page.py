"""The page of a document, and the command's refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider.advise import page
from outrider.cli.advise import _loads
from outrider.cli.main import run
from outrider.errors import ConfigError


def _document() -> dict:
    cell = {"label": "ngram", "batch": 1, "low": 1.1, "high": 1.4}
    predictions = [cell | {"num_speculative_tokens": k, "speedup": 1.0 + k / 10} for k in (1, 2, 3)]
    by_load = {"1": {"num_speculative_tokens": 3, "speedup": 1.3}, "8": {"num_speculative_tokens": 1, "speedup": 1.05}}
    return {
        "manifest": {
            "model": {"model": "<target>", "threads": 1, "dtype": "float16"},
            "machine": {"cpu": "a CPU"},
            "outrider": "0",
            "created": "today",
        },
        "recommendation": {"label": "ngram", "method": "ngram", "num_speculative_tokens": 3},
        "reasons": ["because <of> it"],
        "ranking": [{"label": "ngram", "by_concurrency": by_load}],
        "rules": [{"says": "a rule", "verdict": "not tested", "figure": "none"}],
        "predictions": predictions,
        "proofs": [],
        "acceptance": {"ngram": {"conditional": [0.5, 0.25, None], "agreement": None, "num_positions": 0}},
        "refused": {"layer_skip": "nothing was tuned"},
        "prompts": {"answers": 3, "screened": 3, "tasks": ["t"], "screen_seconds": 1.0},
    }


def test_the_page_stands_alone_and_takes_nothing_for_markup() -> None:
    html = page.render(_document())
    assert "&lt;target&gt;" in html
    assert "&lt;of&gt;" in html
    assert not re.search(r"(src|href)=|https?://|<script", html)
    assert html.count("<svg") == 4
    assert "layer_skip" in html


def test_the_page_says_that_nothing_pays() -> None:
    value = _document()
    value["recommendation"] = {"label": "plain", "method": None, "num_speculative_tokens": 0}
    assert "without speculation" in page.render(value)


def test_missing_prompts_say_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "--target", "smollm2-135m"]) == 2
    assert "--prompts is missing" in capsys.readouterr().err


def test_a_draft_that_is_not_there_is_an_error_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("Why?\n")
    call = ["advise", "--target", "smollm2-135m", "--prompts", str(prompts), "--draft", "./nowhere"]
    assert run(call) == 2
    captured = capsys.readouterr()
    assert "--draft ./nowhere: model='./nowhere' does not exist" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("text", ["", "0", "1,x"])
def test_loads_are_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="--concurrency"):
        _loads(text)


def test_loads_are_sorted_once() -> None:
    assert _loads("8, 1,8") == [1, 8]
