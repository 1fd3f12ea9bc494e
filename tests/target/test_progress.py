"""Progress bars that appear late, and only where somebody watches."""

from __future__ import annotations

import pytest

from outrider.target import progress


def test_a_bar_leaves_nothing_in_a_file_or_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER", -1.0)
    monkeypatch.setenv("TERM", "dumb")
    with progress.late_bar("work") as bar:
        bar.update(1, 2)
    assert capsys.readouterr().err == ""


def test_a_bar_is_drawn_in_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHOW_AFTER", -1.0)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.late_bar("work") as bar:
        bar.update(1, 2)
    assert "work" in capsys.readouterr().err
