"""Which shard a namespace lives in: the CRC-32 of its bytes, as by Spark's ``crc32``, modulo the number of shards."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import CompiledPolicy, Int64s


def shard_of(names: pa.Array | pa.ChunkedArray, shards: int) -> Int64s:
    """Return the shard of every name, even if it is not valid UTF-8; a missing name is treated as the empty name.

    Examples
    --------
    >>> shard_of(pa.chunked_array([["a", "b", None, "a"]]), 4).tolist()
    [3, 1, 0, 3]
    """
    whole = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
    coded = whole.dictionary_encode()
    texts = coded.dictionary.cast(pa.large_binary()).to_pylist()
    of_text = np.array([zlib.crc32(text) % shards for text in [*texts, b""]], dtype=np.int64)
    return of_text[coded.indices.fill_null(len(texts)).to_numpy(zero_copy_only=False)]


def slice_of(policy: CompiledPolicy, shard: int, shards: int) -> CompiledPolicy:
    """Return a shard's slice of a policy: all but destinations and the names that live in other shards."""
    here = shard_of(policy.namespace_names, shards) == shard
    unnamed = np.arange(len(policy.namespace_names), len(policy.namespace_limits))
    rows = np.concatenate([np.flatnonzero(here), unnamed])
    exempt_here = shard_of(policy.exempt_names, shards) == shard
    return replace(
        policy,
        namespace_names=policy.namespace_names.filter(pa.array(here)),
        exempt_names=policy.exempt_names.filter(pa.array(exempt_here)),
        namespace_limits=policy.namespace_limits.take(rows),
        namespace_windows=policy.namespace_windows.take(rows),
        namespace_group=policy.namespace_group[rows],
        destinations=None,
    )
