"""What `outrider serve` refuses before it loads anything."""

from __future__ import annotations

import pytest

from outrider.cli.main import run


@pytest.mark.parametrize("option", [["-k", "4"], ["--draft", "x"], ["--speculative-config", '{"method": "ngram"}']])
def test_plain_takes_no_other_speculation(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "nowhere", "--method", "plain", *option]) == 2
    assert "--method plain takes no" in capsys.readouterr().err
