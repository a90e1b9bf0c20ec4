"""Injects faults into everything that a job and a policy store keep, and counts what becomes of them.

    python -m tests.lies.run --faults 100000 --seed 1

The last line is JSON. The exit status is 1 if a fault was silent or crashed something.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol
from unittest import mock

from tests.lies.exchanges import ExchangeBench
from tests.lies.jobs import WORLDS, JobBench
from tests.lies.outcomes import FAULTS, Found, Tally
from tests.lies.records import RecordBench
from tests.lies.staged import StagedBench
from tests.lies.stores import delta_store, file_store

_SHARES: Final = {"file store": 1_600, "records": 3_000, "staged files": 800, "job of tokens": 500, "job of time": 400}
_SHARE: Final = 200
"""How many faults of a round are injected into each bench: what is cheap gets more of them."""


class Bench(Protocol):
    """Something that is prepared once, and then copied for each fault."""

    name: str

    def fault(self, draw: random.Random) -> Found | None:
        """Inject a drawn fault; `None` if there was nothing to inject it into."""


def benches(seed: str) -> dict[str, Callable[[], Bench]]:
    """Return what prepares each bench, by its name."""
    jobs = {f"job of {world.name}": partial(JobBench, f"{seed}/{world.name}", world) for world in WORLDS}
    others: dict[str, Callable[[str], Bench]] = {
        "exchange": ExchangeBench, "file store": file_store, "delta store": delta_store, "records": RecordBench,
        "staged files": StagedBench,
    }  # fmt: skip
    return {**jobs, **{name: partial(made, f"{seed}/{name}") for name, made in others.items()}}


def run(count: int, seed: int, *, only: Sequence[str] = ()) -> Tally:
    """Inject about so many faults, in rounds of which each prepares the benches anew, and return the counts."""
    tally, number = Tally(), 0
    while tally.faults < count:
        made = benches(f"{seed}/{number}")
        shares = {name: _SHARES.get(name, _SHARE) for name in made if not only or any(each in name for each in only)}
        part = min(1.0, (count - tally.faults) / sum(shares.values()))
        for name, share in shares.items():
            draw = random.Random(f"{seed}/{number}/{name}")
            with mock.patch("uuid.uuid4", partial(_drawn_uuid, draw)):
                bench, most = made[name](), -(-share * part // 1)
                while most > 0:
                    found = bench.fault(draw)
                    if found is not None:
                        tally.add(found)
                        most -= 1
        number += 1
    return tally


def _drawn_uuid(draw: random.Random) -> uuid.UUID:
    return uuid.UUID(int=draw.getrandbits(128), version=4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and print the table and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="a part of the name of the benches to run")
    asked = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    tally = run(asked.faults, asked.seed, only=asked.only)
    for line in tally.table():
        sys.stdout.write(f"{line}\n")
    for key, example in sorted(tally.examples.items()):
        sys.stdout.write(f"{' '.join(key)}: {example}\n")
    outcomes = tally.by_outcome()
    summary: dict[str, int] = {"seed": asked.seed, "faults": tally.faults}
    summary.update(outcomes, cpu_seconds=round(time.process_time() - began))
    sys.stdout.write(json.dumps(summary) + "\n")
    return int(any(outcomes[outcome] for outcome in FAULTS))


if __name__ == "__main__":
    sys.exit(main())
