"""The systems that are compared: Outrider in a setting, and transformers' ``generate`` as its documentation says.

Both are given prompt ids and return the generated ids with an EOS included, and both stop at the same ids.
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from measure import ForwardClock, all_threads, call_stats, charge_rest
from torch import Tensor

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.bench.runner import PLAIN
from outrider.outputs import RequestStats
from outrider.target.load import resolve
from outrider.target.quiet import quiet


@dataclass(frozen=True, slots=True)
class Outrider:
    """One loaded engine with one way to speculate."""

    label: str
    llm: LLM
    speculation: SpeculationParams = PLAIN.speculation
    seed: int = 0

    def answer(self, token_ids: list[int], max_tokens: int, index: int, salt: str) -> tuple[list[int], RequestStats]:
        """See ``harness.System``; ``salt`` keeps stores that outlive a request apart."""
        sampling = SamplingParams(
            temperature=0.0, max_tokens=max_tokens, seed=self.seed + index, speculation=self.speculation
        )
        began = time.perf_counter()
        (output,) = self.llm.generate([{"prompt_token_ids": token_ids, "cache_salt": salt}], sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        return list(output.outputs[0].token_ids), charge_rest(output.stats, seconds)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A transformers model and the clock of its forwards."""

    model: Any
    dtype: str
    clock: ForwardClock = field(default_factory=ForwardClock)

    def __post_init__(self) -> None:
        self.model.register_forward_pre_hook(self.clock.begin, with_kwargs=True)
        self.model.register_forward_hook(self.clock.end)

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        config = self.model.config
        return {"dtype": self.dtype, "attention": config._attn_implementation, "weight_bytes": self.weight_bytes()}

    def weight_bytes(self) -> int:
        """Bytes of the matrices that one forward streams (a head tied to the embedding counts once)."""
        linears = [part for part in self.model.modules() if isinstance(part, torch.nn.Linear)]
        unique = {part.weight.data_ptr(): part.weight for part in linears}
        return sum(weight.numel() * weight.element_size() for weight in unique.values())


def load_transformers(model: str, dtype: str) -> Loaded:
    """The model of the same (converted) folder, through transformers, with SDPA attention."""
    from transformers import AutoModelForCausalLM

    with quiet():
        loaded = AutoModelForCausalLM.from_pretrained(
            resolve(model).location, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    return Loaded(loaded.eval(), dtype)


def generation_config(loaded: Loaded, end_ids: frozenset[int] | None, max_tokens: int) -> Any:
    """Greedy, with the model's own generation config otherwise; ``end_ids`` None: an EOS does not end an answer."""
    config = copy.deepcopy(loaded.model.generation_config)
    config.update(do_sample=False, temperature=None, top_p=None, top_k=None, max_new_tokens=max_tokens)
    config.eos_token_id = sorted(end_ids) if end_ids is not None else None
    return config


@dataclass(frozen=True, slots=True)
class Transformers:
    """``model.generate`` for one prompt. ``options``: what switches its speculation on."""

    label: str
    loaded: Loaded
    end_ids: frozenset[int]
    options: dict[str, Any] = field(default_factory=dict)
    assistant: Loaded | None = None

    def answer(self, token_ids: list[int], max_tokens: int, index: int, salt: str) -> tuple[list[int], RequestStats]:
        """See ``harness.System``; ``index`` and ``salt`` have no meaning for a greedy call without stores."""
        target, draft = self.loaded.clock, self.assistant.clock if self.assistant is not None else None
        config = generation_config(self.loaded, self.end_ids, max_tokens)
        options = dict(self.options)
        if self.assistant is not None:
            options["assistant_model"] = self.assistant.model
        ids = torch.tensor([token_ids])
        target.clear()
        if draft is not None:
            draft.clear()
        began = time.perf_counter()
        with all_threads(), torch.inference_mode():
            out: Tensor = self.loaded.model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, **options
            )
        ended = time.perf_counter()
        tokens = out[0, len(token_ids) :].tolist()
        return tokens, call_stats(began, ended, len(token_ids), len(tokens), target, draft)


def open_engine(args: Any, *, dtype: str, exact: bool, configs: list[dict[str, Any]] | None = None) -> LLM:
    """An Outrider engine without a prefix cache: a prompt's second run must not skip its prefill."""
    return LLM(
        args.model,
        dtype=dtype,
        exact=exact,
        threads=args.threads,
        seed=args.seed,
        speculative_config=configs,
        enable_prefix_caching=False,
        kv_cache_tokens=args.kv_cache_tokens,
    )


def suffix_of(exact: bool) -> str:
    """How labels tell the paths apart."""
    return "" if exact else " exact=False"
