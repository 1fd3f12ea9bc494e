"""Outrider: plain, a lookup method with the planner on, a draft model with the planner on; one engine serves them."""

from __future__ import annotations

from typing import Any

from protocol import Answer, Ask, Emissions, Load, serve

from outrider import LLM, SamplingParams, SpeculationParams


class OutriderEngine:
    """``options``: ``lookup`` names the lookup method, ``exact`` the path."""

    llm: LLM
    methods: dict[str, str]

    def load(self, load: Load) -> dict[str, Any]:
        """See ``protocol.Engine``. The prefix cache is off: a prompt's second run must not skip its prefill."""
        self.methods = {"lookup": load.options["lookup"], "draft": "draft_model"}
        configs: list[dict[str, Any]] = []
        if "lookup" in load.modes:
            configs.append({"method": self.methods["lookup"]})
        if "draft" in load.modes:
            options = {"draft_dtype": load.dtype, "max_model_len": load.context}
            configs.append({"method": "draft_model", "model": load.draft, **options})
        self.llm = LLM(
            load.model,
            dtype=load.dtype,
            threads=load.threads,
            exact=load.options["exact"],
            speculative_config=configs,
            enable_prefix_caching=False,
            kv_cache_tokens=load.context,
        )
        return self.llm.describe()

    def answer(self, ask: Ask) -> Answer:
        """See ``protocol.Engine``."""
        speculation = SpeculationParams(enabled=False)
        if ask.mode != "plain":
            speculation = SpeculationParams(method=self.methods[ask.mode], num_speculative_tokens=ask.num_tokens)
        sampling = SamplingParams(temperature=0.0, max_tokens=ask.max_tokens, speculation=speculation)
        emissions = Emissions()
        for chunk in self.llm.stream({"prompt_token_ids": ask.token_ids, "cache_salt": ask.salt}, sampling):
            emissions.add(chunk.token_ids)
        output = self.llm.last_output
        return emissions.answer(output.stats.num_steps if output is not None else None)


if __name__ == "__main__":
    serve(OutriderEngine())
