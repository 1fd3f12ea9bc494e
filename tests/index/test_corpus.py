"""Corpora: which files are read, as what, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider.index import corpus
from outrider.index.corpus import Corpora


def texts(*paths: Path, **options: Any) -> list[str]:
    return [document.text for document in Corpora.of(paths, **options).documents()]


def lines(path: Path, *rows: object) -> Path:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def row(name: str, variant: str, ids: list[int], text: str) -> dict[str, Any]:
    return {"prompt_id": name, "variant": variant, "token_ids": ids, "text": text, "stats": {}}


def test_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "code" / "deep").mkdir(parents=True)
    (tmp_path / "code" / ".git").mkdir()
    (tmp_path / "code" / "a.py").write_text("a = 1\r\nb\n", newline="")
    (tmp_path / "code" / "deep" / "b.md").write_text("é\n")
    (tmp_path / "code" / "binary").write_bytes(b"a\0b")
    (tmp_path / "code" / "latin").write_bytes(b"\xe9")
    (tmp_path / "code" / ".git" / "c.py").write_text("hidden")
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"packed"))
    corpora = Corpora.of([tmp_path / "code", tmp_path / "d.txt.gz"])
    documents = list(corpora.documents())
    assert [document.text for document in documents] == ["a = 1\nb\n", "é\n", "packed"]
    assert [document.source for document in documents] == [str(tmp_path / "code")] * 2 + [str(tmp_path / "d.txt.gz")]
    assert [Path(name).name for name in corpora.passed_over] == ["binary", "latin"]
    assert corpora.num_files == 3
    assert corpora.done_bytes == corpora.total_bytes > 0
    assert texts(tmp_path / "code", glob="*.py") == ["a = 1\nb\n"]


def test_json_lines(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.jsonl", {"text": "one", "other": "1"}, {"text": "two", "other": "2"})
    assert texts(path) == ["one", "two"]
    assert texts(path, key="other") == ["1", "2"]
    assert texts(lines(tmp_path / "rows.jsonl.gz", {"text": "packed"})) == ["packed"]


def test_answers_of_a_bundle_come_once_with_their_ids(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    rows = [row("a", "plain", [1, 2], "x"), row("a", "suffix", [1, 2], "x"), row("a", "typical", [1, 3], "y")]
    lines(tmp_path / "prompts.jsonl", *rows, row("b", "plain", [1, 2], "x"))
    documents = list(Corpora.of([tmp_path]).documents())
    assert [(document.text, document.token_ids) for document in documents] == [
        ("x", [1, 2]),
        ("y", [1, 3]),
        ("x", [1, 2]),
    ]


def test_a_long_text_is_cut_at_line_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "DOCUMENT_BYTES", 8)
    (tmp_path / "a.txt").write_text("12345\n12345\n12345\n")
    assert texts(tmp_path / "a.txt") == ["12345\n12345\n", "12345\n"]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"\xe9\xff", "a.txt: it is no UTF-8 text"),
        ("a.txt", b"a\0b", "a.txt: it is no text"),
        ("a.txt.gz", b"plain", "a.txt.gz: Not a gzipped file"),
        ("a.jsonl", b'{"text": "a"}\n{"t', "a.jsonl: row 2 is not JSON"),
        ("a.jsonl", b"[1]\n", "a.jsonl: row 1 is not a JSON object"),
        ("a.jsonl", b'{"prompt": "a", "x": 1}\n', r"row 1: 'text' is missing; .* --field \(it has: prompt, x\)"),
        ("a.jsonl", b'{"text": ["a"]}\n', "row 1: 'text' is no text; name another one with --field"),
    ],
)
def test_a_named_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ConfigError, match=message):
        texts(tmp_path / name)
    (tmp_path / "good.txt").write_text("good")
    corpora = Corpora.of([tmp_path])
    assert list(corpora.documents())[-1].text == "good"
    assert corpora.passed_over == [str(tmp_path / name)]


def test_missing_and_empty_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file or folder"):
        Corpora.of([tmp_path / "none"])
    with pytest.raises(ConfigError, match=r"the folder holds no file '\*.py'; see --glob"):
        Corpora.of([tmp_path], glob="*.py")
