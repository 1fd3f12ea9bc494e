"""What is compared: methods, draft models and heads, each with the numbers of draft tokens that come into question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.config import SpeculativeConfig
from outrider.drafters import registry
from outrider.errors import ConfigError, OutriderError

CHAIN = tuple(range(1, 9))  # draft tokens of a chain
NODES = (*CHAIN, 12, 16)  # nodes of a tree that is cut to any size
TREE_NODES = 16  # of a tree whose form depends on its size
TRAINING_FREE = ("ngram", "suffix", "token_recycling", "lookahead", "layer_skip", "self_quantized")
SHIPPED = ("eagle3", "hydra", "medusa")
_OWN: dict[str, dict[str, Any]] = {"layer_skip": {"draft_stop_threshold": 0.0}}  # chains of the length asked for


@dataclass(frozen=True, slots=True)
class Candidate:
    """One drafter in one setting. ``label``: its name in all tables; ``budgets``: numbers of draft tokens (nodes of a
    tree) that are considered; ``draft`` and ``head``: the model or the folder that was given, None for none."""

    label: str
    config: SpeculativeConfig
    budgets: Sequence[int] = CHAIN
    draft: str | None = None
    head: str | None = None

    @property
    def method(self) -> str:
        """Its id in the table of drafters."""
        return self.config.method

    @property
    def is_tree(self) -> bool:
        """Its drafts branch."""
        return self.config.tree_kind is not None or registry.info(self.method).shapes == ("tree",)

    @property
    def has_law(self) -> bool:
        """It draws its tokens from a law of its own, which can be compared with the target's."""
        row = registry.info(self.method)
        return (row.needs_model or row.needs_head or row.needs_target) and row.members == "none"

    @property
    def is_free(self) -> bool:
        """It needs neither a draft model nor a head."""
        row = registry.info(self.method)
        return not (row.needs_model or row.needs_head)


def candidates(
    drafts: Sequence[str], heads: Mapping[str, str], configs: Sequence[Mapping[str, Any]], *, trees: bool = True
) -> list[Candidate]:
    """All that is to be compared. ``drafts``: draft models; ``heads``: folders, with the method of each; ``configs``:
    further speculative configs. Methods without training are always among them; heads that come with outrider where
    neither a draft model nor a head is given. Raises ConfigError for what can never work."""
    found = [*_free(), *_of_drafts(drafts), *_of_heads(heads, trees)]
    if not drafts and not heads:
        found += [each for method in SHIPPED for each in _variants(method, {"method": method}, None, trees)]
    for number, values in enumerate(configs):
        config = SpeculativeConfig(**values)
        registry.check(config)
        label = config.method if number == 0 else f"{config.method} {number + 1}"
        found = [each for each in found if each.label != label]  # the user's setting of it counts
        found.append(Candidate(label, config, _budgets(config)))
    labels = [each.label for each in found]
    if len(set(labels)) != len(labels):
        raise ConfigError("--draft and --head: give each only once")
    return found


def check_draft(name: str, revision: str | None = None) -> None:
    """Raises ConfigError for a draft model that cannot be found: it was asked for, and nothing else stands for it."""
    from outrider.target.load import resolve

    try:
        resolve(name, revision=revision)
    except OutriderError as error:
        raise ConfigError(f"--draft {name}: {error}") from None


def kind_of_head(folder: str) -> str:
    """The method that a head in our own layout, or in that of others, drafts for. Raises ConfigError."""
    path = Path(folder).expanduser() / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"--head {folder}: holds no config.json; name the folder of a trained head") from None
    own = config.get("outrider")
    if isinstance(own, Mapping):
        return str(own["kind"])
    names = " ".join(config.get("architectures") or [config.get("speculators_model_type", "")]).lower()
    for word, method in (("eagle3", "eagle3"), ("eagle", "eagle"), ("medusa", "medusa"), ("hydra", "hydra")):
        if word in names:
            return method
    raise ConfigError(f"--head {folder}: its config does not say what kind it is; import it with `outrider heads`")


def allowed(found: Sequence[Candidate], facts: Any) -> tuple[list[Candidate], dict[str, str]]:
    """Those that go with a target of these ``facts`` as far as its config tells, and why each other one does not."""
    kept, refused = [], {}
    for each in found:
        try:
            registry.check(each.config)
            registry.check_files(each.config)
            registry.check_target(each.config, facts)
        except OutriderError as error:
            refused[each.label] = str(error)
        else:
            kept.append(each)
    return kept, refused


def _free() -> Iterator[Candidate]:
    for method in TRAINING_FREE:
        config = SpeculativeConfig(method=method, **_OWN.get(method, {}))
        yield Candidate(method, config, _budgets(config))


def _of_drafts(drafts: Sequence[str]) -> Iterator[Candidate]:
    for name in drafts:
        label = "draft_model" if len(drafts) == 1 else f"draft_model {Path(name).name}"
        yield Candidate(label, SpeculativeConfig(method="draft_model", model=name), CHAIN, draft=name)


def _of_heads(heads: Mapping[str, str], trees: bool) -> Iterator[Candidate]:
    kinds = list(heads.values())
    for folder, method in heads.items():
        name = None if kinds.count(method) == 1 else Path(folder).name
        for each in _variants(method, {"method": method, "model": folder}, folder, trees):
            yield (
                each
                if name is None
                else Candidate(
                    each.label.replace(method, f"{method} {name}", 1), each.config, each.budgets, head=folder
                )
            )


def _variants(method: str, values: Mapping[str, Any], head: str | None, trees: bool) -> Iterator[Candidate]:
    """A head as a chain and as a tree that grows where it is sure."""
    yield Candidate(method, SpeculativeConfig(**values), CHAIN, head=head)
    if trees:
        tree: dict[str, Any] = {"tree_kind": "dynamic", "tree_nodes": TREE_NODES}
        yield Candidate(f"{method} tree", SpeculativeConfig(**values, **tree), (TREE_NODES,), head=head)


def _budgets(config: SpeculativeConfig) -> Sequence[int]:
    if config.num_speculative_tokens:
        return (config.num_speculative_tokens,)
    if config.tree_kind in ("dynamic", "static"):
        return (config.tree_nodes or TREE_NODES,)
    return NODES if registry.info(config.method).shapes == ("tree",) else CHAIN
