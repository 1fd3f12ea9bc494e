"""The pages of docs/methods: one a method, from its row, its module, its options and the rules; and their index."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

Table = Callable[[Sequence[str], Iterable[Sequence[str]]], str]

NOTE = "<!-- written by tools/docs.py from the code: change it there and run `make docs` -->\n\n"
_EXAMPLE = {
    "integer": "4",
    "text": '"DRAFT"',
    "list of number": "[0.8, 0.7]",
    "config": '{"method": "ngram"}',
    "list of config": '[{"method": "ngram"}, {"method": "suffix"}]',
}


def pages(table: Table) -> dict[str, str]:
    """Every page's file name and text. ``table`` makes a Markdown table of a head and rows."""
    from outrider.drafters.registry import REGISTRY

    return {"README.md": _index(table)} | {f"{row.method}.md": _page(row.method, table) for row in REGISTRY.values()}


def _index(table: Table) -> str:
    from outrider.drafters import describe
    from outrider.drafters.registry import REGISTRY

    rows = [
        (
            f"[`{row.method}`]({row.method}.md)",
            row.summary,
            ", ".join(row.shapes),
            ", ".join(describe.needs(row)) or "nothing else",
            ", ".join(f"`{rule}`" for rule in describe.lossless(row)),
            _source(row.paper),
        )
        for row in REGISTRY.values()
    ]
    head = ("method", "what it proposes", "shapes", "needs", "lossless under", "source")
    return (
        f"# Methods\n\n{NOTE}{table(head, rows)}\nOn the command line: `outrider methods`, `outrider methods NAME`.\n"
    )


def _page(method: str, table: Table) -> str:
    from outrider.drafters import describe
    from outrider.drafters.registry import REGISTRY

    row = REGISTRY[method]
    facts = [
        ("shapes", ", ".join(row.shapes)),
        ("needs", ", ".join(describe.needs(row)) or "nothing else"),
        (
            "draft tokens",
            f"{row.default_tokens} until the planner knows more, unless `num_speculative_tokens` fixes them",
        ),
        ("source", _source(row.paper) or "none"),
        ("file", f"`{row.factory.partition(':')[0].replace('.', '/')}.py`"),
    ]
    options = [
        (f"`{item.name}`", "must be given" if item.required else f"`{item.default}`", item.values, item.meaning)
        for item in describe.options(row)
    ]
    rules = [
        (
            f"`{use.rule}`",
            ", ".join(law.replace("_", " ") for law in use.laws),
            ", ".join(use.shapes),
            "yes" if use.lossless else "no",
        )
        for use in describe.rules(row)
    ]
    parts = [
        f"# `{method}`\n\n{NOTE}{row.summary[0].upper()}{row.summary[1:]}.\n",
        table(("", ""), facts),
        f"## How it works\n\n{_markdown(describe.about(row))}\n",
        f"## Settings\n\n{table(('setting', 'default', 'values', 'meaning'), options)}" if options else "",
        f"## Rules\n\n{table(('verifier', 'laws', 'shapes', 'lossless'), rules)}",
        f"## Use\n\n```\noutrider generate MODEL \"...\" --speculative-config '{_config(method)}'\n```\n",
        "[All methods](README.md)\n",
    ]
    return "\n".join(part for part in parts if part)


def _config(method: str) -> str:
    """The shortest config that the method takes."""
    from outrider.drafters import describe
    from outrider.drafters.registry import REGISTRY

    row = REGISTRY[method]
    needed = [item for item in describe.options(row) if item.required]
    values = [
        f'"{item.name}": {_EXAMPLE.get(re.sub(r" (from|over|to|below) .*", "", item.values), "...")}' for item in needed
    ]
    return "{" + ", ".join([f'"method": "{method}"', *values]) + "}"


def _source(url: str) -> str:
    from outrider.drafters import describe

    return f"[{describe.paper_name(url)}]({url})" if url else ""


def _markdown(text: str) -> str:
    """A docstring as Markdown: code marks of one backtick, and addresses of papers as links."""
    text = text.replace("``", "`")
    return re.sub(r"(arXiv )?\b(\d{4}\.\d{5})\b", r"[\1\2](https://arxiv.org/abs/\2)", text)
