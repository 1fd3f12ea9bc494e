"""Where a bundle can be written is known before the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.bench import bundle
from outrider.errors import ConfigError


def test_a_place_that_cannot_be_written_is_refused_early(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (str(tmp_path / "file" / "x.json"), str(tmp_path / "file" / "folder")):
        with pytest.raises(ConfigError, match="name another place"):
            bundle.check_place(out)


def test_good_places_are_left_as_they_were(tmp_path: Path) -> None:
    for out in (None, "-", str(tmp_path / "a" / "x.json"), str(tmp_path / "b")):
        bundle.check_place(out)
    assert not list((tmp_path / "b").iterdir())
    assert not list((tmp_path / "a").iterdir())
