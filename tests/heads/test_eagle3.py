"""The EAGLE-3 head: unrolled training against drafting row by row, and what its files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.errors import ConfigError, ModelError
from outrider.heads import files
from outrider.heads.config import HeadConfig
from outrider.heads.decoder import HeadDecoder
from outrider.heads.eagle3 import Eagle3
from outrider.target import attention
from outrider.target.batch import Span
from outrider.target.packer import Packer

BLOCK = 16


def config(**changes: Any) -> HeadConfig:
    values: dict[str, Any] = {
        "kind": "eagle3",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 96,
        "draft_vocab_size": 40,
        "hidden_layers": (0, 1, 2),
        "max_position_embeddings": 128,
        "target": "llama-3x32-v96",
    }
    return HeadConfig(**{**values, **changes})


def random_head(**changes: Any) -> Eagle3:
    torch.manual_seed(1)
    head = Eagle3(config(**changes))
    for parameter in head.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape)
    head.set_vocabulary(torch.randperm(96)[: head.config.draft_vocab_size].sort().values)
    return head.requires_grad_(False)


def decoder(head: Eagle3, backend: attention.BackendName | None = None) -> HeadDecoder:
    chosen = attention.choose(torch.device("cpu"), True, backend)
    return HeadDecoder(head, Packer("float32", True), chosen, torch.float32)


def drafted(head: HeadDecoder, embedded: Tensor, features: Tensor, row: int, steps: int) -> list[Tensor]:
    """The hidden states of row ``row``'s chain, drafted with a cache: the rows up to it, then its tokens one by one."""
    storage, context = head.new_storage(64, BLOCK), torch.arange(64, dtype=torch.int32)
    tokens = [0] * (row + 1)
    _, hidden = head.forward(
        [Span(tokens, context, 0)], storage, embedded[: row + 1].clone(), head.fuse(features[: row + 1])
    )
    out = [hidden[-1]]
    for step in range(1, steps):
        slots = [row + step]
        path = [row + back for back in range(1, step)]
        span = Span([0], context, row + 1, slots=slots, paths=[path])
        _, hidden = head.forward([span], storage, embedded[None, row + step].clone(), out[-1][None].clone())
        out.append(hidden[0])
    return out


@pytest.mark.parametrize("backend", [None, "gather"])
def test_unrolled_training_is_drafting_with_a_cache(backend: attention.BackendName | None) -> None:
    head, steps, rows = random_head(), 4, 20
    generator = torch.Generator().manual_seed(2)
    embedded = torch.randn(1, rows, 32, generator=generator)
    features = torch.randn(1, rows, 96, generator=generator)
    unrolled = list(head.unroll(embedded, features, steps))
    packed = decoder(head, backend)
    for row in range(rows - steps):
        for step, hidden in enumerate(drafted(packed, embedded[0], features[0], row, steps)):
            torch.testing.assert_close(hidden, unrolled[step][0, row], atol=1e-5, rtol=1e-5)


def test_logits_are_over_the_draft_vocabulary() -> None:
    head = random_head()
    packed = decoder(head)
    storage, context = packed.new_storage(64, BLOCK), torch.arange(64, dtype=torch.int32)
    embedded, features = torch.randn(5, 32), torch.randn(5, 96)
    logits, hidden = packed.forward([Span([0] * 5, context, 0)], storage, embedded, packed.fuse(features))
    torch.testing.assert_close(logits, head.logits(hidden), atol=1e-5, rtol=1e-5)
    assert logits.shape == (5, 40)
    assert torch.equal(packed.target_ids, head.t2d.nonzero()[:, 0])


def test_a_head_is_what_its_files_hold(tmp_path: Path) -> None:
    head = random_head()
    head.half().float()
    files.save(head, tmp_path)
    again = files.load(tmp_path)
    assert again.config == head.config
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_missing_and_surplus_tensors_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    files.save(random_head(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["extra"] = tensors.pop("fc.weight")
    tensors["norm.weight"] = tensors["norm.weight"][:4].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"has extra, .*lacks fc.weight; norm.weight is \[4\], not \[32\]"):
        files.load(tmp_path)


def test_a_folder_that_holds_no_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no draft head"):
        files.load(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelError, match="holds no draft head"):
        files.load(tmp_path)


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="draft_vocab_size=97 is over vocab_size=96"):
        config(draft_vocab_size=97)
    with pytest.raises(ConfigError, match="num_attention_heads=4 is no multiple of num_key_value_heads=3"):
        config(num_key_value_heads=3)
