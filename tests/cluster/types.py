"""Rows of every type on a cluster whose tables and checkpoints are on an S3-compatible server (`make cluster-types`).

A standalone master, three workers with one executor each and the store are processes of their own, as in `make
cluster-test`. Rows go every way of `tests.integration.every_type`, from files on the store to tables there. The last
line of standard output is one line of JSON: what became of the rows of each way. The exit status is 0 if all came as
they were.
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
from tests.integration.every_type import WAYS
from tests.sessions import ROOT, pin_interpreter

_UNHARMED: Final = "6 rows, all as they were"


def main() -> int:
    """Return the exit status."""
    root: Path = ROOT / "build" / "cluster-types"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    os.environ["PYTHONPATH"] = str(ROOT)
    pin_interpreter()
    with running_store(root / "store", 1) as store:
        os.environ.update(store.environment())
        with running_cluster(root / "cluster", WORKERS, 1, os.environ) as cluster:
            ended = subprocess.run(
                [sys.executable, "-m", "tests.integration.every_type", f"{LAKE}/types"],
                cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
                env=os.environ | {"PYSPARK_SUBMIT_ARGS": submit_arguments(store, cluster.url)},
            )  # fmt: skip
    told = json.loads(ended.stdout.splitlines()[-1])
    print(json.dumps(told, separators=(",", ":")))  # noqa: T201 - the result
    return 0 if told == dict.fromkeys(WAYS, _UNHARMED) else 1


if __name__ == "__main__":
    sys.exit(main())
