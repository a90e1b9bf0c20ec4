"""Another number of shards for a stopped query: `spark-submit jobs/reshard.py --checkpoint /lake/ckpt --shards 16`.

The query's queues and balances are handed over to the new number of shards, with which it is started next. The job
exits with status 2 if the query runs, or if an argument is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from spark_throttle.errors import ThrottleError
from spark_throttle.spark import reshard


def main(arguments: Sequence[str] | None = None) -> int:
    """Hand the shards over, and return the exit status."""
    asked = _parser().parse_args(arguments)
    session = _session()
    try:
        former = reshard(session, asked.checkpoint, asked.shards, control_path=asked.control_path)
    except ThrottleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{asked.checkpoint} had {former} shards and has {asked.shards}: start the query with shards={asked.shards}")
    return 0


def _session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName("spark-throttle reshard").getOrCreate()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkpoint", required=True, help="checkpointLocation of the query")
    parser.add_argument("--shards", required=True, type=int, help="new number of shards")
    parser.add_argument("--control-path", help="control path of the query, if it was given one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
