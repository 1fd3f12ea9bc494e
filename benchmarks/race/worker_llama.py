"""llama.cpp through llama-cpp-python: plain, its ``LlamaPromptLookupDecoding``, and a draft model.

llama-cpp-python has an interface for drafts but no draft model; ``PairedDraft`` drafts greedily with a second model in
the same process, as llama.cpp's own speculation does with its defaults (three tokens a step, no confidence threshold).
"""

from __future__ import annotations

from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaDraftModel, LlamaPromptLookupDecoding
from protocol import Answer, Ask, Emissions, Load, serve

GREEDY = {"temp": 0.0, "repeat_penalty": 1.0}


class CountingLlama(Llama):
    """Counts its forwards."""

    num_evals = 0

    def eval(self, tokens: Any) -> None:
        """As in ``Llama``."""
        self.num_evals += 1
        super().eval(tokens)


class PairedDraft(LlamaDraftModel):
    """Continues the text with a smaller model, ``num_tokens`` at a time. Its cache keeps what the text still holds."""

    def __init__(self, llm: Llama) -> None:
        self.llm = llm
        self.num_tokens = 0
        llm._sampler = llm._init_sampler(**GREEDY)

    def prefill(self, token_ids: list[int]) -> None:
        """Forget the last text and read all of a prompt."""
        self.llm.reset()
        self.llm.eval(token_ids)

    def __call__(self, input_ids: Any, /, **_: Any) -> Any:
        """Drafted ids [num_tokens] after ``input_ids`` [text]."""
        kept = min(self.llm.n_tokens, len(input_ids) - 1)
        differ = np.nonzero(self.llm.input_ids[:kept] != input_ids[:kept])[0]
        self.llm.n_tokens = int(differ[0]) if len(differ) else kept  # eval drops the cache behind it
        new: list[int] = input_ids[self.llm.n_tokens :].tolist()
        drafted: list[int] = []
        while len(drafted) < self.num_tokens:
            self.llm.eval(new)
            drafted.append(self.llm.sample(**GREEDY))
            new = drafted[-1:]
        return np.array(drafted, dtype=np.intc)


class LlamaCpp:
    """Two models over one mapped file: llama-cpp-python computes all logits of a prompt where drafts are to come."""

    plain: CountingLlama
    drafted: CountingLlama | None = None
    pair: PairedDraft | None = None
    end_ids: frozenset[int]

    def load(self, load: Load) -> dict[str, Any]:
        """See ``protocol.Engine``."""
        self.end_ids = frozenset(load.end_ids)
        self.plain = _open(load.model, load)
        if set(load.modes) - {"plain"}:
            self.drafted = _open(load.model, load, logits_all=True)
        if "draft" in load.modes:
            self.pair = PairedDraft(_open(str(load.draft), load))
        system = llama_cpp.llama_print_system_info().decode()
        return {"version": llama_cpp.__version__, "system": system, "flash_attn": load.options["flash_attn"]}

    def answer(self, ask: Ask) -> Answer:
        """See ``protocol.Engine``."""
        llm = self.plain if ask.mode == "plain" else self.drafted
        assert llm is not None
        llm.reset()  # no prefix of the last prompt is kept
        llm.draft_model = self._draft(ask)
        llm.num_evals = 0
        emissions = Emissions()
        if ask.mode == "draft" and self.pair is not None:
            self.pair.prefill(ask.token_ids)
        for token in llm.generate(ask.token_ids, **GREEDY):
            emissions.add([token])
            if token in self.end_ids or len(emissions.token_ids) == ask.max_tokens:
                break
        return emissions.answer(llm.num_evals - 1)

    def _draft(self, ask: Ask) -> LlamaDraftModel | None:
        if ask.mode == "lookup":
            return LlamaPromptLookupDecoding(num_pred_tokens=ask.num_tokens)
        if ask.mode == "draft" and self.pair is not None:
            self.pair.num_tokens = int(ask.num_tokens or 0)
            return self.pair
        return None


def _open(path: str, load: Load, logits_all: bool = False) -> CountingLlama:
    return CountingLlama(
        path,
        n_ctx=load.context,
        n_threads=load.threads,
        n_threads_batch=load.threads,
        logits_all=logits_all,
        flash_attn=load.options["flash_attn"],
        verbose=False,
    )


if __name__ == "__main__":
    serve(LlamaCpp())
