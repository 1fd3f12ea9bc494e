"""OpenVINO GenAI's ``LLMPipeline``: plain, ``prompt_lookup``, ``draft_model``; one pipeline a mode.

All settings are the library's but for the number of threads and the prefix cache, which is on by default and would skip
the prefill of a prompt's second run. ``options``: ``attention`` is the backend of plain decoding (PA, which drafts need
and which is the default on this architecture, or SDPA).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import openvino
import openvino_genai
from openvino_genai import LLMPipeline, SchedulerConfig, StreamerBase, StreamingStatus
from protocol import Answer, Ask, Emissions, Load, serve

LOOKUP_NGRAM = 3  # of the library's own sample


class Listener(StreamerBase):
    """Notes what the pipeline emits: the tokens of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.emissions = Emissions()

    def write(self, token: Any) -> StreamingStatus:
        """One token, or several."""
        self.emissions.add([token] if isinstance(token, int) else token)
        return StreamingStatus.RUNNING

    def end(self) -> None:
        """Nothing to flush."""


class OpenVino:
    """A folder that optimum-intel exported, or a GGUF file (which cannot be a draft)."""

    pipelines: dict[str, LLMPipeline]
    end_ids: list[int]

    def load(self, load: Load) -> dict[str, Any]:
        """See ``protocol.Engine``."""
        self.end_ids = load.end_ids
        self.pipelines = {mode: _open(load, mode) for mode in load.modes}
        return {"version": openvino_genai.get_version(), "attention": load.options["attention"]}

    def answer(self, ask: Ask) -> Answer:
        """See ``protocol.Engine``."""
        pipeline = self.pipelines[ask.mode]
        config = pipeline.get_generation_config()
        config.max_new_tokens = ask.max_tokens
        config.do_sample = False
        config.stop_token_ids = set(self.end_ids)
        if ask.mode != "plain":
            config.num_assistant_tokens = ask.num_tokens
        if ask.mode == "lookup":
            config.max_ngram_size = LOOKUP_NGRAM
        prompt = openvino.Tensor(np.array([ask.token_ids], dtype=np.int64))
        listener = Listener()
        pipeline.generate(prompt, config, listener)
        return listener.emissions.answer()


def _open(load: Load, mode: str) -> LLMPipeline:
    threads = {"INFERENCE_NUM_THREADS": load.threads}
    if mode == "plain" and load.options["attention"] == "SDPA":
        return LLMPipeline(load.model, "CPU", ATTENTION_BACKEND="SDPA", **threads)
    scheduler = SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = sys.maxsize  # a prompt in one piece, as LLMPipeline does by default
    options: dict[str, Any] = {"scheduler_config": scheduler, **threads}
    if mode == "lookup":
        options["prompt_lookup"] = True
    if mode == "draft":
        options["draft_model"] = openvino_genai.draft_model(str(load.draft), "CPU", **threads)
    return LLMPipeline(load.model, "CPU", **options)


if __name__ == "__main__":
    serve(OpenVino())
