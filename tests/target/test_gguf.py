"""GGUF files: converted once, checked, and refused when broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from gguf import GGUFWriter

from outrider.errors import ModelError
from outrider.target import gguf
from outrider.target.gguf_rotary import LLAMA3, set_rotary
from outrider.target.load import load_model, resolve
from target.files import SMALL, network, own_cache, tiny

__all__ = ["own_cache"]
pytestmark = pytest.mark.usefixtures("own_cache")

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
