"""The table of drafters: one row a method. Command line, checks, benchmark, docs and conformance suite read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from outrider.config import SpeculativeConfig
from outrider.core.verifiers.table import RULES, LawName, Rule, Shape
from outrider.drafters import trees
from outrider.drafters.table import ROWS, DrafterInfo
from outrider.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    # they load torch, and reading the table must stay quick
    from outrider.drafters.base import Drafter, DraftSource, HeadSource, TargetHandle
    from outrider.drafters.estimates import Estimates
    from outrider.drafters.hierarchical import InnerLoop
    from outrider.target.facts import ModelFacts


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What the engine tells a factory about the target.

    ``load_draft`` gives a model drafter its model, ``load_head`` a head drafter its head, and ``has_head`` says whether
    a head of a method comes with us for the target; ``inner_loop`` a hierarchical
    one an engine over its model, with the config's ``drafter`` in it; ``target`` a drafter that needs it the target
    itself. ``tokenizer_fingerprint``: of the target's tokenizer; None: unknown, and compared with nothing.
    ``target_fingerprint``: of its weights. ``estimates``: acceptance and cost, for drafters that choose among others;
    None without an engine. ``scope``: the name of the drafter that this one is a member of. ``strict``: a failing
    member is an error.
    """

    vocab_size: int
    max_model_len: int
    eos_ids: frozenset[int]
    load_draft: Callable[[SpeculativeConfig], DraftSource] | None = None
    load_head: Callable[[SpeculativeConfig], HeadSource] | None = None
    has_head: Callable[[str], bool] | None = None
    tokenizer_fingerprint: Callable[[], str] | None = None
    inner_loop: Callable[[SpeculativeConfig], InnerLoop] | None = None
    seed: int = 0
    target: TargetHandle | None = None
    target_fingerprint: str = ""
    estimates: Estimates | None = None
    scope: str = ""
    strict: bool = False


COMMON_OPTIONS = ("method", "num_speculative_tokens", "verifier")

REGISTRY: dict[str, DrafterInfo] = {row.method: row for row in ROWS}


_VERIFIER_OPTIONS = frozenset(option for rule in RULES.values() for option in rule.options)


def methods() -> list[str]:
    """Ids of all methods, in the order of the table."""
    return list(REGISTRY)


def info(method: str) -> DrafterInfo:
    """The row of ``method``. Raises ConfigError that lists the valid ids."""
    if method not in REGISTRY:
        hint = f"{did_you_mean(method, REGISTRY)} choose one of: {', '.join(REGISTRY)}".lstrip()
        raise ConfigError(f"method: no drafter is called {method!r}; {hint}")
    return REGISTRY[method]


def check(config: SpeculativeConfig) -> DrafterInfo:
    """The row of a config that can work; needs no weights. Raises ConfigError for an unknown method, an option that
    nothing reads or that is missing, and a verifier that does not take what the method makes."""
    row = info(config.method)
    _check_options(row, config)
    trees.check(config, RULES[config.verifier])
    check_verifier(row, config)
    names = member_names(members(config))
    for task, name in (config.route_tasks or {}).items():
        if name not in names:
            raise ConfigError(f"route_tasks: task {task!r} goes to {name!r}; choose one of: {', '.join(names)}")
    for member in members(config):
        if "verifier" in member.model_fields_set:
            raise ConfigError(f"verifier: set it beside method {row.method!r}, which verifies what its members draft")
        if row.members == "inner" and info(member.method).needs_target:
            raise ConfigError(
                f"method {member.method!r} drafts with the target itself and cannot draft for {row.method!r}: "
                "use it alone, or another inner method"
            )
        check(member.model_copy(update={"verifier": config.verifier}) if row.members == "alternatives" else member)
    return row


def check_files(config: SpeculativeConfig) -> None:
    """Raise ConfigError when a file that a method reads (a datastore) is missing or damaged; needs no weights."""
    for each in everyone(config):
        if (check := info(each.method).check_files) is not None:
            _load(check)(each)


def check_target(config: SpeculativeConfig, facts: ModelFacts) -> None:
    """Raise ConfigError when ``config`` cannot work with a target of these ``facts``; needs no weights."""
    for member in everyone(config):
        if refuse := info(member.method).check_target:
            _load(refuse)(member, facts)


def members(config: SpeculativeConfig) -> Sequence[SpeculativeConfig]:
    """The drafters within a drafter: those that the config names, or those that its method stands for."""
    expand = info(config.method).expand
    if not expand:
        return config.members
    found: Sequence[SpeculativeConfig] = _load(expand)(config)
    return found


def member_names(configs: Sequence[SpeculativeConfig]) -> list[str]:
    """A name for each of a drafter's members: its method, and a number where the same one is set up otherwise."""
    known: dict[str, list[SpeculativeConfig]] = {}
    names = []
    for config in configs:
        same = known.setdefault(config.method, [])
        if config not in same:
            same.append(config)
        number = 1 + same.index(config)
        names.append(config.method if number == 1 else f"{config.method}#{number}")
    return names


def everyone(config: SpeculativeConfig) -> Iterator[SpeculativeConfig]:
    """``config`` and every config within it."""
    yield config
    for member in members(config):
        yield from everyone(member)


def draws(config: SpeculativeConfig) -> bool:
    """Whether drafts are samples of a law, under the rules that look at laws."""
    return any(set(info(each.method).laws) - {"delta"} for each in everyone(config))


def follows_prediction(config: SpeculativeConfig) -> bool:
    """Whether it, or one within it, drafts from the output that the user expects."""
    return any(info(each.method).needs_prediction for each in everyone(config))


def build(config: SpeculativeConfig, context: DrafterContext) -> Drafter:
    """The drafter that ``config`` asks for. Raises ConfigError as ``check`` does."""
    row = check(config)
    drafter: Drafter = _load(row.factory)(config, context)
    return drafter


def _load(name: str) -> Callable[..., Any]:
    """The function ``module:function``."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)  # type: ignore[no-any-return]


def check_verifier(row: DrafterInfo, config: SpeculativeConfig) -> None:
    """Raise ConfigError when ``config.verifier`` does not take the laws or the shape that the method makes."""
    rule = RULES[config.verifier]
    if config.vocabulary == "slem":  # texts are chosen, not sampled
        row = replace(row, laws=("delta",))
    laws = laws_under(row, rule)
    if not set(laws) <= set(rule.laws):
        others = ", ".join(name for name, other in RULES.items() if set(laws_under(row, other)) <= set(other.laws))
        raise ConfigError(
            f"verifier: {config.verifier!r} takes {' or '.join(rule.laws)} drafts and method {row.method!r} makes "
            f"{' or '.join(laws)} drafts; choose one of: {others}"
        )
    option, shape = _shape_under(row, config, rule)
    if shape not in rule.shapes:
        default = SpeculativeConfig.model_fields[option].default if option != "method" else None
        remedy = f"set {option} to false" if default is True else f"leave {option} out"
        if option == "method":
            remedy = f"{row.method} makes trees: choose another verifier"
        elif option == "models":
            remedy = "name one model"
        elif "paths" in rule.shapes:
            remedy = "set num_paths instead of tree"
        takes = "independent chains" if "paths" in rule.shapes else "chains only"
        raise ConfigError(f"{option}: verifier {config.verifier!r} takes {takes}; {remedy}")


def laws_under(row: DrafterInfo, rule: Rule) -> Sequence[LawName]:
    """The laws of a method's edges: under a rule with shared noise all are delta if the method can."""
    if "delta" in row.laws and rule.shared_noise:
        return ("delta",)
    return tuple(law for law in row.laws if law != "delta") or ("delta",)


def _check_options(row: DrafterInfo, config: SpeculativeConfig) -> None:
    given = {key for key in config.model_fields_set if getattr(config, key) is not None}
    of_verifier = RULES[config.verifier].options
    for key in SpeculativeConfig.model_fields:
        if key not in given or key in COMMON_OPTIONS or key in row.options or key in of_verifier:
            continue
        if key in _VERIFIER_OPTIONS:
            readers = ", ".join(name for name, rule in RULES.items() if key in rule.options)
            raise ConfigError(f"setting {key} is not used by verifier {config.verifier!r}; it is used by: {readers}")
        reads = ", ".join(row.options) or "no setting of its own"
        raise ConfigError(f"setting {key} is not used by method {row.method!r}; {row.method} reads: {reads}")
    for key in row.required:
        if key not in given and row.needs_head:
            raise ConfigError(
                f"{key}: method {row.method!r} needs a trained head, and none comes with outrider; train one "
                f"(`outrider train --help`) and name its folder as {key} in speculative_config"
            )
        if key not in given:
            raise ConfigError(f"{key}: method {row.method!r} needs it; set {key} in speculative_config")


def _shape_under(row: DrafterInfo, config: SpeculativeConfig, rule: Rule) -> tuple[str, Shape]:
    """The widest shape that this method's drafts take, and the option that makes it so."""
    branching: dict[str, bool] = {
        "tree": trees.branching_option(config) == "tree",
        "tree_kind": trees.branching_option(config) == "tree_kind",
        "models": len(config.models or ()) > 1,
        "num_paths": config.num_paths > 1,
        "suffix_decoding_tree": config.suffix_decoding_tree,
        "rest_tree": config.rest_tree,
    }
    if (config.tree is not None or config.tree_kind is not None) and rule.merges_paths:
        return "tree", "tree"  # its widths are no paths, whatever they are
    option = next((option for option, on in branching.items() if on and option in row.options), None)
    if option is None:
        return "method", "chain" if "chain" in row.shapes else row.shapes[0]
    return option, "paths" if option == "num_paths" and rule.merges_paths else "tree"
