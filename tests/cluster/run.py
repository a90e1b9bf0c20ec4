"""The cluster bench (`make cluster-test KILLS=n SEED=s`): nothing is lost or doubled on a cluster over an object store.

A standalone master, three workers and the job's driver are processes of their own; checkpoint, tables, policies and
exchange are on an S3-compatible server, behind a proxy that makes requests late, refuses them and cuts connections.
First the requests of a batch are counted while all is calm. Then executors, workers, the driver and the master are
killed, half of them at named points, some as the store goes out of reach. At last the job drains, and the account is
taken from input and output tables and Spark's logs alone. The last line of standard output is one line of JSON; the
exit status is 0 if every law holds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.cluster.bench import Bench, Calm, Diary, say
from tests.cluster.cluster import cluster_over_store
from tests.cluster.pictures import draw_requests, draw_run
from tests.cluster.plan import draw_kills
from tests.cluster.requests import by_owner
from tests.crash.account import Account, Evidence, RunFacts, take_account
from tests.crash.job import DELTA, FILES
from tests.crash.points import DIRECTORY
from tests.crash.run import points_of
from tests.sessions import ROOT

WORKERS: Final = 3


def run(
    root: Path, kills: int, seed: int, *, executors: int, batches: int, minutes: float, settings: Mapping[str, str]
) -> tuple[Account, Calm, Diary]:
    """Run the bench in an empty folder; `batches` are counted while all is calm, under more settings of Spark.

    After so many minutes no more kills are begun.
    """
    until = time.monotonic() + 60 * minutes
    root.mkdir(parents=True)
    os.environ[DIRECTORY] = str(root)
    with cluster_over_store(root, WORKERS, executors, seed) as (store, cluster):
        (root / "store.json").write_text(json.dumps(store.settings() | dict(settings)))
        bench = Bench(root, seed, store, cluster)
        try:
            calm = bench.measure(batches)
            say(f"a batch of the calm: {calm.seconds / calm.batches:.1f} s, {by_owner(calm.counts, batches)}")
            for number, kill in enumerate(draw_kills(kills, seed, points_of(DELTA, FILES))):
                if time.monotonic() > until:
                    break
                bench.make(kill)
                seconds, victim, point = bench.diary.kills[-1]
                how = ", silently" if kill.is_silent else ""
                out = f", and the store for {kill.outage_seconds} s{how}" if kill.outage_seconds else ""
                say(f"{seconds:6.0f} s  kill {number + 1} of {kills}: {victim} at {point or 'a moment'}{out}")
            bench.finish()
            say("drained")
            (root / "counts.json").write_text(json.dumps({"calm": asdict(calm), "all": store.counts()}, indent=1))
            store.copy_to(root)
        finally:
            bench.leave()
    return take_account(Evidence.read(root), RunFacts(len(bench.diary.kills))), calm, bench.diary


def told(account: Account, calm: Calm, diary: Diary, pictures: list[str]) -> dict[str, Any]:
    """Return what the last line says."""
    owners = by_owner(calm.counts, calm.batches)
    victims = Counter(victim for _, victim, _ in diary.kills)
    return asdict(account) | {
        **{f"killed_{victim}": count for victim, count in sorted(victims.items())},
        "at_points": sum(point is not None for _, _, point in diary.kills),
        "outages": len(diary.outages),
        "ended_by_itself": len(diary.ends),
        "requests_a_batch": owners.pop("all"),
        "requests_by_owner": owners,
        "seconds_a_batch": round(calm.seconds / calm.batches, 2),
        "pictures": pictures,
    }


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--executors", type=int, default=2, help="so many on each worker")
    parser.add_argument("--batches", type=int, default=10, help="so many are counted while all is calm")
    parser.add_argument("--minutes", type=float, default=math.inf, help="after these no more kills are begun")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "cluster", help="below it, a directory a run")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    root: Path = asked.out.absolute() / f"seed-{asked.seed}"
    shutil.rmtree(root, ignore_errors=True)
    settings = dict(each.split("=", 1) for each in asked.set)
    account, calm, diary = run(
        root, asked.kills, asked.seed,
        executors=asked.executors, batches=asked.batches, minutes=asked.minutes, settings=settings,
    )  # fmt: skip
    pictures = [str(draw_requests(calm, root / "requests.png")), str(draw_run(diary, root / "run.png"))]
    print(json.dumps(told(account, calm, diary, pictures), separators=(",", ":")), flush=True)  # noqa: T201 - the result
    return 0 if account.keeps_the_laws else 1


if __name__ == "__main__":
    sys.exit(main())
