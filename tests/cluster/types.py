"""Rows of every type, and wide ones, on a cluster whose tables are on an S3-compatible server (`make cluster-types`).

A standalone master, three workers with one executor each and the store are processes of their own, as in `make
cluster-test`. Rows go every way of `tests.integration.every_type` and of `wide_rows`, from files on the store to tables
there. The last line of standard output is one line of JSON: what became of the rows of each way. The exit status is 0
if all came as they were.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cluster.cluster import running_cluster
from tests.cluster.demos import WORKERS, submit_arguments
from tests.cluster.job import LAKE
from tests.cluster.store import running_store
from tests.integration import every_type, wide_rows
from tests.sessions import ROOT, pin_interpreter

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
    os.environ["PYTHONPATH"] = str(ROOT)
    pin_interpreter()
    told = {}
    with running_store(root / "store", 1) as store:
        os.environ.update(store.environment())
        with running_cluster(root / "cluster", WORKERS, 1, os.environ) as cluster:
            for program in UNHARMED:
                ended = subprocess.run(
                    [sys.executable, "-m", f"tests.integration.{program}", f"{LAKE}/{program}"],
                    cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
                    env=os.environ | {"PYSPARK_SUBMIT_ARGS": submit_arguments(store, cluster.url)},
                )  # fmt: skip
                told[program] = json.loads(ended.stdout.splitlines()[-1])
    print(json.dumps(told, separators=(",", ":")))  # noqa: T201 - the result
    return 0 if told == UNHARMED else 1


if __name__ == "__main__":
    sys.exit(main())
