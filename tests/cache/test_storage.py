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
        out.write(layer, range(12), slots + 100 * layer, -slots - 100 * layer)
    return out


def content(kv: KVStorage) -> list[int]:
    """Key of every slot in layer 0, after a check that layers, values and dimensions agree."""
    keys, values = kv.read(slice(None), range(12))
    first = keys[0, :, 0, 0]
    for layer in range(2):
        nonzero = (first != 0) | (keys[1, :, 0, 0] != 0)
        for dim in range(2):
            assert torch.equal(keys[layer, :, 0, dim], first + 100 * layer * nonzero)
            assert torch.equal(values[layer, :, 0, dim], -(first + 100 * layer * nonzero))
    return [int(key) for key in first]


def test_starts_zeroed_and_aligned() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        kv = KVStorage(3, 32, 2, 5, dtype, block_size=16)
        assert kv.keys.shape == (3, 2, 2, 5, 16)
        assert kv.values.shape == (3, 32, 2, 5)
        for part in (kv.keys, kv.values):
            assert part.dtype == dtype
            assert not part.any()
            assert part.data_ptr() % 64 == 0


def test_device_is_honoured() -> None:
    kv = KVStorage(3, 32, 2, 5, torch.float16, "meta", block_size=16)
    assert kv.keys.device.type == kv.values.device.type == "meta"


def test_overlapping_moves_read_before_they_write() -> None:
    kv = storage()
    kv.move([2, 3, 5, 4], [1, 2, 3, 4])
    assert content(kv) == [0, 2, 3, 5, 4, 5, 6, 7, 8, 9, 10, 11]
    kv.move([1, 2], [2, 1])
    assert content(kv)[:4] == [0, 3, 2, 5]
    kv.move([], [])
    kv.keep_taps(1, 1)
    kv.write_taps(range(12), torch.arange(12.0)[:, None])
    kv.move([2, 3, 5], [1, 2, 3])
    assert kv.read_taps(range(6), 1)[:, 0].tolist() == [0, 2, 3, 5, 4, 5]  # hidden states go where their keys go
    with pytest.raises(CacheError, match="1 slots cannot be moved to 2"):
        kv.move([1], [1, 2])


def test_block_copies_and_zeroing() -> None:
    kv = storage()
    kv.copy_blocks([(1, 0), (2, 1)])
    assert content(kv) == [3, 4, 5, 6, 7, 8, 6, 7, 8, 9, 10, 11]
    kv.write(slice(None), [3], torch.nan, torch.nan)
    kv.zero_blocks([1, 3])
    kv.zero_blocks([])
    assert content(kv) == [3, 4, 5, 0, 0, 0, 6, 7, 8, 0, 0, 0]


def test_sizes() -> None:
    assert bytes_per_token(30, 3, 64, torch.bfloat16) == 30 * 2 * 3 * 64 * 2
    kv = KVStorage(3, 32, 2, 5, torch.float16, block_size=16)
    assert kv.num_bytes == 32 * bytes_per_token(3, 2, 5, torch.float16)
    with pytest.raises(CacheError, match="num_slots=33 is no multiple of block_size=16"):
        KVStorage(3, 33, 2, 5, torch.float16, block_size=16)


def test_what_is_written_is_read_wherever_it_lies() -> None:
    kv = KVStorage(2, 40, 3, 5, torch.float16, block_size=8)
    assert kv.keys.shape[1] == 3  # 40 slots do not fill their last tile
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(1))[:20]
    keys, values = torch.randn(2, 2, 20, 3, 5, generator=torch.Generator().manual_seed(2))
    kv.write(slice(None), slots, keys, values)
    for layer in (0, 1):
        read = kv.read(layer, slots)
        assert torch.equal(read[0], keys[layer].half())
        assert torch.equal(read[1], values[layer].half())
        lane = int(slots[3])
        assert torch.equal(kv.keys[layer, lane // 16, :, :, lane % 16], keys[layer, 3].half())


@pytest.mark.parametrize("tile", [1, 16])  # 1: as on other devices
def test_a_slice_reads_what_its_slots_hold(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr("outrider.cache.storage.TILE", tile)
    kv = KVStorage(2, 32, 3, 5, torch.float32, block_size=8)
    kv.write(slice(None), range(32), *torch.randn(2, 2, 32, 3, 5, generator=torch.Generator().manual_seed(3)))
    for layer in (1, slice(None)):
        listed, sliced = kv.read(layer, range(7, 21)), kv.read(layer, slice(7, 21))
        assert all(torch.equal(a, b) for a, b in zip(listed, sliced, strict=True))
        assert sliced[1].data_ptr() != listed[1].data_ptr()
        assert sliced[1].untyped_storage().data_ptr() == kv.values.untyped_storage().data_ptr()
