"""Draft heads: unrolled training against drafting row by row, and what their files hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.errors import ConfigError
from outrider.heads import files
from outrider.heads.base import DraftHead
from outrider.heads.config import KINDS, RECURRENT, BlockConfig, HeadConfig, HeadKind, config_class
from outrider.heads.decoder import HeadDecoder
from outrider.heads.kinds import make
from outrider.heads.medusa import StackHead
from outrider.heads.prefix import PrefixCache
from outrider.heads.recurrent import RecurrentHead
from outrider.heads.stack import StackDecoder
from outrider.target import attention
from outrider.target.batch import Span
from outrider.target.packer import Packer

BLOCK = 16


SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "vocab_size": 96,
    "draft_vocab_size": 40,
    "hidden_layers": (0, 1, 2),
    "target": "llama-3x32-v96",
}
BLOCK_SHAPE: dict[str, Any] = {
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}


def config(kind: HeadKind = "eagle3", **changes: Any) -> HeadConfig:
    values = {"kind": kind, **SHAPE}
    if kind != "eagle3":
        values["hidden_layers"] = (2,)
    values |= BLOCK_SHAPE if issubclass(config_class(kind), BlockConfig) else {}
    values |= {} if kind in RECURRENT else {"num_layers": 2}
    return config_class(kind)(**{**values, **changes})


def random_head(kind: HeadKind = "eagle3", **changes: Any) -> DraftHead:
    torch.manual_seed(1)
    head = make(config(kind, **changes))
    noise = 0.02 if kind == "eagle" else 0.2  # no norm keeps its output small
    for parameter in head.parameters():
        parameter.data += noise * torch.randn(parameter.shape)
    head.set_vocabulary(torch.randperm(96)[: head.config.draft_vocab_size].sort().values)
    return head.requires_grad_(False)


def random_rows(kind: HeadKind, rows: int) -> tuple[Tensor, Tensor]:
    """Embeddings and features of a text."""
    generator = torch.Generator().manual_seed(2)
    width = 96 if kind == "eagle3" else 32
    return torch.randn(1, rows, 32, generator=generator), torch.randn(1, rows, width, generator=generator)


def decoder(head: DraftHead, backend: attention.BackendName | None = None) -> HeadDecoder:
    assert isinstance(head, RecurrentHead)
    chosen = attention.choose(torch.device("cpu"), True, backend)
    return HeadDecoder(head, Packer("float32", True), chosen, torch.float32)


def drafted(head: HeadDecoder, embedded: Tensor, features: Tensor, row: int, steps: int) -> list[Tensor]:
    """The hidden states of row ``row``'s chain, drafted with a cache: the rows up to it, then its tokens one by one."""
    storage, context = head.new_storage(64, BLOCK), torch.arange(64, dtype=torch.int32)
    tokens = [0] * (row + 1)
    _, hidden = head.forward(
        [Span(tokens, context, 0)], storage, embedded[: row + 1].clone(), head.enter(features[: row + 1])
    )
    out = [hidden[-1]]
    for step in range(1, steps):
        slots = [row + step]
        path = [row + back for back in range(1, step)]
        span = Span([0], context, row + 1, slots=slots, paths=[path])
        _, hidden = head.forward([span], storage, embedded[None, row + step].clone(), out[-1][None].clone())
        out.append(hidden[0])
    return out


@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("backend", [None, "gather"])
def test_unrolled_training_is_drafting_with_a_cache(kind: HeadKind, backend: attention.BackendName | None) -> None:
    head, steps, rows = random_head(kind), 4, 20
    embedded, features = random_rows(kind, rows)
    unrolled = list(head.unroll(embedded, features, steps))
    packed = decoder(head, backend)
    for row in range(rows - steps):
        for step, hidden in enumerate(drafted(packed, embedded[0], features[0], row, steps)):
            torch.testing.assert_close(hidden, unrolled[step][0, row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["medusa", "hydra", "hydra_plus"])
def test_unrolled_stacks_are_what_is_drafted(kind: HeadKind) -> None:
    head, steps, rows = random_head(kind), 4, 9
    assert isinstance(head, StackHead)
    embedded, features = random_rows(kind, rows)
    packed = StackDecoder(head, Packer("float32", True))
    read = features[0]
    if packed.prefix is not None:  # a few rows at a time, some of them taken back
        cache = PrefixCache()
        for first, end in ((0, 4), (4, 5), (5, 8)):
            packed.prefix.extend(cache, features[0, first:end])
        cache.cut(6)
        packed.prefix.extend(cache, features[0, 6:])
        read = cache.outputs.all()
    for step, hidden in enumerate(head.unroll(embedded, features, steps)):
        for row in range(rows - steps):
            seen = read[row]
            for token in range(0 if kind == "medusa" else step + 1):
                seen = torch.cat((embedded[0, row + token], seen))
            logits = packed.forward(step, seen[None])[0]
            torch.testing.assert_close(logits, head.logits(hidden[0, row], step), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_looked_at_alone_change_none_that_are_asked_for(kind: HeadKind) -> None:
    head = random_head(kind)
    embedded, features = random_rows(kind, 12)
    for whole, part in zip(head.unroll(embedded, features, 3), head.unroll(embedded, features, 3, 5), strict=True):
        torch.testing.assert_close(part, whole[:, 5:], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", RECURRENT)
def test_logits_are_over_the_draft_vocabulary(kind: HeadKind) -> None:
    head = random_head(kind)
    packed = decoder(head)
    storage, context = packed.new_storage(64, BLOCK), torch.arange(64, dtype=torch.int32)
    embedded, features = random_rows(kind, 5)
    logits, hidden = packed.forward([Span([0] * 5, context, 0)], storage, embedded[0], packed.enter(features[0]))
    torch.testing.assert_close(logits, head.logits(hidden, 0), atol=1e-5, rtol=1e-5)
    assert logits.shape == (5, 40)
    assert torch.equal(packed.target_ids, head.t2d.nonzero()[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_is_what_its_files_hold(kind: HeadKind, tmp_path: Path) -> None:
    head = random_head(kind)
    head.half().float()
    files.save(head, tmp_path)
    again = files.load(tmp_path)
    assert again.config == head.config
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_impossible_shapes_are_refused() -> None:
    with pytest.raises(ConfigError, match="draft_vocab_size=97 is over vocab_size=96"):
        config(draft_vocab_size=97)
    with pytest.raises(ConfigError, match="num_attention_heads=4 is no multiple of num_key_value_heads=3"):
        config(num_key_value_heads=3)
