"""What each verification rule takes and promises, as plain data: reading it needs no tensor library.

The rules' classes take their facts from here, and so does the check that a method and a rule go together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Shape: TypeAlias = Literal["chain", "tree", "paths"]
LawName: TypeAlias = Literal["delta", "iid", "without_replacement"]

ANY_SHAPE: frozenset[Shape] = frozenset({"chain", "tree", "paths"})
ANY_LAW: tuple[LawName, ...] = ("delta", "iid", "without_replacement")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``needs_laws`` False: q is never looked at, so every tree may be pruned after it was drawn.

    ``shared_noise``: drafters may perturb with the noise the target will use. ``laws``: those of an edge that the rule
    takes, mixed in one draft as well. ``options``: keys of the speculative config that it reads.
    """

    name: str
    lossless: bool = True
    needs_laws: bool = True
    shared_noise: bool = False
    shapes: frozenset[Shape] = frozenset({"chain", "tree"})
    laws: tuple[LawName, ...] = ANY_LAW
    options: tuple[str, ...] = ()

    @property
    def merges_paths(self) -> bool:
        """Paths are handed over as a trie that counts them; other rules take them as siblings."""
        return "paths" in self.shapes and "tree" not in self.shapes


_RULES = (
    Rule("sample", needs_laws=False, shared_noise=True, shapes=ANY_SHAPE),
    Rule("rejection"),
    Rule("block", shapes=frozenset({"chain"}), laws=("delta", "iid")),
    Rule("traversal"),
    Rule("kseq", shapes=frozenset({"chain", "paths"}), laws=("iid",)),
    Rule(
        "typical",
        lossless=False,
        needs_laws=False,
        shared_noise=True,
        shapes=ANY_SHAPE,
        options=("typical_threshold", "typical_alpha"),
    ),
    Rule(
        "threshold",
        lossless=False,
        needs_laws=False,
        shared_noise=True,
        shapes=ANY_SHAPE,
        options=("typical_threshold",),
    ),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _RULES}
