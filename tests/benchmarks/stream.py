"""The benchmark stream: 1,000,000 messages of 10,000 namespaces.

Popularity falls as rank**-1.1, ranks are shuffled to namespaces, sizes are lognormal with median 1,024 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

NAMESPACES, MESSAGES, SEED = 10_000, 1_000_000, 20261121

Int32s = npt.NDArray[np.int32]


@dataclass
class Stream:
    """Message i is of namespace `key[i]` and has `size[i]` bytes; it arrives at i / 10 ms."""

    key: Int32s
    size: Int32s


def build_stream() -> Stream:
    """Return the stream, the same in every process."""
    random = np.random.Generator(np.random.PCG64(SEED))
    popularity = np.arange(1, NAMESPACES + 1, dtype=np.float64) ** -1.1
    cumulative = np.cumsum(popularity) / popularity.sum()
    rank = np.searchsorted(cumulative, random.random(MESSAGES), side="right").clip(0, NAMESPACES - 1)
    namespace_of_rank = random.permutation(NAMESPACES).astype(np.int32)
    size = np.rint(1024.0 * np.exp(random.standard_normal(MESSAGES))).clip(1, 65536).astype(np.int32)
    return Stream(namespace_of_rank[rank], size)
