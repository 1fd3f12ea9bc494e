"""Layouts of other projects: round trips, and what is refused with which reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.tiny import Models
from heads.test_heads import random_head, random_rows
from outrider.cli.main import run
from outrider.errors import ConfigError, ModelError
from outrider.heads import files
from outrider.heads.base import DraftHead
from outrider.heads.config import KINDS
from outrider.heads.layouts.base import Bound, eight_bit, from_eight_bit
from outrider.heads.layouts.table import LAYOUTS, layout_named

TARGET = Bound("llama-3x32-v96", 32, 96, 3, 128)
CASES = [(layout.name, kind) for layout in LAYOUTS.values() for kind in layout.kinds]


def head_for(layout: str, kind: Any, **changes: Any) -> DraftHead:
    if layout == "medusa":
        changes["draft_vocab_size"] = 96  # it knows no other
    head = random_head(kind, **changes)
    head.half().float()
    if layout == "outrider-int8":  # what it holds after one trip
        head.load_state_dict(from_eight_bit(eight_bit(head.state_dict())))
    return head


def test_eight_bits_are_near(tmp_path: Path) -> None:
    head = random_head("mtp")
    near = from_eight_bit(eight_bit(head.state_dict()))
    assert near.keys() == head.state_dict().keys()
    for name, tensor in head.state_dict().items():
        bound = tensor.abs().amax(-1, keepdim=True) / 200 if tensor.is_floating_point() else torch.zeros(1)
        assert bool(((near[name].float() - tensor.float()).abs() <= bound).all()), name


def edited(folder: Path, **tensors: Any) -> None:
    """Change tensors of a written head; None takes one away."""
    path = folder / "model.safetensors"
    mine = {**load_file(path), **tensors}
    save_file({name: tensor for name, tensor in mine.items() if tensor is not None}, path)


def told(folder: Path, **facts: Any) -> None:
    """Change keys of a written config; None takes one away."""
    path = folder / "config.json"
    mine = {**json.loads(path.read_text()), **facts}
    path.write_text(json.dumps({name: value for name, value in mine.items() if value is not None}))


@pytest.mark.parametrize(("layout", "kind"), CASES)
def test_a_round_trip_changes_no_bit(layout: str, kind: Any, tmp_path: Path) -> None:
    head = head_for(layout, kind)
    LAYOUTS[layout].write(head, "target").write(tmp_path)
    again = files.load(tmp_path, TARGET)
    embedded, features = random_rows(kind, 7)
    pairs = zip(head.unroll(embedded, features, 3), again.unroll(embedded, features, 3), strict=True)
    for step, (mine, theirs) in enumerate(pairs):
        assert torch.equal(mine, theirs)
        assert torch.equal(head.logits(mine, step), again.logits(theirs, step))
    assert torch.equal(head.target_ids, again.target_ids)
    assert torch.equal(head.t2d, again.t2d)
    assert again.config.hidden_layers == head.config.hidden_layers


@pytest.mark.parametrize("changes", [{"norm_before_residual": True}, {"norm_output": True}])
@pytest.mark.parametrize("layout", ["speculators", "vllm", "sglang"])
def test_variants_of_the_norm_survive(layout: str, changes: dict[str, bool], tmp_path: Path) -> None:
    head, plain = random_head("eagle3", **changes), random_head("eagle3")
    embedded, features = random_rows("eagle3", 7)
    mine, other = (list(each.unroll(embedded, features, 2))[1] for each in (head, plain))
    assert not torch.allclose(mine, other)
    LAYOUTS[layout].write(head, "target").write(tmp_path)
    assert files.load(tmp_path, TARGET).config.model_dump(include=set(changes)) == changes


@pytest.mark.parametrize(("layout", "kind"), CASES)
def test_tensors_that_are_missing_surplus_or_misshapen_are_named(layout: str, kind: Any, tmp_path: Path) -> None:
    head = head_for(layout, kind)
    LAYOUTS[layout].write(head, "target").write(tmp_path)
    names = [name for name in load_file(tmp_path / "model.safetensors") if name.endswith("weight")]
    edited(tmp_path, extra=torch.ones(2))
    with pytest.raises(ModelError, match="has extra, which no"):
        files.load(tmp_path, TARGET)
    edited(tmp_path, extra=None, **{names[0]: torch.ones(3, 3)})
    with pytest.raises(ModelError, match=r"is \[3, 3\], not \["):
        files.load(tmp_path, TARGET)
    edited(tmp_path, **{names[0]: None})
    with pytest.raises(ModelError, match="lacks "):
        files.load(tmp_path, TARGET)


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
class TestForeignEagle3:
    @pytest.fixture
    def folder(self, layout: str, tmp_path: Path) -> Path:
        LAYOUTS[layout].write(random_head("eagle3"), "target").write(tmp_path)
        return tmp_path

    def test_absolute_ids_are_told_from_offsets(self, folder: Path) -> None:
        head = random_head("eagle3")
        edited(folder, d2t=head.target_ids)
        with pytest.raises(ModelError, match="d2t holds target ids; it must hold offsets"):
            files.load(folder, TARGET)
        edited(folder, d2t=torch.zeros(40, dtype=torch.long) + 90)
        with pytest.raises(ModelError, match="does not map to distinct ids"):
            files.load(folder, TARGET)

    def test_another_target_is_named(self, folder: Path) -> None:
        with pytest.raises(ModelError, match="hidden_size 32, and this one has 48"):
            files.load(folder, Bound("x", 48, 96, 3, 128))
        with pytest.raises(ModelError, match="vocab_size 96, and this one has 97"):
            files.load(folder, Bound("x", 32, 97, 3, 128))
        with pytest.raises(ModelError, match=r"reads layers \[0, 1, 2\] of a target that has 2"):
            files.load(folder, Bound("x", 32, 96, 2, 128))
        with pytest.raises(ModelError, match="does not say which target"):
            files.load(folder)

    def test_layers_that_a_file_does_not_name_are_the_usual_ones(self, folder: Path) -> None:
        told(folder, eagle_config=None, eagle_aux_hidden_state_layer_ids=None)
        assert files.load(folder, Bound("x", 32, 96, 12, 128)).config.hidden_layers == (1, 5, 8)

    def test_a_copy_of_the_embedding_is_left_alone(self, folder: Path) -> None:
        edited(folder, **{"embed_tokens.weight": torch.ones(96, 32)})
        files.load(folder, TARGET)

    @pytest.mark.parametrize("key", ["fc_norm", "norm_before_fc", "attention_bias"])
    def test_what_is_not_supported_is_said(self, folder: Path, key: str) -> None:
        told(folder, **{key: True})
        with pytest.raises(ModelError, match=rf"\({key}\), which is not supported"):
            files.load(folder, TARGET)


def test_a_folder_that_holds_no_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        files.load(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelError, match=r"there is none of model\.safetensors"):
        files.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"12345678")
    with pytest.raises(ModelError, match="cannot be read"):
        files.load(tmp_path)
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="no draft head of a known layout"):
        files.load(tmp_path)


def test_a_file_of_torch_is_read_too(tmp_path: Path) -> None:
    LAYOUTS["sglang"].write(random_head("eagle3"), "target").write(tmp_path)
    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    files.load(tmp_path, TARGET)


def test_layouts_that_cannot_hold_a_head_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stores no hydra heads; choose one of: outrider"):
        layout_named("vllm", "hydra")
    with pytest.raises(ConfigError, match="layout 'x' is not known"):
        layout_named("x", "hydra")
    with pytest.raises(ModelError, match="has no reduced vocabularies, and this head drafts 40 of 96"):
        LAYOUTS["medusa"].write(random_head("medusa"), "target")
    assert {kind for layout in LAYOUTS.values() for kind in layout.kinds} == set(KINDS)


def test_a_converted_head_drafts_as_the_original(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, target = models.head("eagle3"), models.folders["target"]
    assert run(["heads", "inspect", head]) == 0
    assert "layout                   outrider" in capsys.readouterr().out
    for layout in ("vllm", "speculators", "sglang"):
        out = str(tmp_path / layout)
        assert run(["heads", "convert", head, "--to", layout, "--out", out, "--target", target]) == 0
        assert run(["heads", "inspect", out, "--json"]) == 0
        assert f'"layout": "{layout}"' in capsys.readouterr().out
        back = str(tmp_path / f"{layout} back")
        assert run(["heads", "convert", out, "--to", "outrider", "--out", back, "--target", target]) == 0
        mine, theirs = (files.load(Path(folder)) for folder in (head, back))
        for name, tensor in mine.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[name]), name
        capsys.readouterr()
        assert run(["heads", "check", out, "--target", target, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["kind"] == "eagle3"
    assert run(["heads", "convert", head, "--to", "vllm", "--out", head]) == 2
    assert "is not empty" in capsys.readouterr().err
