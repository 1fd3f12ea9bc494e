"""The check of links: what it takes, and what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from links import broken, documents, slug

ROOT = Path(__file__).resolve().parents[2]


def test_the_repository_has_no_broken_link() -> None:
    found = documents(ROOT)
    assert {ROOT / "README.md", ROOT / "docs" / "methods" / "README.md"} <= set(found)
    assert list(broken(found)) == []


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ("other.md", None),
        ("other.md#a-heading-2", None),
        ("#here", None),
        ("sub/", None),
        ("https://arxiv.org/abs/2211.17192", None),
        ("http://127.0.0.1:8000/docs", None),
        ("gone.md", "no file"),
        ("other.md#gone", "no heading"),
        ("other.md#in-a-listing", "no heading"),
        ("#gone", "no heading"),
        ("http://example.org", "no address"),
        ("htps://example.org", "no address"),
        ("https:///abs", "no address"),
        ("https://example.org/a b", "no address"),
    ],
)
def test_links(tmp_path: Path, link: str, reason: str | None) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "other.md").write_text("# A `heading`: 2\n\n```\n# in a listing\n```\n", encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text(f"# Here\n\nSee [the `code` of it]({link}).\n", encoding="utf-8")
    lines = list(broken([page]))
    assert len(lines) == (reason is not None)
    assert all(link in line and (reason or "") in line for line in lines)


def test_listings_and_code_are_no_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('```\n[a](gone.md)\n```\n\n`[b](gone.md)` and `<img src="gone.png">`\n', encoding="utf-8")
    assert list(broken([page])) == []


def test_pictures_count(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('<img src="gone.png" alt="">\n\n![drawing](gone.svg)\n', encoding="utf-8")
    assert len(list(broken([page]))) == 2


def test_a_slug_leaves_the_address_of_a_link_out() -> None:
    assert slug("The [`auto`](auto.md) way - of it") == "the-auto-way-of-it"
