"""What a Medusa-2 run says of what it wrote: a report, and a card in the folders of the new target and of its head."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.paths import write_whole

CHANGED = (
    "Medusa-2 trains the target together with its heads: what it writes is another model, beside the one that it began "
    "from. With it, lossless means: the text of the new model."
)
_TITLES = {"target": "A target that was trained with its Medusa heads", "head": "Medusa heads and their own target"}


def report(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write ``facts`` as ``folder/report.json``, and the cards."""
    write_whole(folder / "report.json", json.dumps(dict(facts), indent=1) + "\n")
    cards(folder)


def cards(folder: Path) -> None:
    """``README.md`` in the folders ``target`` and ``head`` from the report and, where there is one, the evaluation."""
    facts = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    measured = folder / "evaluation.json"
    lengths = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else None
    for name, title in _TITLES.items():
        write_whole(folder / name / "README.md", _card(title, facts, lengths))


def _card(title: str, facts: Mapping[str, Any], lengths: Mapping[str, Any] | None) -> str:
    quality = facts["quality"]
    rows = {
        "KL(original to new), nats a token": f"{quality['kl']:.4f}",
        "tokens at which both have the same likeliest one": f"{quality['agreement']:.2%}",
        "perplexity of the answers, original": f"{quality['perplexity_original']:.3f}",
        "perplexity of the answers, new": f"{quality['perplexity_new']:.3f}",
    }
    if lengths is not None:
        names = {"chain": "chain of 4, T = 0", "tree": "tree of 16, T = 0", "sampled": "chain of 4, T = 1"}
        rows |= {f"mean acceptance length, {text}": f"{lengths[name]:.3f}" for name, text in names.items()}
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    return (
        f"---\nlibrary_name: outrider\ntags: [speculative-decoding, medusa]\n---\n\n# {title}\n\n"
        f"**This changes the target.** {CHANGED}\n\n"
        f"Began from `{facts['original']}`; the new target is `{facts['target']}`, and the heads are refused with any "
        f"other. Loss: KL(original to new) + {facts['weight']} times the heads' loss, {facts['steps']} steps; the "
        f"target learnt through updates of rank {facts['rank']} (LoRA), which are merged into its weights.\n\n"
        f"Measured on {quality['tokens']} tokens of {quality['texts']} answers of the original that were not trained "
        f"on:\n\n| | |\n|---|---|\n{table}\n"
    )
