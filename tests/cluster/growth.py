"""How a batch on a cluster grows with executors and the store's latency (`make cluster-growth`).

Every setting runs the job of the bench as users have it, on a cluster and a store of its own, once throttled and once
without a throttle but with a shuffle. A batch has 1,500 rows: what grows is what a batch costs,
however many rows it has. A setting that two axes have in common is measured once. The CPU time is that of the driver,
the executors and their Pythons; the store and its proxy are left out, although they use the same cores. The last line
of standard output is one line of JSON, and a picture shows it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from tests.cluster.bench import Bench, say
from tests.cluster.cluster import cluster_over_store
from tests.cluster.faults import Faults
from tests.cluster.pictures import draw_growth
from tests.cluster.requests import by_owner
from tests.crash.points import DIRECTORY
from tests.sessions import ROOT


@dataclass(frozen=True, slots=True)
class Setting:
    """One place on an axis of the picture."""

    axis: str
    value: int
    workers: int = 3
    executors: int = 1
    """On each worker, with one core each."""

    latency_ms: int = 0

    @property
    def as_run(self) -> tuple[int, ...]:
        """What the run depends on: places of several axes may be one setting."""
        return self.workers, self.executors, self.latency_ms


@dataclass(frozen=True, slots=True)
class Grown:
    """What a batch cost in a setting."""

    axis: str
    value: int
    is_throttled: bool
    seconds: float
    cpu_seconds: float
    requests: float


SETTINGS: Final = (
    *(
        Setting("executors", workers * executors, workers, executors)
        for workers, executors in ((1, 1), (2, 1), (3, 1), (3, 2))
    ),
    *(Setting("latency_ms", latency_ms, latency_ms=latency_ms) for latency_ms in (0, 50, 100, 200)),
)


def measured(root: Path, setting: Setting, batches: int, *, is_throttled: bool) -> Grown:
    """Run so many batches in an empty folder, and return what one of them cost."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    os.environ[DIRECTORY] = str(root)
    with cluster_over_store(root, setting.workers, setting.executors) as (store, cluster):
        (root / "store.json").write_text(json.dumps(store.settings()))
        bench = Bench(root, 1, store, cluster)
        try:
            calm = bench.measure(batches, Faults(latency_ms=setting.latency_ms), is_throttled=is_throttled)
        finally:
            bench.leave()
    return Grown(
        setting.axis, setting.value, is_throttled, round(calm.seconds / batches, 3),
        round(calm.cpu_seconds / batches, 3), by_owner(calm.counts, batches)["all"],
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what every setting cost, and draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--axis", action="append", choices=sorted({each.axis for each in SETTINGS}))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "cluster-growth")
    parser.add_argument("--resume", action="store_true", help="keep what an earlier run measured, and measure the rest")
    asked = parser.parse_args(arguments)
    kept = asked.out / "growth.json"
    found = [Grown(**each) for each in json.loads(kept.read_text())] if asked.resume and kept.exists() else []
    of_setting = {(each.axis, each.value): each for each in SETTINGS}
    done = {(*of_setting[each.axis, each.value].as_run, each.is_throttled): each for each in found}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    for setting in SETTINGS:
        if asked.axis and setting.axis not in asked.axis:
            continue
        for is_throttled in (True, False):
            run = (*setting.as_run, is_throttled)
            if run not in done:
                done[run] = measured(asked.out.absolute() / "run", setting, asked.batches, is_throttled=is_throttled)
            grown = replace(done[run], axis=setting.axis, value=setting.value)
            if grown in found:
                continue
            found.append(grown)
            say(str(grown))
            kept.write_text(json.dumps([asdict(each) for each in found], indent=1))
    picture = draw_growth(found, asked.out / "growth.png")
    print(  # noqa: T201 - the result
        json.dumps({"growth": [asdict(each) for each in found], "picture": str(picture)}, separators=(",", ":"))
    )


if __name__ == "__main__":
    main()
