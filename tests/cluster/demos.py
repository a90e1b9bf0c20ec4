"""The demonstrations on a cluster whose tables and checkpoints are on an S3-compatible server (`make cluster-demos`).

A standalone master, three workers with one executor each and the store are processes of their own, as in `make
cluster-test`; each demonstration is started as a user starts it, with the cluster's settings for `spark-submit` and a
place on the store. The one of the control plane needs a browser (`make browser`). The last line of standard output is
one line of JSON: the last line of each demonstration. The exit status is 0 if all of them ended with 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.cluster.bench import say
from tests.cluster.cluster import cluster_over_store
from tests.cluster.job import LAKE, of_cluster
from tests.cluster.store import Store
from tests.sessions import ROOT

WORKERS: Final = 3
DEMOS: Final[Mapping[str, Sequence[str]]] = {
    "demo": (),
    "shares": ("--master", "{master}"),
    "soak": ("--minutes", "3"),
    "admin_demo": (),
}


def submit_arguments(store: Store, master: str) -> str:
    """Return what `spark-submit` is told: the cluster, the store, and jars that are on every machine."""
    settings = store.settings() | of_cluster() | {"spark.jars.packages": ""}
    words = " ".join(f"--conf {key}={value}" for key, value in settings.items())
    return f"--master {master} --properties-file {ROOT / 'conf' / 'spark-defaults.conf'} {words} pyspark-shell"


def submitted(program: Sequence[str], store: Store, master: str) -> tuple[int, dict[str, Any]]:
    """Run a program of Python with the cluster's settings; return its exit status, and its last line."""
    ended = subprocess.run(
        [sys.executable, *program], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False,
        env=os.environ | {"PYSPARK_SUBMIT_ARGS": submit_arguments(store, master)},
    )  # fmt: skip
    lines = ended.stdout.splitlines()
    return ended.returncode, json.loads(lines[-1]) if lines else {}


def run(name: str, root: Path, store: Store, master: str) -> tuple[int, dict[str, Any]]:
    """Run a demonstration; return its exit status, and its last line."""
    arguments = [word.format(master=master) for word in DEMOS[name]]
    program = [str(ROOT / "demos" / f"{name}.py"), "--out", str(root / name), "--place", f"{LAKE}/{name}"]
    return submitted([*program, *arguments], store, master)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--demo", action="append", choices=sorted(DEMOS), help="by default, all")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "cluster-demos", help="deleted, then written again"
    )
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    root: Path = asked.out.absolute()
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    status, told = 0, {}
    with cluster_over_store(root, WORKERS, 1) as (store, cluster):
        for name in asked.demo or DEMOS:
            say(f"running {name}")
            ended, told[name] = run(name, root, store, cluster.url)
            status = status or ended
    print(json.dumps(told, separators=(",", ":")))  # noqa: T201 - the result
    return status


if __name__ == "__main__":
    sys.exit(main())
