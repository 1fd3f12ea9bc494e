"""The one description of a deployment that every engine's configuration is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from outrider.config import Settings, SpeculativeConfig
from outrider.drafters import registry
from outrider.errors import ConfigError
from outrider.export.schedule import LoadSchedule

PUBLIC = {"smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct"}  # what other engines know our names as
_FREE = ("method", "model", "num_speculative_tokens", "verifier")  # of a config, what every engine deals with


class Deployment(Settings):
    """A target, how it drafts, and how it is served.

    ``speculation``: method, draft model or head (``model``), K, tree and rule, in Outrider's own settings.
    ``load_schedule``: K by batch size. ``temperature``: the one that requests will mostly have.
    """

    target: str = Field(min_length=1)
    speculation: SpeculativeConfig
    load_schedule: LoadSchedule | None = None
    temperature: float = Field(default=0.0, ge=0.0)
    max_model_len: int | None = Field(default=None, ge=2)
    tensor_parallel_size: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        row = registry.check(self.speculation)
        if self.speculation.num_speculative_tokens == 0:
            raise ValueError("num_speculative_tokens=0 speculates never: give 1 or more, or serve without speculation")
        fixed = self.speculation.num_speculative_tokens
        if self.load_schedule is None:
            return self
        if self.load_schedule.most == 0:
            raise ValueError("load schedule: no batch size drafts anything; serve without speculation")
        if fixed is not None and self.load_schedule.most > fixed:
            raise ValueError(
                f"load schedule: it has {self.load_schedule.most} draft tokens and num_speculative_tokens is {fixed}: "
                "raise num_speculative_tokens or leave it out"
            )
        if self.branches:
            raise ValueError(
                f"load schedule: it counts tokens of a chain, and method {row.method!r} drafts trees here: leave the "
                "schedule out (beside --advice with -k), or the tree"
            )
        return self

    @property
    def method(self) -> str:
        """Id of the drafting method."""
        return self.speculation.method

    @property
    def num_tokens(self) -> int:
        """K: as given, the schedule's largest, or the method's default."""
        given = self.speculation.num_speculative_tokens
        if given is not None:
            return given
        if self.load_schedule is not None:
            return self.load_schedule.most
        tree = self.speculation
        if tree.tree_kind == "dynamic" and tree.tree_nodes is not None:
            return tree.tree_nodes
        return registry.info(self.method).default_tokens

    @property
    def branches(self) -> bool:
        """Whether drafts are trees with more than one child anywhere."""
        config = self.speculation
        wide = config.tree is not None and any(width > 1 for width in config.tree)
        return wide or config.tree_kind not in (None, "widths") or config.suffix_decoding_tree or config.num_paths > 1

    @property
    def public_target(self) -> str:
        """The target's name outside of Outrider."""
        return PUBLIC.get(self.target, self.target)

    def given(self) -> Mapping[str, Any]:
        """Settings of the method that differ from their defaults, without those that every engine deals with."""
        config = self.speculation
        fields = type(config).model_fields
        return {
            key: getattr(config, key)
            for key in sorted(config.model_fields_set)
            if key not in _FREE and getattr(config, key) != fields[key].default
        }

    def model(self, what: str) -> str:
        """The draft model or head, under the name that other engines know. Raises ConfigError where there is none."""
        if self.speculation.model is None:
            raise ConfigError(f"method {self.method!r} needs {what}: name it with --draft")
        return PUBLIC.get(self.speculation.model, self.speculation.model)
