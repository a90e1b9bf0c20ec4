"""Rows of every type, and wide ones, on a cluster whose tables are on an S3-compatible server (`make cluster-types`).

A standalone master, three workers with one executor each and the store are processes of their own, as in `make
cluster-test`. Rows go every way of `tests.integration.every_type` and of `wide_rows`, from files on the store to tables
there. The last line of standard output is one line of JSON: what became of the rows of each way. The exit status is 0
if all came as they were.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Final

from tests.cluster.cluster import cluster_over_store
from tests.cluster.demos import WORKERS, submitted
from tests.cluster.job import LAKE
from tests.integration import every_type, wide_rows
from tests.sessions import ROOT

UNHARMED: Final = {
    "every_type": dict.fromkeys(every_type.WAYS, "6 rows, all as they were"),
    "wide_rows": dict.fromkeys(wide_rows.TABLES, dict.fromkeys(wide_rows.WAYS, True)),
}
"""What the programs are to tell."""


def main() -> int:
    """Return the exit status."""
    root: Path = ROOT / "build" / "cluster-types"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    status, told = 0, {}
    with cluster_over_store(root, WORKERS, 1) as (store, cluster):
        for name in UNHARMED:
            program = ["-m", f"tests.integration.{name}", f"{LAKE}/{name}"]
            ended, told[name] = submitted(program, store, cluster.url)
            status = status or ended
    print(json.dumps(told, separators=(",", ":")))  # noqa: T201 - the result
    return status or int(told != UNHARMED)


if __name__ == "__main__":
    sys.exit(main())
