"""The hook of the site: links, pictures and numbers of documents as its pages show them."""

from __future__ import annotations

import pytest

pytest.importorskip("mkdocs", reason="needs mkdocs: pip install -e '.[docs]'")

from site_pages import HEADS, ROOT, converted, elsewhere


def test_documents_from_elsewhere_exist_and_have_pages_of_their_own() -> None:
    pages = elsewhere()
    assert all((ROOT / path).is_file() for path in pages)
    assert len(set(pages.values())) == len(pages)
    assert not any((ROOT / "docs" / uri).exists() for uri in pages.values())
    assert pages[f"{HEADS}/smollm2-135m-eagle3/README.md"] == "heads/smollm2-135m-eagle3.md"


@pytest.mark.parametrize(
    ("uri", "link", "shown"),
    [
        ("index.md", "docs/methods/ngram.md", "methods/ngram.md"),
        ("index.md", "docs/serving.md#ending", "serving.md#ending"),
        ("heads.md", f"../{HEADS}/smollm2-135m-hydra/README.md", "heads/smollm2-135m-hydra.md"),
        ("heads/smollm2-135m-hydra.md", "../smollm2-135m-eagle3/README.md", "smollm2-135m-eagle3.md"),
        ("comparison.md", "../benchmarks/race/README.md", "benchmarks/race.md"),
        ("benchmarks/race.md", "../../docs/measured.md", "../measured.md"),
        ("methods/ngram.md", "README.md", "README.md"),
        ("serving.md", "#many-clients-at-once", "#many-clients-at-once"),
        ("serving.md", "https://arxiv.org/abs/2211.17192", "https://arxiv.org/abs/2211.17192"),
    ],
)
def test_links_lead_to_pages(uri: str, link: str, shown: str) -> None:
    assert converted(f"see [that]({link}).", uri) == f"see [that]({shown})."


def test_pictures_follow_the_switch_of_the_site() -> None:
    picture = (
        '<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="images/a-dark.png">\n'
        '  <img src="images/a-light.png" alt="A page">\n</picture>'
    )
    assert converted(picture, "playground.md") == (
        "![A page](images/a-light.png#only-light)\n![A page](images/a-dark.png#only-dark)"
    )


def test_drawings_stand_in_the_page() -> None:
    shown = converted("![What a step does](images/step.svg)", "life-of-a-request.md")
    assert shown.startswith("<div><svg ")
    assert 'aria-label="What a step does"' in shown
    assert "\n\n" not in shown  # a blank line would end the block


def test_numbers_of_a_table_stay_together_and_prose_does_not() -> None:
    text = "| ngram | 1.50 (1.24 to 1.94) | 1 / 95 / 4 % | 3 of 5 |\n\nfrom 3 to 5\n"
    shown = converted(text, "measured.md").replace("\u00a0", "~")
    assert shown == "| ngram | 1.50 (1.24~to~1.94) | 1~/~95~/~4~% | 3~of~5 |\n\nfrom 3 to 5\n"


def test_markers_of_generated_regions_are_gone() -> None:
    assert converted("a\n\n<!-- generated:methods -->\n| x |\n<!-- /generated -->\n", "index.md") == "a\n\n\n| x |\n\n"
