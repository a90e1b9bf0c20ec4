"""The crash program (`make crash KILLS=n SEED=s`): nothing is lost or doubled, whatever is killed.

The real job runs as a child process and is killed again and again, as `plan` draws it: all of its processes at named
points and at drawn moments, Python's workers, executors. Policies change between a crash and the restart, and in runs
with an even seed the share of the quotas too, for another job wants of them now more, now less. Then the job drains,
and the account is taken from input and output tables alone: one line of JSON, the last of standard output. The exit
status is 0 if every law holds.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from tests.crash.account import Account, revisions, take_account
from tests.crash.job import SINKS
from tests.crash.peer import Peer
from tests.crash.plan import LOCAL, Kill, Life, Writer, draw_lives
from tests.crash.points import OF_A_BATCH_SINK, OF_EVERY_SINK, OF_THE_NATIVE_WRITER, REJECTED_WRITTEN
from tests.crash.workload import AMPLE, REVISIONS, add_files
from tests.recovery.processes import Job, kill_process
from tests.sessions import ROOT

POINTS: Final = {
    "delta": (*OF_A_BATCH_SINK, REJECTED_WRITTEN, *OF_THE_NATIVE_WRITER),
    "delta-alone": (*OF_A_BATCH_SINK, *OF_THE_NATIVE_WRITER),
    "file-sink": OF_EVERY_SINK,
    "parquet": OF_A_BATCH_SINK,
    "function": OF_A_BATCH_SINK[:5],
}
_FILES_AHEAD: Final = 5
_WORDS: Final = {"worker": "pyspark.daemon", "executor": "CoarseGrainedExecutorBackend"}


class Lives:
    """Runs the job from life to life in one directory."""

    def __init__(self, root: Path, sink: str, seed: int) -> None:
        self.root = root
        self.sink = sink
        self._peer = None if seed % 2 else Peer(root)
        self._dice = random.Random(seed)
        self.kills = 0
        self._job: Job | None = None

    def live(self, life: Life) -> None:
        """Run the job, with its losses, until its end."""
        self._change(REVISIONS[life.revision], life.peer_percent)
        for kill in (*life.losses, life.end):
            while not self._done(kill, life):
                self._stop()

    def finish(self) -> None:
        """Run the job until it has drained everything."""
        self._stop()
        self._change(AMPLE, 0)
        self._start(LOCAL, "native").finish()

    def leave(self) -> None:
        """Kill what runs, and let the peer go."""
        self._stop()
        if self._peer is not None:
            self._peer.stop()

    def _change(self, policies: str, peer_percent: int) -> None:
        (self.root / "policies.yaml").write_text(policies)
        if self._peer is not None:
            self._peer.want(policies, peer_percent)

    def _done(self, kill: Kill, life: Life) -> bool:
        """Return whether the kill was made; a job that ended before it, for it had drained, must be started anew."""
        job = (
            self._job
            if self._job is not None and not self._job.ends_within(0)
            else self._start(life.master, life.writer)
        )
        offsets = self.root / "checkpoint" / "offsets"
        if not job.wait_for(offsets / str(_planned(self.root) - 1 + kill.batches_on)):
            return False
        if kill.point is not None:
            (self.root / "arm").write_text(kill.point)
            if not job.wait_for(self.root / "reached"):
                return False
        elif job.ends_within(kill.delay_ms / 1000):
            return False
        if kill.victim == "job":
            self._stop()
        else:
            victims = job.members(_WORDS[kill.victim])
            if not victims:
                return False
            kill_process(self._dice.choice(victims))
            job.is_wounded = True  # it may have been one that the driver cannot do without
        self.kills += 1
        return True

    def _start(self, master: str, writer: Writer) -> Job:
        self._stop()
        for mark in ("arm", "reached"):
            (self.root / mark).unlink(missing_ok=True)
        add_files(self.root, _planned(self.root) + _FILES_AHEAD)
        arguments = [str(self.root), self.sink, "--master", master, "--writer", writer]
        arguments += [] if self._peer is None else ["--shared"]
        self._job = Job("tests.crash.job", arguments, self.root / "job.log")
        return self._job

    def _stop(self) -> None:
        if self._job is not None:
            self._job.kill()
            self._job = None


def _planned(root: Path) -> int:
    """Return how many batches are in the offset log."""
    return sum(path.name.isdigit() for path in (root / "checkpoint" / "offsets").glob("*"))


def crash(root: Path, sink: str, kills: int, seed: int) -> Account:
    """Run the job in `root` with so many kills, let it drain, and recount."""
    root.mkdir(parents=True)
    lives = Lives(root, sink, seed)
    plan = draw_lives(kills, seed, POINTS[sink], len(REVISIONS), OF_THE_NATIVE_WRITER)
    started = time.monotonic()
    try:
        for number, life in enumerate(plan):
            lives.live(life)
            end = life.end.point or "a moment"
            lost = "".join(f", after a {kill.victim}" for kill in life.losses)
            _say(
                f"{time.monotonic() - started:6.0f} s  life {number + 1} of {len(plan)} ({life.writer}) "
                f"ended at {end}{lost}"
            )
        lives.finish()
    finally:
        lives.leave()
    return take_account(root, lives.kills, revisions((*REVISIONS, AMPLE)))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a program's progress


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sink", choices=SINKS, default="delta")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "crash", help="below it, a directory a run")
    asked = parser.parse_args()
    root: Path = asked.out / f"{asked.sink}-{asked.seed}"
    shutil.rmtree(root, ignore_errors=True)
    account = crash(root, asked.sink, asked.kills, asked.seed)
    print(account.to_json(), flush=True)  # noqa: T201 - the result
    return 0 if account.keeps_the_laws else 1


if __name__ == "__main__":
    sys.exit(main())
