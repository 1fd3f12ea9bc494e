"""Stage four: what the real engine accepts of a head's drafts on prompts that it was not trained on.

The acceptance that a fit reports is teacher-forced; this one is what a user gets. It is exact and greedy (or seeded),
so the same head always gets the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider.config import SamplingParams
from outrider.core.accounting import SpeculationStats
from outrider.heads.config import RECURRENT, HeadKind
from outrider.llm import LLM

CHAIN, NODES = 4, 16
TEMPERATURES = (1.0, 0.85, 0.7, 1.2)  # draft temperatures that are tried; of equal ones the first is taken


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Mean acceptance lengths: a chain of four and a tree of sixteen at temperature 0, a chain at temperature 1 with
    shared noise."""

    chain: float
    tree: float
    sampled: float

    def text(self) -> str:
        """In one line."""
        return ", ".join(f"{name} {value:.3f}" for name, value in asdict(self).items())


def evaluate(
    target: str, kind: HeadKind, head: Path, prompts: Sequence[Sequence[int]], max_tokens: int, **options: Any
) -> Evaluation:
    """Answer ``prompts`` with the head in the folder ``head``. ``options``: of ``LLM``."""
    chain = {"method": kind, "model": str(head), "num_speculative_tokens": CHAIN}
    tree = {"method": kind, "model": str(head), **_tree(kind), "num_speculative_tokens": NODES}
    greedy = [SamplingParams(temperature=0.0, max_tokens=max_tokens, detokenize=False)] * len(prompts)
    with LLM(target, speculative_config=chain, strict=True, **options) as llm:
        lengths = [_length(llm, prompts, params) for params in (greedy, _drawn(len(prompts), max_tokens))]
    with LLM(target, speculative_config=tree, strict=True, **options) as llm:
        return Evaluation(lengths[0], _length(llm, prompts, greedy), lengths[1])


def calibrate(
    target: str, kind: HeadKind, head: Path, prompts: Sequence[Sequence[int]], max_tokens: int, **options: Any
) -> dict[float, float]:
    """Mean acceptance length of a chain at temperature 1 with shared noise, by draft temperature.

    A head is trained on the target's law at temperature 1 and is less certain than the target. With shared noise the
    draft is the best of log q + noise, so that how q is spread decides how often the noise overrules what both know.
    The answers are the same at every draft temperature, and so the comparison is of pairs.
    """
    drawn = _drawn(len(prompts), max_tokens)
    lengths = {}
    for temperature in TEMPERATURES:
        config = {"method": kind, "model": str(head), "num_speculative_tokens": CHAIN, "draft_temperature": temperature}
        with LLM(target, speculative_config=config, strict=True, **options) as llm:
            lengths[temperature] = _length(llm, prompts, drawn)
    return lengths


def _drawn(count: int, max_tokens: int) -> list[SamplingParams]:
    """Of answers at temperature 1, each with a seed of its own."""
    one = SamplingParams(temperature=1.0, max_tokens=max_tokens, detokenize=False)
    return [one.model_copy(update={"seed": number}) for number in range(count)]


def _tree(kind: HeadKind) -> dict[str, Any]:
    """A dynamic tree; of a recurrent head as deep as a chain of its budget pays."""
    depth = 6 if kind in RECURRENT else CHAIN
    return {"tree_kind": "dynamic", "tree_nodes": NODES, "tree_depth": depth, "tree_topk": 4}


def _length(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> float:
    outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
    return SpeculationStats.pooled(output.stats for output in outputs).mean_acceptance_length or 1.0
