"""The KV storage: moves that overlap, block copies, zeroing, sizes."""

from __future__ import annotations

import pytest
import torch

from outrider.cache import KVStorage, bytes_per_token
from outrider.errors import CacheError


def storage() -> KVStorage:
    """Two layers, 12 slots; the value of a slot is its number, negative for values, plus 100 a layer."""
    out = KVStorage(2, 12, 1, 2, torch.float32, block_size=3)
    slots = torch.arange(12.0)[:, None, None].expand(12, 1, 2)
    for layer in range(2):
        out.kv[layer, 0] = slots + 100 * layer
        out.kv[layer, 1] = -slots - 100 * layer
    return out


def content(kv: KVStorage) -> list[int]:
    """Key of every slot in layer 0, after a check that layers, values and dimensions agree."""
    keys = kv.kv[0, 0, :, 0, 0]
    for layer in range(2):
        nonzero = (keys != 0) | (kv.kv[1, 0, :, 0, 0] != 0)
        for dim in range(2):
            assert torch.equal(kv.kv[layer, 0, :, 0, dim], keys + 100 * layer * nonzero)
            assert torch.equal(kv.kv[layer, 1, :, 0, dim], -(keys + 100 * layer * nonzero))
    return [int(key) for key in keys]


def test_starts_zeroed_and_aligned() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        kv = KVStorage(3, 32, 2, 5, dtype, block_size=16).kv
        assert kv.shape == (3, 2, 32, 2, 5)
        assert kv.dtype == dtype
        assert not kv.any()
        assert kv.data_ptr() % 64 == 0


def test_device_is_honoured() -> None:
    kv = KVStorage(3, 32, 2, 5, torch.float16, "meta", block_size=16)
    assert kv.kv.device.type == kv.blocks.device.type == "meta"
    assert kv.blocks.shape == (3, 2, 2, 16, 2, 5)


def test_overlapping_moves_read_before_they_write() -> None:
    kv = storage()
    kv.move([2, 3, 5, 4], [1, 2, 3, 4])
    assert content(kv) == [0, 2, 3, 5, 4, 5, 6, 7, 8, 9, 10, 11]
    kv.move([1, 2], [2, 1])
    assert content(kv)[:4] == [0, 3, 2, 5]
    kv.move([], [])
    with pytest.raises(CacheError, match="1 slots cannot be moved to 2"):
        kv.move([1], [1, 2])


def test_block_copies_and_zeroing() -> None:
    kv = storage()
    kv.copy_blocks([(1, 0), (2, 1)])
    assert content(kv) == [3, 4, 5, 6, 7, 8, 6, 7, 8, 9, 10, 11]
    kv.kv[:, :, 3] = float("nan")
    kv.zero_blocks([1, 3])
    kv.zero_blocks([])
    assert content(kv) == [3, 4, 5, 0, 0, 0, 6, 7, 8, 0, 0, 0]


def test_sizes() -> None:
    assert bytes_per_token(30, 3, 64, torch.bfloat16) == 30 * 2 * 3 * 64 * 2
    kv = KVStorage(3, 32, 2, 5, torch.float16, block_size=16)
    assert kv.num_bytes == 32 * bytes_per_token(3, 2, 5, torch.float16)
    with pytest.raises(CacheError, match="num_slots=33 is no multiple of block_size=16"):
        KVStorage(3, 33, 2, 5, torch.float16, block_size=16)
