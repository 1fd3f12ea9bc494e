"""A tuning run: answers by plain decoding, the search, the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.bench.data import load_prompts
from outrider.bench.runner import encode
from outrider.config import SamplingParams
from outrider.target.progress import late_bar
from outrider.target.skip import ATTENTION, MLP, skipped
from outrider.tune import layer_skip as tuner
from outrider.tune.agreement import Text

if TYPE_CHECKING:
    from outrider.llm import LLM


@dataclass(frozen=True, slots=True)
class Plan:
    """What to search on, how long, and where the result goes (None: where the method looks for it)."""

    prompts: Sequence[Path]
    limit_per_task: int | None
    max_tokens: int
    raw: bool
    trials: int
    seed: int
    out: Path | None


def layer_skip(llm: LLM, plan: Plan) -> dict[str, Any]:
    """Search and write a skip set; what was found, as plain values."""
    target = llm._engine.target
    tuner.check(target)
    rows = load_prompts(plan.prompts, plan.limit_per_task)
    asked = [encode(llm, [{"role": "user", "content": row.turns[0]}], plan.raw) for row in rows]
    params = SamplingParams(temperature=0.0, max_tokens=plan.max_tokens)
    answers = llm.generate([{"prompt_token_ids": tokens} for tokens in asked], params)
    texts = [
        Text([*tokens, *answer.outputs[0].token_ids], len(tokens))
        for tokens, answer in zip(asked, answers, strict=True)
    ]
    with late_bar("layer_skip: trials") as bar:
        tuned = tuner.search(target, texts, trials=plan.trials, seed=plan.seed, progress=bar.update)
    path = tuner.save(target, tuned, plan.out)
    return {
        "file": str(path),
        "skip_attention_layers": skipped(tuned.mask, ATTENTION),
        "skip_mlp_layers": skipped(tuned.mask, MLP),
        **tuned.facts(),
    }
