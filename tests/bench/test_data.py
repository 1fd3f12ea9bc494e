"""Prompt files of every kind."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.bench import data
from outrider.errors import ConfigError


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def spec_bench(tmp_path: Path) -> Path:
    rows = [
        {"question_id": number, "category": category, "turns": [f"q{number}", "again"]}
        for number, category in enumerate(["writing"] * 4 + ["math"] * 4 + ["rag"] * 3)
    ]
    return write(tmp_path / "spec" / "question.jsonl", rows)


def test_spec_bench_folds_the_mt_bench_categories(tmp_path):
    prompts = data.load_prompts([spec_bench(tmp_path)])
    assert [prompt.task for prompt in prompts] == ["mt_bench"] * 8 + ["rag"] * 3
    assert prompts[0] == data.Prompt("mt_bench/0", "mt_bench", ("q0", "again"))


def test_the_limit_spreads_over_a_task(tmp_path):
    prompts = data.load_prompts([spec_bench(tmp_path)], limit_per_task=2)
    assert [prompt.prompt_id for prompt in prompts] == ["mt_bench/0", "mt_bench/4", "rag/8", "rag/9"]


def test_eagle_files_are_named_by_their_folder(tmp_path):
    path = write(tmp_path / "gsm8k" / "question.jsonl", [{"question_id": 1, "category": "math", "turns": ["q"]}])
    assert data.load_prompts([path])[0].task == "gsm8k"


def test_humaneval_gsm8k_and_plain_rows(tmp_path):
    code = write(tmp_path / "HumanEval.jsonl.gz", [{"task_id": "HumanEval/0", "prompt": "def f():"}])
    maths = write(tmp_path / "gsm8k" / "test.jsonl", [{"question": "1 + 1?", "answer": "2"}])
    plain = write(tmp_path / "mine.jsonl", [{"prompt": "hello", "task": "greeting"}, {"prompt": "x", "task": "y"}])
    prompts = data.load_prompts([code, maths, plain])
    assert [(prompt.task, prompt.turns[0]) for prompt in prompts] == [
        ("humaneval", "def f():"),
        ("gsm8k", "1 + 1?"),
        ("greeting", "hello"),
        ("y", "x"),
    ]


def test_a_row_may_hold_the_expected_output(tmp_path):
    path = write(tmp_path / "x.jsonl", [{"prompt": "hello", "prediction": "bye"}, {"prompt": "hello"}])
    assert [prompt.prediction for prompt in data.load_prompts([path])] == ["bye", None]


def test_text_is_one_prompt_a_line(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("first\n\nsecond\u2028still second\n")
    assert [prompt.turns[0] for prompt in data.load_prompts([path])] == ["first", "second\u2028still second"]


def test_a_folder_is_searched_and_answers_are_passed_over(tmp_path):
    spec_bench(tmp_path)
    write(tmp_path / "spec" / "reference.jsonl", [{"question_id": 1, "choices": []}])
    assert len(data.load_prompts([tmp_path])) == 11


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "row 1: not JSON"),
        ("[]", "row 1: not a JSON object"),
        ('{"answer": 1}', "none of the keys.*write rows such as"),
        ('{"messages": []}', "none of the keys.*outrider advise"),
        ('{"prompt": 3}', "is not text"),
        ('{"prompt": " "}', "is empty"),
        ('{"turns": []}', "is empty"),
        ("", r"bad.jsonl: holds no prompt; give JSON lines"),
    ],
)
def test_bad_rows_are_named(tmp_path, content, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        data.load_prompts([path])


@pytest.mark.parametrize("name", ["prompts.json", "prompts.csv", "prompts.yaml"])
def test_other_kinds_of_files_are_not_taken_for_text(tmp_path, name):
    path = tmp_path / name
    path.write_text('[{"prompt": "a"}]\n')
    with pytest.raises(ConfigError, match=rf"{name}: \.\w+ files are not read; give JSON lines"):
        data.load_prompts([path])
    assert data.load_prompts([write(tmp_path / "x.jsonl", [{"prompt": "a"}]), tmp_path])[0].turns == ("a",)


def test_a_file_without_an_ending_is_text(tmp_path):
    path = tmp_path / "prompts"
    path.write_text("first\n")
    assert data.load_prompts([path])[0].turns == ("first",)


@pytest.mark.parametrize("name", ["bad.jsonl", "bad.jsonl.gz"])
def test_bytes_that_are_no_text_are_an_error(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        data.load_prompts([path])


def test_a_missing_path_is_an_error():
    with pytest.raises(ConfigError, match="no such file"):
        data.load_prompts([Path("/nonexistent/x.jsonl")])


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 60))
def test_spread_keeps_order_and_count(size, limit):
    picked = data._spread([data.Prompt(str(i), "t", ("x",)) for i in range(size)], limit)
    numbers = [int(prompt.prompt_id) for prompt in picked]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == min(size, limit)
