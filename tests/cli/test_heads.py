"""``outrider heads`` on fakes."""

from __future__ import annotations

import pytest

from outrider.engine import heads


def test_what_a_head_does_not_say_is_a_dash(cli, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(heads, "examine", lambda model, folder: {"agreement": 0.25, "recorded": None, "tokens": 1000})
    outcome = cli("heads", "check", str(tmp_path), "--target", "m")
    assert [line.split() for line in outcome.out.splitlines()] == [
        ["agreement", "0.25"],
        ["recorded", "-"],
        ["tokens", "1,000"],
    ]
