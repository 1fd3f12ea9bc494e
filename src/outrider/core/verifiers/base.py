"""What every verifier is: a pure walk over a draft that turns target laws and random draws into emitted tokens.

| rule | shapes | laws | lossless | source |
|---|---|---|---|---|
| `sample` | any | any (q is not needed) | yes, and seed-exact | shared noise, arXiv 2408.07978 |
| `rejection` | chain, tree | delta, iid, without replacement, mixed | yes | arXiv 2211.17192, 2302.01318, 2305.09781 |
| `block` | chain | iid, delta | yes | arXiv 2403.10444 |
| `traversal` | chain, tree | delta, iid, without replacement, mixed | yes | arXiv 2505.12398 |
| `kseq` | chain, K iid paths (trie with multiplicities) | iid | yes | arXiv 2310.15141 |
| `typical` | any | any | no | arXiv 2401.10774 |
| `threshold` | any | any | no | arXiv 2401.10774 (fixed threshold) |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from outrider.core.draft import Delta, Draft, Iid, WithoutReplacement
from outrider.core.verifiers.table import RULES, LawName, Rule, Shape
from outrider.errors import ContractError

LAWS: dict[LawName, type] = {"delta": Delta, "iid": Iid, "without_replacement": WithoutReplacement}


class TargetLaws(Protocol):
    """The target's processed laws at the root (node -1) and at every node of one draft; computed when asked for."""

    def probs(self, node: int) -> Tensor:
        """p(. | path to ``node``) [vocab], float32 or wider, sums to one."""
        ...

    def draw(self, node: int) -> int:
        """The target's own sample after ``node``: argmax at temperature 0, shared noise above."""
        ...


class Randomness(Protocol):
    """Random draws of the classical rules. Every call names the draw; no name is used twice in a walk."""

    def categorical(self, weights: Tensor, purpose: str, node: int) -> int:
        """An index drawn in proportion to ``weights`` [any length] (non-negative, not all zero)."""
        ...

    def bernoulli(self, probability: float, purpose: str, node: int) -> bool:
        """True with ``probability`` (values above one count as one)."""
        ...


@dataclass(frozen=True, slots=True)
class Walk:
    """The outcome of a walk: the accepted nodes from the root downwards, and the token that follows them.

    ``next_token`` is the bonus token when the walk ended at a leaf, else the recovered token. Emitted tokens are
    ``[draft.tokens[n] for n in path] + [next_token]``.
    """

    path: Sequence[int]
    next_token: int


def shape_of(draft: Draft) -> Shape:
    """``paths`` when nodes stand for several merged paths, else ``chain`` or ``tree``."""
    multiplicity = draft.multiplicity
    if multiplicity is not None and (not draft.is_chain or any(count != 1 for count in multiplicity)):
        return "paths"
    return "chain" if draft.is_chain else "tree"


class Verifier(ABC):
    """A verification rule. Stateless; options are constructor arguments. ``class X(Verifier, rule="x")`` names its row.

    The class attributes are those of the row; ``laws`` are the classes of ``core.draft.Law`` that it names.
    """

    rule: ClassVar[Rule]
    name: ClassVar[str]
    lossless: ClassVar[bool]
    needs_laws: ClassVar[bool]
    shared_noise: ClassVar[bool]
    shapes: ClassVar[frozenset[Shape]]
    laws: ClassVar[frozenset[type]]

    def __init_subclass__(cls, rule: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if rule is None:
            return
        cls.rule = row = RULES[rule]
        cls.name, cls.lossless, cls.needs_laws = row.name, row.lossless, row.needs_laws
        cls.shared_noise, cls.shapes = row.shared_noise, row.shapes
        cls.laws = frozenset(LAWS[name] for name in row.laws)

    @abstractmethod
    def walk(self, draft: Draft, laws: TargetLaws, rng: Randomness) -> Walk:
        """Walk ``draft`` and return what is emitted. Raises ContractError for a draft this rule does not take."""

    @classmethod
    def refuse_kind(cls, shape: Shape, laws: Iterable[type]) -> str | None:
        """Why the rule takes no draft of ``shape`` with edges of ``laws``, or None: to be asked before weights load."""
        if shape not in cls.shapes:
            return f"verifier {cls.name!r} takes {_names(cls.shapes)} drafts, not {shape}: choose another verifier"
        for law in laws:
            if not issubclass(law, tuple(cls.laws)):
                takes = _names(kind.__name__ for kind in cls.laws)
                return f"verifier {cls.name!r} takes edges of law {takes}, not {law.__name__}: choose another verifier"
        return None

    def refuse(self, draft: Draft) -> str | None:
        """Why this rule does not take ``draft`` (shape, laws), or None when it does."""
        kinds = (Delta,) if draft.laws is None else {type(law) for law in draft.laws}
        return self.refuse_kind(shape_of(draft), kinds) if len(draft) else None

    def check(self, draft: Draft) -> None:
        """Raise ContractError when ``refuse`` has a reason."""
        reason = self.refuse(draft)
        if reason is not None:
            raise ContractError(f"{reason} (draft of {draft.source!r})")


def _names(values: Iterable[str]) -> str:
    return " or ".join(sorted(values))
