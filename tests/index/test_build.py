"""From text to a datastore with the tiny tokenizer, through the command as well."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engine.tiny import folders
from outrider.cli.main import run
from outrider.drafters.datastore import Datastore
from outrider.drafters.retrieval import retrieve
from outrider.target.load import load_tokenizer
from outrider.target.tokenizer import Tokenizer
from outrider.target.vocab import fingerprint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folders(tmp_path_factory.mktemp("models"))["target"]


@pytest.fixture(scope="module")
def tokenizer(model: str) -> Tokenizer:
    return load_tokenizer(model)


def after(store: Datastore, tokenizer: Tokenizer, text: str, count: int) -> list[list[int]]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return retrieve([store], ids, len(ids), 8, count)[1]


def test_build_append_and_info(
    model: str, tokenizer: Tokenizer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("in the abc of the ab")
    (tmp_path / "b.txt").write_text("xyz")
    out = str(tmp_path / "out")
    assert run(["index", "build", out, str(tmp_path / "a.txt"), "--model", model, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    ids = tokenizer.encode("in the abc of the ab", add_special_tokens=False)
    assert (first["num_tokens"], first["num_documents"], first["num_files"]) == (len(ids), 1, 1)
    assert first["fingerprint"] == fingerprint(tokenizer)
    store = Datastore.open(Path(out), fingerprint(tokenizer))
    assert after(store, tokenizer, "in the", 40) == [[*ids[6:], *[-1] * (46 - len(ids))]]
    assert run(["index", "build", out, str(tmp_path / "b.txt"), "--model", model, "--append"]) == 0
    assert f"{len(ids) + 3} tokens in 2 documents" in capsys.readouterr().out
    assert run(["index", "info", out, "--verify", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["verified"]
    assert info["num_tokens"] == len(ids) + 3
    assert [segment["sources"] for segment in info["segments"]] == [[str(tmp_path / n)] for n in ("a.txt", "b.txt")]
    assert run(["index", "info", out]) == 0
    assert "segment-0001: 3 tokens" in capsys.readouterr().out


def test_answers_keep_the_ids_that_were_drawn(model: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    drawn = [tokenizer.vocab["ab"], tokenizer.vocab["x"], 1]  # encoding the text gives "a", "b", "x"
    assert tokenizer.encode("abx", add_special_tokens=False) != drawn
    other = {"prompt_id": "q", "token_ids": [5, 6, 7], "text": "zz"}  # of another tokenizer
    rows = [{"prompt_id": "p", "token_ids": drawn, "text": "abx"}, other]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(["index", "build", str(tmp_path / "out"), str(tmp_path / "rows.jsonl"), "--model", model]) == 0
    store = Datastore.open(tmp_path / "out")
    assert retrieve([store], drawn[:1], 1, 8, 2) == (1, [drawn[1:]])
    assert retrieve([store], [5], 1, 8, 2) == (0, [])
    assert store.header.num_tokens == 5


def test_errors_are_one_line(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("in the abc")
    out = str(tmp_path / "out")
    build = ["index", "build", out, str(tmp_path / "a.txt"), "--model", model]
    assert run(["index", "info", out]) == 2
    assert "there is none" in capsys.readouterr().err
    assert run([*build, "--append"]) == 2
    assert run(build) == 0
    assert run(build) == 2
    assert "--append" in capsys.readouterr().err.splitlines()[-1]
    order = np.fromfile(tmp_path / "out" / "segment-0000.order", dtype="<u4")
    order[::-1].tofile(tmp_path / "out" / "segment-0000.order")
    assert run(["index", "info", out]) == 0
    assert run(["index", "info", out, "--verify"]) == 2
    assert "damaged" in capsys.readouterr().err


def test_a_fingerprint_is_of_the_vocabulary(tokenizer: Tokenizer, model: str) -> None:
    small = load_tokenizer(str(Path(model).parent / "small"))
    assert fingerprint(tokenizer) == fingerprint(load_tokenizer(str(Path(model).parent / "draft")))
    assert fingerprint(tokenizer) != fingerprint(small)
    assert tokenizer.encode_batch(["in the", ""]) == [tokenizer.encode("in the", add_special_tokens=False), []]
