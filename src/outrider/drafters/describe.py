"""A method in words, from its row, its options and its module: for the command line and the documentation.

Nothing here imports a drafter's module or a tensor library.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from outrider.config import SpeculativeConfig
from outrider.core.verifiers.table import RULES, LawName, Shape
from outrider.drafters.registry import laws_under
from outrider.drafters.table import DrafterInfo


@dataclass(frozen=True, slots=True)
class Option:
    """One key of the speculative config. ``values``: what it may be; ``default``: empty when it must be given."""

    name: str
    values: str
    default: str
    meaning: str
    required: bool


@dataclass(frozen=True, slots=True)
class RuleUse:
    """One rule that takes the method's drafts, and what these are under it."""

    rule: str
    laws: Sequence[LawName]
    shapes: Sequence[Shape]
    lossless: bool


def options(row: DrafterInfo) -> list[Option]:
    """The method's own options, in the order of its row."""
    return [option(name, name in row.required) for name in row.options]


def option(name: str, required: bool = False) -> Option:
    """The key ``name`` of the speculative config."""
    info = SpeculativeConfig.model_fields[name]
    default = "" if required or info.is_required() else "none" if info.default is None else _value(info.default)
    return Option(name, _values(info), default, info.description or "", required or info.is_required())


def rules(row: DrafterInfo) -> list[RuleUse]:
    """The rules that take the method's drafts, in the order of the rules."""
    out = []
    for name, rule in RULES.items():
        laws = laws_under(row, rule)
        shapes = [shape for shape in _shapes(row) if shape in rule.shapes]
        if set(laws) <= set(rule.laws) and shapes and (rule.shared_noise or not row.reranked):
            out.append(RuleUse(name, laws, shapes, rule.lossless))
    return out


def needs(row: DrafterInfo) -> list[str]:
    """What must be there besides the target and the text; empty for nothing."""
    any_vocabulary = "vocabulary" in row.options
    out = ["a draft model" if any_vocabulary else "a draft model with the target's vocabulary"] * row.needs_model
    if row.needs_head:
        out.append("a draft head that was trained for the target (`outrider train`)")
    if row.needs_prediction:
        out.append("the expected output of each request")
    if row.needs_structure:
        out.append("requests with a structured output")
    if "skip_file" in row.options:
        out.append("what to skip: a set that `outrider tune layer_skip` found, or settings that name one")
    named = {
        "models": "draft models with the target's vocabulary",
        "drafters": "drafters to choose from or to join",
        "drafter": "a drafter of its own",
    }
    out += [text for name, text in named.items() if name in row.required]
    known = {"model", *named} if row.needs_model or row.needs_head else set(named)
    return out + [f"the setting {name}" for name in row.required if name not in known]


def lossless(row: DrafterInfo) -> list[str]:
    """The rules under which the method is lossless."""
    return [use.rule for use in rules(row) if use.lossless]


def lossy(row: DrafterInfo) -> list[str]:
    """The rules that take the method and are not lossless."""
    return [use.rule for use in rules(row) if not use.lossless]


def about(row: DrafterInfo) -> str:
    """The docstring of the method's module, its code marks left in; empty when there is none."""
    module = row.factory.partition(":")[0]
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a docstring, those of prose on one line each."""
    parts = text.split("\n\n")
    return [part if re.search(r"^([|*-]| )", part, re.MULTILINE) else " ".join(part.split()) for part in parts]


def paper_name(url: str) -> str:
    """``arXiv 2411.04975`` for an arXiv address, else the address without its scheme."""
    found = re.fullmatch(r"https?://arxiv\.org/abs/([\w.]+)", url)
    return f"arXiv {found[1]}" if found else re.sub(r"^https?://", "", url)


def _shapes(row: DrafterInfo) -> list[Shape]:
    return [*row.shapes, *(["paths"] if "num_paths" in row.options and "paths" not in row.shapes else [])]  # type: ignore[list-item]


def _values(info: FieldInfo) -> str:
    """What a key may be: its type and its bounds."""
    return " ".join(part for part in (_type(info.annotation), _bounds(info)) if part)


def _type(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(map(str, inner))
    if origin in (Union, UnionType):
        return " or ".join(_type(kind) for kind in inner if kind is not type(None))
    if origin in (list, tuple):
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return "object"
    names = {bool: "true or false", int: "integer", float: "number", str: "text"}
    return names.get(annotation) or ("config" if annotation is SpeculativeConfig else str(annotation))


def _bounds(info: FieldInfo) -> str:
    words = {"ge": "from {}", "gt": "over {}", "le": "to {}", "lt": "below {}"}
    parts = []
    for item in info.metadata:
        parts += [form.format(f"{getattr(item, key):g}") for key, form in words.items() if hasattr(item, key)]
    return " ".join(parts)


def _value(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)
