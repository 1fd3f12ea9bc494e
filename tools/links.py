"""The links of the repository's documents: relative ones must lead to a file, and to a heading where they name one.

Addresses outside are looked at, not visited: they must be https (http for this machine) with a host and no blanks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

FENCE = re.compile(r"^(?P<marks>```+|~~~+).*?^(?P=marks)\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\((?P<link>[^)]*)\)")
HTML = re.compile(r'(?:src|srcset|href)="(?P<link>[^"]*)"')
HEADING = re.compile(r"^#+ +(?P<title>.*?) *$", re.MULTILINE)
LOCAL = ("localhost", "127.0.0.1")


def documents(root: Path) -> list[Path]:
    """The Markdown files that a reader of the repository comes across, without those in hidden and built folders."""
    folders = (root / name for name in ("docs", "benchmarks", "src"))
    return [*sorted(root.glob("*.md")), *(path for folder in folders for path in sorted(folder.rglob("*.md")))]


def broken(paths: Iterable[Path]) -> Iterator[str]:
    """A line for every link that leads nowhere, with its document."""
    for path in paths:
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        plain = CODE.sub("``", text)
        for match in (*LINK.finditer(plain), *HTML.finditer(plain)):
            if reason := fault(path, match["link"]):
                yield f"{path}: ({match['link']}) {reason}"


def fault(path: Path, link: str) -> str | None:
    """What is wrong with a link of the document ``path``; None: nothing."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        plain = parts.scheme == "http" and parts.hostname not in LOCAL
        odd = parts.scheme not in ("http", "https", "mailto") or (parts.scheme != "mailto" and not parts.hostname)
        return "is no address of the web" if odd or plain or re.search(r"\s", link) else None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return "leads to no file"
    if parts.fragment and target.suffix == ".md" and parts.fragment not in anchors(target):
        return f"leads to no heading of {target.name}"
    return None


def anchors(path: Path) -> set[str]:
    """The fragments that the headings of a document have."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    return {slug(match["title"]) for match in HEADING.finditer(text)}


def slug(title: str) -> str:
    """The fragment of a heading as the site makes it: small letters, no marks, one dash for blanks and dashes."""
    shown = re.sub(r"\]\([^)]*\)", "]", title)
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", shown.lower()).strip())
