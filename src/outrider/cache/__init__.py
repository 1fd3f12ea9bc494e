"""The KV cache: block pool, block tables, prefix index, and the tensor they index."""

from outrider.cache.pool import BlockPool
from outrider.cache.prefix import PrefixIndex
from outrider.cache.storage import KVStorage, bytes_per_token
from outrider.cache.table import BlockTable

__all__ = ["BlockPool", "BlockTable", "KVStorage", "PrefixIndex", "bytes_per_token"]
