"""The heads that come with the package: small enough, for a known target, with a card that says what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.cli.main import run
from outrider.heads import files, shipped

FOLDERS = sorted(path.parent for path in shipped.FOLDER.glob("*/config.json"))
LIMIT = 16_000_000  # bytes of a head


def test_the_default_model_has_a_head() -> None:
    assert shipped.find("eagle3", "llama-30x576-v49152") is not None
    assert shipped.find("eagle3", "llama-2x32-v96") is None


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_shipped_head_is_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LIMIT
    head = files.load(folder)
    assert shipped.find(head.config.kind, head.config.target) == folder
    assert len(head.config.canary) > 64
    assert head.config.canary_agreement > 0.2
    assert run(["heads", "inspect", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["layout"] == "outrider-int8"
    assert facts["weights"] == sum(value.numel() for value in head.state_dict().values() if value.is_floating_point())
    card = (folder / "README.md").read_text(encoding="utf-8")
    for part in ("license: apache-2.0", "## Data", "## Commands", "## Measured"):
        assert part in card
