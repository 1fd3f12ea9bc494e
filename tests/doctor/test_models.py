"""Faults that the files of a target, a draft model or a head show."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from doctor import files
from doctor.conftest import Doctor
from engine.tiny import other_tokenizer, tokenizer
from outrider.heads import shipped
from outrider.heads.layouts.base import Checkpoint


def swapped() -> PreTrainedTokenizerFast:
    """The target's tokens, two of them at each other's id."""
    text = tokenizer().backend_tokenizer.to_str()
    marked = text.replace('"the":', '"??":').replace('"ab":', '"the":').replace('"??":', '"ab":')
    from tokenizers import Tokenizer

    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(marked), bos_token="<s>", eos_token="</s>", chat_template=None
    )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The target of these tests."""
    return files.target(tmp_path_factory.mktemp("target"))


def test_a_draft_that_fits_has_no_fault(doctor: Doctor, target: str, tmp_path: Path) -> None:
    answer = doctor("--target", target, "--draft", files.model(tmp_path / "draft"))
    assert answer.report["findings"] == []
    assert answer.status == 0
    compared = {"vocabulary_mismatch", "other_ids", "chat_template", "draft_context", "number_format", "draft_slow"}
    assert compared <= set(answer.report["checked"])
    assert [line["what"] for line in answer.report["seen"]] == ["target", "draft"]


DRAFTS: dict[str, tuple[str, Callable[[Path], str]]] = {
    "other vocabulary": ("vocabulary_mismatch", lambda folder: files.model(folder, words=other_tokenizer())),
    "two ids swapped": ("other_ids", lambda folder: files.model(folder, words=swapped())),
    "other template": ("chat_template", lambda folder: files.model(
        folder, template=files.TEMPLATE.replace("<{{ message.role }}>", "[{{ message.role }}]"))),
    "short context": ("draft_context", lambda folder: files.model(folder, context=128)),
    "float16 beside float32": ("number_format", lambda folder: files.model(folder, dtype=torch.float16)),
    "as large as the target": ("draft_slow", lambda folder: files.target(folder)),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAFTS)
def test_a_planted_fault_of_a_draft_is_named_first(doctor: Doctor, target: str, tmp_path: Path, name: str) -> None:
    fault, make = DRAFTS[name]
    answer = doctor("--target", target, "--draft", make(tmp_path / "draft"))
    assert answer.first == fault, answer.out
    assert answer.status == 1


def test_the_swapped_ids_are_shown(doctor: Doctor, target: str, tmp_path: Path) -> None:
    answer = doctor("--target", target, "--draft", files.model(tmp_path / "draft", words=swapped()))
    evidence = {line["what"]: line["value"] for line in answer.report["findings"][0]["evidence"]}
    assert evidence["differences"].startswith("2 ids differ")
    assert "'the' / 'ab'" in evidence["first ones, target / draft"]


def test_a_template_is_missing(doctor: Doctor, target: str, tmp_path: Path) -> None:
    answer = doctor("--target", target, "--draft", files.model(tmp_path / "draft", template=""))
    assert "the draft has none" in {e["diagnosis"]: e["lacks"] for e in answer.report["unchecked"]}["chat_template"]


def test_a_head_that_fits_has_no_fault(doctor: Doctor, target: str, tmp_path: Path) -> None:
    files.written(files.new_head(target), tmp_path / "head")
    answer = doctor("--target", target, "--head", str(tmp_path / "head"), "--no-measure")
    assert answer.report["findings"] == []
    assert {"absolute_d2t", "draft_context", "other_target", "weights_not_loaded"} <= set(answer.report["checked"])
    lacks = {each["diagnosis"]: each["lacks"] for each in answer.report["unchecked"]}
    assert "--measure" in lacks["wrong_layers"]


def absolute(checkpoint: Checkpoint) -> dict[str, Any]:
    ids = checkpoint.tensors["d2t"] + torch.arange(files.DRAFT_VOCAB)
    return {**checkpoint.tensors, "d2t": ids}


def without_block(checkpoint: Checkpoint) -> dict[str, Any]:
    return {key: value for key, value in checkpoint.tensors.items() if "self_attn" not in key}


def zeroed(checkpoint: Checkpoint) -> dict[str, Any]:
    return {**checkpoint.tensors, "lm_head.weight": torch.zeros_like(checkpoint.tensors["lm_head.weight"])}


def same(checkpoint: Checkpoint) -> dict[str, Any]:
    return dict(checkpoint.tensors)


BEYOND = {"eagle_aux_hidden_state_layer_ids": [2, 4, files.LAYERS + 3]}
HEADS: dict[str, tuple[str, Callable[[Checkpoint], dict[str, Any]], dict[str, Any]]] = {
    "absolute d2t": ("absolute_d2t", absolute, {}),
    "tensors missing": ("weights_not_loaded", without_block, {}),
    "tensors zero": ("weights_not_loaded", zeroed, {}),
    "layers beyond the target": ("wrong_layers", same, BEYOND),
    "short context": ("draft_context", same, {"max_position_embeddings": 64}),
    "other vocabulary": ("vocabulary_mismatch", same, {"vocab_size": 4000}),
    "other hidden size": ("other_target", same, {"target_hidden_size": 4096}),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_planted_fault_of_a_head_is_named_first(doctor: Doctor, target: str, tmp_path: Path, name: str) -> None:
    fault, change, facts = HEADS[name]
    checkpoint = files.written(files.new_head(target), tmp_path / "head", **facts)
    Checkpoint(checkpoint.name, checkpoint.facts, change(checkpoint)).write(tmp_path / "head")
    answer = doctor("--target", target, "--head", str(tmp_path / "head"), "--no-measure")
    assert answer.first == fault, answer.out
    assert answer.status == 1


def test_an_untrained_head_guesses_nothing_when_it_is_run(doctor: Doctor, target: str, tmp_path: Path) -> None:
    files.written(files.new_head(target), tmp_path / "head")
    answer = doctor("--target", target, "--head", str(tmp_path / "head"))
    assert answer.first == "weights_not_loaded"


def test_a_head_of_another_target_is_named(doctor: Doctor, target: str, tmp_path: Path) -> None:
    files.written(files.new_head(files.model(tmp_path / "small", layers=4)), tmp_path / "head", "outrider")
    answer = doctor("--target", target, "--head", str(tmp_path / "head"))
    assert answer.first == "other_target"


def test_what_is_no_head_is_an_error(doctor: Doctor, target: str, tmp_path: Path) -> None:
    assert doctor("--target", target, "--head", str(tmp_path)).status == 2
    assert doctor("--target", target, "--head", str(tmp_path / "none")).status == 2


@pytest.mark.real_model
def test_wrong_layers_of_a_real_head_are_found_by_running_it(doctor: Doctor, tmp_path: Path) -> None:
    own = shipped.FOLDER / "smollm2-135m-eagle3"
    healthy = doctor("--target", "smollm2-135m", "--head", str(own))
    assert healthy.report["findings"] == []
    wrong = files.reordered(own, tmp_path / "head", [26, 14, 1])
    answer = doctor("--target", "smollm2-135m", "--head", str(wrong))
    assert answer.first == "wrong_layers"
    assert "was trained on 1, 14, 26" in answer.report["findings"][0]["fault"]
    assert answer.status == 1
