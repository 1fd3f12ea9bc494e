"""MTP modules that a model's checkpoint carries."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.tiny import Models, same
from outrider import LLM, SamplingParams
from outrider.engine.heads import bound_by_name
from outrider.errors import ConfigError, ModelError
from outrider.heads import files
from outrider.heads.base import DraftHead
from outrider.train.start import read_target, with_vocabulary

MTP = {"method": "mtp", "num_speculative_tokens": 4}
NAMES = {"fc": "eh_proj", "norm": "shared_head.norm", "lm_head": "shared_head.head"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(Path(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def head(models: Models) -> DraftHead:
    """A trained module over the whole vocabulary."""
    small = files.load(Path(models.head("mtp")))
    return with_vocabulary(small, torch.arange(small.config.vocab_size), read_target(models.folders["target"]))


def carrying(models: Models, head: DraftHead, folder: Path, shards: int = 1, **changes: Tensor | None) -> Path:
    """The target with ``head`` in its checkpoint."""
    shutil.copytree(models.folders["target"], folder)
    config = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    prefix = f"model.layers.{config['num_hidden_layers']}."
    module: dict[str, Any] = {}
    for key, value in head.state_dict().items():
        if key not in ("d2t", "t2d"):
            name, _, last = key.removeprefix("midlayer.").rpartition(".")
            module[f"{prefix}{NAMES.get(name, name)}.{last}"] = value
    tensors = load_file(folder / "model.safetensors") | module | {prefix + key: value for key, value in changes.items()}
    kept = {key: value.clone() for key, value in tensors.items() if value is not None}
    if shards == 1:
        save_file(kept, folder / "model.safetensors", {"format": "pt"})
        return folder
    (folder / "model.safetensors").unlink()
    where = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = {key: kept[key] for key in sorted(kept)[number::shards]}
        save_file(part, folder / name, {"format": "pt"})
        where |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("shards", [1, 3])
def test_a_module_in_the_checkpoint_drafts_without_a_word(
    shards: int, models: Models, head: DraftHead, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = carrying(models, head, tmp_path / "model", shards)
    loaded = files.load(folder, bound_by_name(str(folder)))
    for key, value in head.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[key]), key
    params = SamplingParams(max_tokens=24, temperature=0.0)
    with caplog.at_level(logging.WARNING), LLM(str(folder), speculative_config=MTP, threads=1) as llm:
        output = llm.generate([5, 6, 7], params)[0].outputs[0]
    same(output, models.plain([5, 6, 7], params).outputs[0])
    assert any(output.from_draft)
    assert not caplog.records


def test_what_is_not_supported_is_refused(models: Models, head: DraftHead, tmp_path: Path) -> None:
    one = torch.ones(2, 2)
    cases: list[tuple[dict[str, Tensor | None], str]] = [
        ({"mlp.experts.0.up_proj.weight": one}, "has experts"),
        ({"self_attn.kv_a_proj_with_mqa.weight": one}, "has latent attention"),
        ({"embed_tokens.weight": one}, "an embedding of its own"),
        ({"self_attn.q_proj.bias": one[0]}, r"has midlayer\.self_attn\.q_proj\.bias, which no such head has"),
        ({"eh_proj.weight": None}, r"lacks fc\.weight"),
    ]
    for number, (changes, message) in enumerate(cases):
        folder = carrying(models, head, tmp_path / str(number), **changes)
        with pytest.raises(ModelError, match=message):
            files.load(folder, bound_by_name(str(folder)))
    with pytest.raises(ConfigError, match=r"no mtp head comes with outrider .* nor does its checkpoint carry one"):
        models.fresh({"method": "mtp"})
