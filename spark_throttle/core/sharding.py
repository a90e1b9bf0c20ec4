"""Which shard a namespace lives in: the CRC-32 of its bytes modulo the shards, as Spark's ``crc32`` has it."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Int64s


def shard_of(names: pa.Array | pa.ChunkedArray, shards: int) -> Int64s:
    """Return the shard of every name, text that is no UTF-8 included; a missing one is where the empty name is.

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
