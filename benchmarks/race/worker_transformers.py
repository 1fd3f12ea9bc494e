"""transformers' ``generate``: plain, ``prompt_lookup_num_tokens``, ``assistant_model``; SDPA attention."""

from __future__ import annotations

import copy
from typing import Any

import torch
from protocol import Answer, Ask, Emissions, Load, serve
from transformers import AutoModelForCausalLM, __version__
from transformers.generation.streamers import BaseStreamer


class Listener(BaseStreamer):
    """Notes what ``generate`` emits; the first thing it is given is the prompt."""

    def __init__(self) -> None:
        self.emissions = Emissions()
        self.prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        """Tokens of a step, any shape."""
        if self.prompt_seen:
            self.emissions.add(value.flatten().tolist())
        self.prompt_seen = True

    def end(self) -> None:
        """Nothing to flush."""


class Transformers:
    """A folder that ``save_pretrained`` wrote, in ``dtype``, and its draft in the same."""

    model: Any
    draft: Any = None
    end_ids: list[int]

    def load(self, load: Load) -> dict[str, Any]:
        """See ``protocol.Engine``."""
        torch.set_num_threads(load.threads)
        self.end_ids = load.end_ids
        self.model = _model(load.model, load.dtype)
        if "draft" in load.modes:
            self.draft = _model(str(load.draft), load.dtype)
        return {"version": __version__, "torch": torch.__version__, "dtype": load.dtype}

    def answer(self, ask: Ask) -> Answer:
        """See ``protocol.Engine``."""
        config = copy.deepcopy(self.model.generation_config)
        config.update(do_sample=False, temperature=None, top_p=None, top_k=None, max_new_tokens=ask.max_tokens)
        config.eos_token_id = self.end_ids
        options: dict[str, Any] = {}
        if ask.mode == "lookup":
            options["prompt_lookup_num_tokens"] = ask.num_tokens
        elif ask.mode == "draft":
            options["assistant_model"] = self.draft
            if ask.num_tokens is not None:  # set on the draft: it is the one whose settings are read
                self.draft.generation_config.update(
                    num_assistant_tokens=ask.num_tokens, num_assistant_tokens_schedule="constant"
                )
        ids = torch.tensor([ask.token_ids])
        listener = Listener()
        with torch.inference_mode():
            self.model.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=listener, **options
            )
        return listener.emissions.answer()


def _model(folder: str, dtype: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return model.eval()


if __name__ == "__main__":
    serve(Transformers())
