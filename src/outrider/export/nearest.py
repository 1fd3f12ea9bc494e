"""What to use where an engine lacks a method or a rule: the nearest one, in the order in which to try."""

from __future__ import annotations

from collections.abc import Collection

METHODS: dict[str, tuple[str, ...]] = {
    "ngram": ("suffix",),
    "suffix": ("ngram",),
    "rest": ("suffix", "ngram"),
    "prediction": ("suffix", "ngram"),
    "grammar": ("ngram",),
    "draft_model": ("ngram",),
    "eagle3": ("eagle", "draft_model"),
    "eagle": ("eagle3", "draft_model"),
    "eagle2": ("eagle", "eagle3", "draft_model"),
    "mtp": ("eagle3", "draft_model"),
    "medusa": ("eagle3", "draft_model"),
    "hydra": ("eagle3", "draft_model"),
    "hydra_plus": ("eagle3", "draft_model"),
    "specinfer": ("draft_model",),
    "spectr": ("draft_model",),
    "hierarchical": ("draft_model",),
    "token_recycling": ("suffix", "ngram"),
    "lookahead": ("suffix", "ngram"),
    "ouroboros": ("draft_model",),
    "layer_skip": ("draft_model", "ngram"),
    "self_quantized": ("draft_model",),
    "merge": ("draft_model", "ngram"),
    "route": ("draft_model", "ngram"),
    "auto": ("draft_model", "ngram"),
    "synthetic": (),
}
_ABOUT = {
    "eagle3": "train a head for it with `outrider train eagle3`",
    "draft_model": "a small model with the target's vocabulary",
    "eagle": "the same head, drafting a chain",
}
_OF_SEVERAL = ("merge", "route", "auto")  # methods that are made of others
RULES: dict[str, tuple[str, ...]] = {
    "sample": ("rejection",),
    "rejection": ("sample",),
    "block": ("rejection", "sample"),
    "traversal": ("rejection", "sample"),
    "kseq": ("rejection", "sample"),
    "typical": ("sample",),
    "threshold": ("sample",),
}


def method(name: str, able: Collection[str]) -> str:
    """The nearest method of those that an engine is ``able`` to, as a hint."""
    found = next((other for other in METHODS[name] if other in able), None)
    if found is None:
        return "there is none: it is for tests, and plain serving is what comes closest"
    about = f" ({_ABOUT[found]})" if found in _ABOUT else ""
    several = "one of its members alone, such as " if name in _OF_SEVERAL else ""
    return f"the nearest is {several}{found!r}{about}"


def rule(name: str, able: Collection[str]) -> str:
    """The nearest rule, as a hint."""
    found = next((other for other in RULES[name] if other in able), "sample")
    return f"the nearest is verifier {found!r}, which is lossless"
