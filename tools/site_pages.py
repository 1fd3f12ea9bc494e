"""What the documentation site needs beside the pages of docs/: a hook of mkdocs (see mkdocs.yml).

Documents that stand elsewhere in the repository become pages: README.md is the front page. Links between documents are
written for a reader of the repository, relative to the file; here they are turned to the pages. Pictures with a light
and a dark version follow the site's switch, and drawings (SVG) are put into the page, so that they take its colours.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
HEADS = "src/outrider/heads/shipped_heads"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img src="(?P<light>[^"]+)" alt="(?P<alt>[^"]*)">\s*</picture>'
)
DRAWING = re.compile(r"^!\[(?P<alt>[^\]]*)\]\((?P<path>[^)]+\.svg)\)$", re.MULTILINE)
MARKER = re.compile(r"^<!-- .*? -->\n", re.MULTILINE | re.DOTALL)
NUMBERS = re.compile(r"(?<=\d) (to |of |/ |%)(?=[\d |)])")  # as in "1.42 to 1.74", "3 of 5", "1 / 95 / 4 %"
ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
WIDE = {"measured.md", "comparison.md"}  # pages whose tables and listings need the room of the table of contents
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)


def elsewhere() -> dict[str, str]:
    """Documents outside of docs/, by their path in the repository, and the page that each becomes."""
    heads = {
        path.relative_to(ROOT).as_posix(): f"heads/{path.parent.name}.md" for path in (ROOT / HEADS).glob("*/README.md")
    }
    return {
        "README.md": "index.md",
        "benchmarks/README.md": "benchmarks/index.md",
        "benchmarks/race/README.md": "benchmarks/race.md",
        **dict(sorted(heads.items())),
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents from outside of docs/."""
    for path, uri in elsewhere().items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, uri, content=FRONT_MATTER.sub("", text)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """A page's text as the site shows it."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    return converted(markdown, page.file.src_uri)


def converted(markdown: str, uri: str) -> str:
    """The text of page ``uri`` with its links, pictures and drawings turned to those of the site."""
    pages = elsewhere()
    source = {page: path for path, page in pages.items()}.get(uri, f"docs/{uri}")

    def place(link: str) -> str:
        """Where a link of the document leads, relative to the page."""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        target = pages.get(path, path.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(uri) or ".")

    def picture(match: re.Match[str]) -> str:
        both = ((place(match[kind]), kind) for kind in ("light", "dark"))
        return "\n".join(f"![{match['alt']}]({path}#only-{kind})" for path, kind in both)

    def drawing(match: re.Match[str]) -> str:
        path = ROOT / posixpath.join(posixpath.dirname(source), match["path"])
        svg = path.read_text(encoding="utf-8").strip().replace("\n\n", "\n")
        named = svg.replace("<svg ", f'<svg role="img" aria-label="{match["alt"]}" ', 1)
        return f"<div>{named}</div>"  # Markdown leaves a div as it is

    text = MARKER.sub("\n", markdown)
    text = LINK.sub(lambda match: place(match[1]) + (match[2] or ""), text)
    text = ROW.sub(lambda row: NUMBERS.sub(lambda match: match[0].replace(" ", "\u00a0"), row[0]), text)
    return DRAWING.sub(drawing, PICTURE.sub(picture, text))
