"""The drain of a stopped query: `spark-submit jobs/drain.py --checkpoint /lake/ckpt --into /lake/waiting`.

The waiting rows of the query go to a Delta table or a folder of Parquet files, each once, and no query starts on its
checkpoint any more. The output says where another query goes on. The job exits with status 2 if the query runs, or if
an argument is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from spark_throttle.errors import ThrottleError
from spark_throttle.spark import drain


def main(arguments: Sequence[str] | None = None) -> int:
    """Drain the query, and return the exit status."""
    asked = _parser().parse_args(arguments)
    try:
        done = drain(
            _session(), asked.checkpoint, asked.into, format=asked.format,
            control_path=asked.control_path,
        )  # fmt: skip
    except ThrottleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(done)
    return 0


def _session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName("spark-throttle drain").getOrCreate()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkpoint", required=True, help="checkpointLocation of the query")
    parser.add_argument("--into", required=True, help="path of a Delta table, or of an empty folder")
    parser.add_argument("--format", choices=("delta", "parquet"), default="delta")
    parser.add_argument("--control-path", help="control path of the query, if it was given one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
