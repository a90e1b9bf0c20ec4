"""How the cost of a job grows with rows, namespaces and shards: Parquet in, nothing out.

Run as ``python -m tests.benchmarks.growth [PART]... [--repeats N] [--out FILE]``. `job_costs` says what is measured.
The opponents: `shuffle`, the job without a throttle; `throttled`, with nothing held back; `quotas`, with a quota of its
own for each namespace.

=================  =====================================================================================
``rows-…``         100,000 to 3,000,000 rows of 10,000 namespaces, 2 shards
``namespaces-…``   600,000 rows of 1,000 to 1,000,000 namespaces, evenly, 2 shards
``shards-…``       600,000 rows of 10,000 namespaces, evenly, over 1 to 64 shards in as many partitions
=================  =====================================================================================
"""

from __future__ import annotations

from typing import Final

from tests.benchmarks.job_costs import SHARDS, Part, Workload, main
from tests.benchmarks.operators import shuffle, throttled

ROWS: Final = (100_000, 300_000, 1_000_000, 3_000_000)
NAMESPACES: Final = (1_000, 10_000, 100_000, 1_000_000)
SHARD_COUNTS: Final = (1, 4, 16, 64)
_ROWS: Final = 600_000
_QUOTAS: Final = {"defaults": {"publish": {"messages_per_second": 1_000_000, "bytes_per_second": "1GiB"}}}


def part(rows: int, namespaces: int = 10_000, shards: int = SHARDS) -> Part:
    """Return the opponents over so many rows of so many namespaces."""
    opponents = {
        "throttled": throttled({}, shards),
        "quotas": throttled(_QUOTAS, shards),
        "shuffle": shuffle(shards),
    }
    work = Workload(rows, 2, 1, numbers=0, words=0, value_bytes=170, namespaces=namespaces, is_even=True)
    return Part(work, opponents, "throttled")


PARTS: Final = {
    **{f"rows-{rows}": part(rows) for rows in ROWS},
    **{f"namespaces-{count}": part(_ROWS, namespaces=count) for count in NAMESPACES},
    **{f"shards-{count}": part(_ROWS, shards=count) for count in SHARD_COUNTS},
}

if __name__ == "__main__":
    main(PARTS, __doc__ or "")
