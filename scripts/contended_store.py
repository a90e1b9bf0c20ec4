"""Counts the changes that many authors at once on one Delta policy store lose.

::

    python scripts/contended_store.py /tmp/policies --writers 16 --changes 1000

Each writer is a process that creates namespaces by the service. The store is then read anew: the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from pathlib import Path

from spark_throttle.errors import StoreError
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author


def write(path: str, writer: int, changes: int, failures: multiprocessing.Queue[str]) -> None:
    """Create a writer's namespaces, and report each change that was refused."""
    service = PolicyService(DeltaStore(path), clock_ms=lambda: time.time_ns() // 1_000_000)  # noqa: TID251 - for people
    for change in range(changes):
        try:
            service.create("namespace", f"writer-{writer:02d}/{change:05d}", {}, Author(f"writer {writer}"))
        except StoreError as error:
            failures.put(str(error))


def main() -> None:
    """Write, then count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--changes", type=int, default=1000)
    options = parser.parse_args()
    DeltaStore.create(str(options.path))
    context = multiprocessing.get_context("spawn")
    failures: multiprocessing.Queue[str] = context.Queue()
    begin = time.perf_counter()
    # The first writers make one change more, so that all changes are made.
    shares = [(options.changes + options.writers - 1 - writer) // options.writers for writer in range(options.writers)]
    processes = [
        context.Process(target=write, args=(str(options.path), writer, share, failures))
        for writer, share in enumerate(shares)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - begin
    store = DeltaStore(str(options.path))
    wanted = {f"writer-{writer:02d}/{change:05d}" for writer, share in enumerate(shares) for change in range(share)}
    found = [entry.name for entry in store.scan()]
    said = {
        "writers": options.writers, "changes": len(wanted), "lost": len(wanted - set(found)),
        "doubled": len(found) - len(set(found)), "refused": failures.qsize(), "revision": store.revision(),
        "seconds": round(seconds, 1),
    }  # fmt: skip
    print(json.dumps(said))


if __name__ == "__main__":
    main()
