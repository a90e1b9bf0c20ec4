"""The life of a job on a cluster, its files on an object store: measured while all is calm, then killed many times.

What is killed comes back at once: executors by Spark, workers, the master and the driver by the bench, as a supervisor
would. The driver is also started again where it ended by itself, because the store was out of reach for too long.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.cluster.cluster import Cluster
from tests.cluster.faults import CALM, Faults
from tests.cluster.job import EXCHANGE
from tests.cluster.plan import Kill
from tests.cluster.requests import between
from tests.cluster.store import Store
from tests.crash.peer import Peer
from tests.crash.policies import AMPLE, draw_policies, text_of
from tests.crash.workload import add_files
from tests.recovery.processes import Job, cpu_seconds_of

_FILES_AHEAD: Final = 6
_FIRST_MEASURED: Final = 3
"""Batches before it also pay for the start."""

_MOST_TRIES: Final = 10
_PATIENCE_SECONDS: Final = 60
"""For a point; one that some batches do not come by may not be reached in time."""

_BATCH_SECONDS: Final = 600
_DRAIN_SECONDS: Final = 1_800
_LOOK_SECONDS: Final = 0.2
_CHANGED: Final = 0.5
"""Part of the kills on the way to which policies change."""

_PEER_PERCENTS: Final = (0, 20, 60, 200)


@dataclass(frozen=True, slots=True)
class Calm:
    """What some batches cost while all is calm."""

    batches: int
    seconds: float
    cpu_seconds: float
    """Of the driver, the workers and all that they started; the store's are left out."""

    counts: dict[str, int]
    """Requests to the store, by place and kind."""


@dataclass(slots=True)
class Diary:
    """What happened, and when, in seconds since the beginning."""

    batches: list[tuple[float, int]] = field(default_factory=list)
    """When a batch was first seen to be planned."""

    kills: list[tuple[float, str, str | None]] = field(default_factory=list)
    """Victims, and the points at which the job stood."""

    outages: list[tuple[float, float]] = field(default_factory=list)
    ends: list[tuple[float, str]] = field(default_factory=list)
    """Where the job ended by itself before it had drained, and its last words."""


class Bench:
    """Runs the job from kill to kill."""

    def __init__(self, root: Path, seed: int, store: Store, cluster: Cluster) -> None:
        self.diary = Diary()
        self._root, self._store, self._cluster = root, store, cluster
        self._dice = random.Random(seed)
        self._began = time.monotonic()
        self._policies = draw_policies(self._dice)
        self._revisions = 0
        self._job: Job | None = None
        self._peer = Peer(EXCHANGE)
        self._change(next(self._policies))

    def measure(self, batches: int, weather: Faults = CALM, *, is_throttled: bool = True) -> Calm:
        """Run so many batches of the job as users have it, or of that job without a throttle, while nothing happens."""
        self._store.set_faults(weather)
        self._start(_FIRST_MEASURED + batches + 2, is_plain=True, is_throttled=is_throttled)
        assert self._comes_to_batch(_FIRST_MEASURED), self._tail()
        before, used, began = self._store.counts(), self._cpu_seconds(), time.monotonic()
        assert self._comes_to_batch(_FIRST_MEASURED + batches), self._tail()
        seconds, used = time.monotonic() - began, self._cpu_seconds() - used
        found = Calm(batches, seconds, used, between(before, self._store.counts()))
        self._note_end()
        return found

    def make(self, kill: Kill) -> None:
        """Run the job to a kill, and make it."""
        for _ in range(_MOST_TRIES):
            if self._is_made(kill):
                return
            self._disarm()
            self._note_end()
        raise AssertionError(f"the job never comes to {kill}: {self._tail()}")

    def finish(self) -> None:
        """Let the job drain while all is calm."""
        self._store.set_faults(CALM)
        self._change(text_of(AMPLE), 0)
        if self._job is not None and not self._job.ends_within(_DRAIN_SECONDS):
            raise AssertionError(f"the job does not drain: {self._tail()}")
        has_drained = self._job is not None and self._job.process.returncode == 0
        self._note_end()
        if not has_drained:
            self._start(0).finish(_DRAIN_SECONDS)
            self._job = None

    def leave(self) -> None:
        """Kill what runs, and let the peer go."""
        if self._job is not None:
            self._job.kill()
        self._peer.stop()

    def _is_made(self, kill: Kill) -> bool:
        self._store.set_faults(kill.weather)
        job = self._job if self._job is not None and not self._job.ends_within(0) else self._start(_FILES_AHEAD)
        planned = self._newest()
        if self._dice.random() < _CHANGED:
            self._change(next(self._policies), self._dice.choice(_PEER_PERCENTS))
        if not self._comes_to_batch(planned + kill.batches_on):
            return False
        pid = None
        if kill.point is None:
            if job.ends_within(kill.delay_ms / 1000):
                return False
        else:
            (self._root / "arm").write_text(kill.point)
            if job.comes_to(self._root / "reached", _PATIENCE_SECONDS):
                pid = int((self._root / "reached").read_text())
            elif job.ends_within(0):
                return False
        if not self._kill(kill, pid):
            return False
        self.diary.kills.append((self._now(), kill.victim, kill.point if pid is not None else None))
        self._disarm()
        if kill.outage_seconds:
            began = self._now()
            self._store.go_out(is_silent=kill.is_silent)
            _wait(kill.outage_seconds)
            self._store.set_faults(kill.weather)
            self.diary.outages.append((began, self._now()))
        return True

    def _kill(self, kill: Kill, pid: int | None) -> bool:
        """Kill the victim on which the job stands, or a drawn one; return whether there was one."""
        drawn = self._dice.randrange(1 << 16)
        if kill.victim == "driver":
            assert self._job is not None
            self._job.kill()
            self._job = None
        elif kill.victim == "master":
            self._cluster.kill_master()
        elif kill.victim == "worker":
            self._cluster.kill_worker(pid, drawn)
        else:
            return self._cluster.kill_executor(pid, drawn)
        return True

    def _cpu_seconds(self) -> float:
        assert self._job is not None
        return self._cluster.cpu_seconds() + cpu_seconds_of(self._job.process.pid)

    def _start(self, files_ahead: int, *, is_plain: bool = False, is_throttled: bool = True) -> Job:
        """Start the job, with so many files that it has not read yet."""
        self._disarm()
        if files_ahead:
            add_files(self._root, self._newest() + 1 + files_ahead)
        arguments = [str(self._root), "--master", self._cluster.url, "--shared"]
        arguments += ["--plain"] if is_plain else []
        arguments += [] if is_throttled else ["--unthrottled"]
        self._job = Job("tests.cluster.job", arguments, self._root / "job.log")
        self._job.is_wounded = True  # it may end where the store is out of reach
        return self._job

    def _note_end(self) -> None:
        """Note how the job ended, if it did, and see that nothing of it is left."""
        if self._job is None:
            return
        if self._job.ends_within(0) and self._job.process.returncode != 0:
            self.diary.ends.append((self._now(), _last_error(self._tail())))
            say(f"{self._now():6.0f} s  the job ended: {self.diary.ends[-1][1]}")
        self._job.kill()
        self._job = None

    def _change(self, policies: str, peer_percent: int = 0) -> None:
        """Put policies in force; the account is told."""
        (self._root / "policies").mkdir(parents=True, exist_ok=True)
        (self._root / "policies" / f"{self._revisions:04}.yaml").write_text(policies)
        self._revisions += 1
        self._store.write("policies.yaml", policies.encode())
        self._peer.want(policies, peer_percent)

    def _comes_to_batch(self, number: int) -> bool:
        """Return whether a batch is planned before the job ends."""
        assert self._job is not None
        deadline = time.monotonic() + _BATCH_SECONDS
        while (newest := self._newest()) < number:
            if self._job.ends_within(_LOOK_SECONDS):
                return False
            assert time.monotonic() < deadline, f"batch {newest} is still the newest: {self._tail()}"
        return True

    def _newest(self) -> int:
        """Return the newest batch in the offset log, -1 for none."""
        newest = max((int(name) for name in self._store.names("checkpoint/offsets") if name.isdigit()), default=-1)
        if newest >= 0 and (not self.diary.batches or self.diary.batches[-1][1] < newest):
            self.diary.batches.append((self._now(), newest))
        return newest

    def _disarm(self) -> None:
        for mark in ("arm", "reached"):
            (self._root / mark).unlink(missing_ok=True)

    def _now(self) -> float:
        return round(time.monotonic() - self._began, 1)

    def _tail(self) -> str:
        log = self._root / "job.log"
        return log.read_text(errors="replace")[-6000:] if log.exists() else ""


def say(text: str) -> None:
    """Say on standard error how it goes."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a program's progress


def _wait(seconds: float) -> None:
    time.sleep(seconds)  # noqa: TID251 - an outage lasts


def _last_error(log: str) -> str:
    """Return the last line that names an error."""
    return next((line[:300] for line in _backwards(log) if "Error" in line or "Exception" in line), log[-300:])


def _backwards(text: str) -> Iterator[str]:
    for line in reversed(text.splitlines()):
        if not line.startswith(("\t", " ")):
            yield line
