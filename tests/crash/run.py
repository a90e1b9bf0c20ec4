"""The crash program (`make crash KILLS=n SEED=s`): nothing is lost or doubled, whatever is killed.

The real job runs in child processes and is killed again and again, as `plan` draws it: all of them or the driver's
Python alone, at named points and at drawn moments; Python's workers; executors. Or it is frozen, and wakes up beside
the run that has taken over. Policies change between a crash and the
restart and while the job runs, in every way that they can, and in runs with an even seed the share of the quotas too,
for another job wants of them now more, now less. Among the rows are such as cannot be taken. Now and then the
checkpoint is put back, with its sinks or as a refused start asks for. Then the job drains, and the account is taken
from input and output tables and Spark's logs alone: one line of JSON, the last of standard output. The exit status is 0
if every law holds.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.crash.account import Account, Evidence, RunFacts, take_account
from tests.crash.contracts import Promises
from tests.crash.destination import DRAINING, PACED, PUSHES_BACK, Destination, with_destination
from tests.crash.iceberg import ICEBERG
from tests.crash.job import (
    BY_REFERENCES,
    CONTRACTS,
    COSTS,
    DELTA,
    DELTA_CATALOG,
    DELTA_PARTITIONED,
    FILE_SINK,
    FILES,
    FUNCTION,
    MESSAGES,
    PARQUET,
    REFERENCES_DELTA,
    SINKS,
    SOURCES,
    TIME,
    TO_DELTA,
    drain,
)
from tests.crash.jvm import Jvm
from tests.crash.merge import MERGE
from tests.crash.peer import Peer, exchange_of
from tests.crash.plan import LOCAL, Kill, Life, PutBack, draw_lives
from tests.crash.points import (
    EXTENT_HALF_WRITTEN,
    FILES_CUT,
    NOT_OF_EVERY_BATCH,
    OF_A_BATCH_SINK,
    OF_A_DECIDED_STREAM,
    OF_A_PACED_SINK,
    OF_AN_EPOCH,
    OF_EVERY_SINK,
    OF_STAGED_ROWS,
    REJECTED_WRITTEN,
)
from tests.crash.policies import AMPLE, text_of, with_time, with_units
from tests.crash.put_back import PUT_BACKS, Copy, newest_planned
from tests.crash.sightings import note
from tests.crash.tables import COSTS_TOLD
from tests.crash.topic import KAFKA, Topic
from tests.crash.workload import add_commits, add_files
from tests.crash.zones import know_zones, make_zones
from tests.recovery.processes import Job, kill_process
from tests.sessions import ICEBERG as ICEBERG_JARS
from tests.sessions import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS: Final = {
    DELTA: (*OF_A_BATCH_SINK, REJECTED_WRITTEN),
    DELTA_CATALOG: OF_A_BATCH_SINK,
    DELTA_PARTITIONED: OF_A_BATCH_SINK,
    FILE_SINK: OF_A_DECIDED_STREAM,
    PARQUET: OF_A_BATCH_SINK,
    ICEBERG: (*OF_A_BATCH_SINK, REJECTED_WRITTEN),
    MERGE: OF_A_BATCH_SINK,
    KAFKA: OF_A_BATCH_SINK,
    FUNCTION: OF_EVERY_SINK,
    PACED: OF_A_PACED_SINK,
}
_FILES_AHEAD: Final = 3
_MOST_REFUSALS: Final = 12
_MOST_TRIES: Final = 10
_TRIES_OF_SOME_BATCHES: Final = 3
"""So often a job may drain and not come by a point that not every batch has."""

_PATIENCE_SECONDS: Final = 120
_MOST_SECONDS_TO_DRAIN: Final = 900
_WORDS: Final = {"worker": "pyspark.daemon", "executor": "CoarseGrainedExecutorBackend"}


class Lives:
    """Runs the job from life to life in one directory."""

    def __init__(
        self,
        root: Path,
        sink: str,
        seed: int,
        source: str,
        session: SparkSession | None,
        quotas: str,
        *,
        is_brief: bool,
    ) -> None:
        self.root = root
        self.quotas = quotas
        self.sink = sink
        self.source = source
        self._session = session
        self._is_brief = is_brief
        self._destination = Destination(root, seed) if sink == PACED else None
        self._topic = Topic(root, is_sink=sink == KAFKA) if source == KAFKA else None
        # A job whose quotas follow what a destination says does not share them.
        self._peer = None if seed % 2 or self._destination else Peer(exchange_of(root))
        if quotas == COSTS:
            (root / COSTS_TOLD).touch()
        self._promises = Promises(seed)
        if quotas == CONTRACTS:
            make_zones(root)
            know_zones(root)
        if sink == FUNCTION and seed % 2:
            (root / PUSHES_BACK).touch()
        self._dice = random.Random(seed)
        self._job: Job | None = None
        self._jvm: Jvm | None = None
        self._frozen: tuple[Job, Jvm] | None = None
        self._copy: Copy | None = None
        self._policies = 0
        self._is_wounded = False
        """Whether Spark's JVM has lost a process, so that the next run in it may end with an error."""

        self.kills = 0
        self.put_back = 0
        self.refused = 0

    def live(self, life: Life) -> None:
        """Run the job, with its losses, until its end."""
        self._end_python()
        if life.is_kept or life.put_back is not None:
            self._end_all()  # what lies there must not change
        is_put_back = life.put_back is not None and self._copy is not None
        must_be_refused = is_put_back and self._put_back(life.put_back)
        if life.is_kept:
            self._copy = Copy.make(self.root)
            self._note("kept")
        first, *others = life.policies
        self._change(first, life.peer_percent)
        if is_put_back:
            self._start_after(life, must_be_refused=must_be_refused)
        for kill in (*life.losses, life.end):
            for tries in range(_MOST_TRIES):
                is_given_up = tries == _TRIES_OF_SOME_BATCHES and kill.point in NOT_OF_EVERY_BATCH
                kill = replace(kill, point=None) if is_given_up else kill  # noqa: PLW2901 - a moment in its place
                if self._done(kill, life, others):
                    break
                self._end_python()
            else:
                raise AssertionError(f"the job never comes to {kill}: {(self.root / 'job.log').read_text()[-4000:]}")

    def finish(self) -> None:
        """Run the job until it has drained everything."""
        self._end_python()
        self._change(text_of(AMPLE), 0)
        (self.root / DRAINING).touch()
        if self._destination is not None:
            self._destination.take_all()
        for _ in range(2 if self.quotas == COSTS else 1):  # what a run's rows cost, the next one is told
            self._drain()
            self._note("end")
        if self._topic is not None:
            self._topic.keep()
        if self._destination is not None:
            _say(f"the destination refused {self._destination.refused} calls")
            self._destination.keep(self.root)

    def _drain(self) -> None:
        """Run the job until it ends by itself."""
        if self._session is not None:
            self._end_all()
            self._note("start")
            drain(
                self._session,
                self.root,
                self.sink,
                source=self.source,
                is_shared=self._peer is not None,
                quotas=self.quotas,
            )
        else:
            self._start(LOCAL, 0).finish(_MOST_SECONDS_TO_DRAIN)

    def leave(self) -> None:
        """Kill what runs, and let the peer go."""
        for each in self._frozen or ():
            each.kill()
        self._end_all()
        if self._peer is not None:
            self._peer.stop()
        if self._destination is not None:
            self._destination.stop()
        if self._topic is not None:
            self._topic.stop()

    def _change(self, policies: str, peer_percent: int) -> None:
        """Put policies in force, in one step, for the job may be reading them; the account is told."""
        (self.root / "policies").mkdir(exist_ok=True)
        known = self.root / "policies" / f"{self._policies:04}.yaml"
        self._policies += 1
        policies = with_time(policies) if self.quotas == TIME else policies
        policies = with_units(policies) if self.quotas == COSTS else policies
        policies = self._promises.with_promises(policies) if self.quotas == CONTRACTS else policies
        pushes_back = self._destination is not None or (self.root / PUSHES_BACK).exists()
        policies = with_destination(policies) if pushes_back else policies
        known.write_text(policies)
        shutil.copy(known, self.root / "policies.tmp")
        (self.root / "policies.tmp").rename(self.root / "policies.yaml")
        if self._peer is not None:
            self._peer.want(policies, peer_percent)

    def _put_back(self, how: PutBack | None) -> bool:
        assert self._copy is not None
        assert how is not None
        self.put_back += 1
        self._note("stopped")
        must_be_refused = self._copy.put_back(how)
        self._note(f"put back {how}" if (self._copy.place / "checkpoint").exists() else "put back nothing")
        return must_be_refused

    def _note(self, event: str) -> None:
        """Note what lies there, for a history of which the model of batches allows each step or does not."""
        # The model's sinks have transactions, the dead letters too; and it knows of no batch that brings costs alone.
        if self.sink == DELTA and self.quotas != COSTS:
            note(self.root, event)

    def _start_after(self, life: Life, *, must_be_refused: bool) -> None:
        """Start the job where its checkpoint was put back; where it is refused, do what the error says."""
        assert self._copy is not None
        error = ""
        for attempt in range(_MOST_REFUSALS):
            logged = (self.root / "job.log").stat().st_size
            job = self._start(life.master, life.batches)
            is_running = job.goes_on_to(self.root / "checkpoint" / "offsets" / str(newest_planned(self.root) + 1))
            error = (self.root / "job.log").read_bytes()[logged:].decode(errors="replace")
            if is_running or job.process.returncode == 0:
                assert not must_be_refused, f"a checkpoint that was put back ({life.put_back}) was taken"
                return
            assert "CheckpointMismatchError" in error, error[-4000:]
            assert life.put_back != "copied", error[-4000:]
            self.refused += 1
            must_be_refused = False
            self._end_all()
            self._copy.follow_remedy(error, is_first=attempt == 0)
            self._note("put back remedied")
        raise AssertionError(f"refused again and again: {error[-4000:]}")

    def _done(self, kill: Kill, life: Life, policies: list[str]) -> bool:
        """Return whether the kill was made; a job that ended before it, for it had drained, must be started anew.

        On the way to it the first of `policies` comes into force, and is taken from them.
        """
        job = (
            self._job
            if self._job is not None and not self._job.ends_within(0)
            else self._start(life.master, life.batches)
        )
        offsets, planned = self.root / "checkpoint" / "offsets", newest_planned(self.root)
        if not job.wait_for(offsets / str(planned + (kill.batches_on + 1) // 2)):
            return False
        self._thaw()
        if policies and kill.point not in OF_AN_EPOCH:
            self._change(policies.pop(0), life.peer_percent)
        if not job.wait_for(offsets / str(planned + kill.batches_on)):
            return False
        if kill.point is not None:
            (self.root / "arm").write_text(kill.point)
            if policies and kill.point in OF_AN_EPOCH:
                self._change(policies.pop(0), life.peer_percent)
            if not job.comes_to(self.root / "reached", _PATIENCE_SECONDS) and (
                kill.point not in NOT_OF_EVERY_BATCH or job.ends_within(0)
            ):
                return False  # all that is left waits for tokens; not every batch writes such a file
        elif job.ends_within(kill.delay_ms / 1000):
            return False
        if not self._lose(kill, job):
            return False
        self.kills += 1
        return True

    def _lose(self, kill: Kill, job: Job) -> bool:
        """Return whether there was a victim, and it is lost."""
        assert self._jvm is not None
        if kill.victim == "job":
            self._end_all()
        elif kill.victim == "frozen":
            job.signal(signal.SIGSTOP)
            self._jvm.signal(signal.SIGSTOP)
            self._frozen, self._job, self._jvm = (job, self._jvm), None, None
            self._note("sleeps")
        elif kill.victim == "kernel":
            if (self.root / "reached").exists():
                kill_process(int((self.root / "reached").read_text()))
                job.is_wounded = True  # it may be a worker
            self._end_python()
        else:
            victims = self._jvm.members(_WORDS[kill.victim])
            if not victims:
                return False
            kill_process(self._dice.choice(victims))
            job.is_wounded = True  # it may have been one that the driver cannot do without
        return True

    def _start(self, master: str, batches: int) -> Job:
        """Start the job, with files for so many batches and some more."""
        self._end_python()
        for mark in ("arm", "reached"):
            (self.root / mark).unlink(missing_ok=True)
        if batches:
            upto = newest_planned(self.root) + 1 + batches + _FILES_AHEAD
            if self._topic is not None:
                self._topic.add_files(upto)
            elif self.source == REFERENCES_DELTA:
                add_commits(self.root, upto)
            else:
                add_files(self.root, upto)
        if self._jvm is not None and self._jvm.master != master:
            self._end_all()
        self._note("start")
        if self._jvm is None:
            self._jvm = Jvm(self.root, self.source, master, is_brief=self._is_brief)
        arguments = [str(self.root), self.sink, "--source", self.source, "--quotas", self.quotas]
        arguments += [] if self._peer is None else ["--shared"]
        self._job = Job("tests.crash.job", arguments, self.root / "job.log")
        self._job.is_wounded = self._is_wounded
        return self._job

    def _thaw(self) -> None:
        """Let a frozen job go on, beside the run that has taken over from it: it ends by itself."""
        if self._frozen is None:
            return
        (job, jvm), self._frozen = self._frozen, None
        for each in (jvm, job):
            each.signal(signal.SIGCONT)
        self._note("wakes")
        ended = job.ends_within(_PATIENCE_SECONDS)
        status = job.process.poll()
        self._note("woke")
        for each in (job, jvm):
            each.kill()
        assert ended, f"a job that was taken over goes on:\n{job.tail()}"
        assert status, f"a job that was taken over ended well:\n{job.tail()}"

    def _end_python(self) -> None:
        """Kill the driver's Python; Spark's JVM lives on, unless it has lost what it cannot do without."""
        if self._job is not None:
            self._is_wounded = self._job.is_wounded
            is_broken = self._is_wounded and self._job.ends_within(0)
            self._job.kill()
            self._job = None
            if is_broken:
                self._end_all()

    def _end_all(self) -> None:
        if self._jvm is not None:
            self._jvm.kill()
            self._jvm = None
        self._end_python()
        self._is_wounded = False


def points_of(sink: str, source: str) -> tuple[str, ...]:
    """Return the points that a job comes by."""
    if source in BY_REFERENCES and sink not in TO_DELTA:
        return (*POINTS[sink], EXTENT_HALF_WRITTEN, FILES_CUT)
    return (*POINTS[sink], *OF_STAGED_ROWS)


def of_one_jvm(life: Life) -> Life:
    """Return a life that kills Python alone: in the JVM lives the catalog that commits."""
    losses = tuple(replace(kill, victim="worker") for kill in life.losses)
    return replace(life, master=LOCAL, losses=losses, end=replace(life.end, victim="kernel"), is_kept=False)


def frozen_in(life: Life) -> Life:
    """Return a life that ends as the job is frozen, and goes on beside the next."""
    end = replace(life.end, victim="frozen")
    return replace(life, master=LOCAL, losses=(), end=end, is_kept=False, put_back=None)


def crash(
    root: Path,
    sink: str,
    kills: int,
    seed: int,
    source: str = FILES,
    session: SparkSession | None = None,
    quotas: str = MESSAGES,
    *,
    is_brief: bool = True,
    is_frozen: bool = False,
) -> Account:
    """Run the job in `root` with so many kills, let it drain, and recount.

    With a `session` it drains in that one. In a brief run lives cost as little CPU time as they can. If `is_frozen`,
    the job is only ever frozen, in every life but the last.
    """
    root.mkdir(parents=True)
    lives = Lives(root, sink, seed, source, session, quotas, is_brief=is_brief)
    may_freeze = sink in (*TO_DELTA, ICEBERG, MERGE, FUNCTION)
    put_backs = () if quotas == COSTS else PUT_BACKS[sink]  # a table that is put back is no stream that goes on
    plan = draw_lives(kills, seed, points_of(sink, source), put_backs, may_freeze=may_freeze)
    plan = [*map(frozen_in, plan[:-1]), plan[-1]] if is_frozen else plan
    plan = [of_one_jvm(life) for life in plan] if sink == DELTA_CATALOG else plan
    started = time.monotonic()
    try:
        for number, life in enumerate(plan):
            lives.live(life)
            end = life.end.point or "a moment"
            lost = "".join(f", after a {kill.victim}" for kill in life.losses)
            begun = "" if life.put_back is None else f" began put back ({life.put_back}),"
            _say(f"{time.monotonic() - started:6.0f} s  life {number + 1} of {len(plan)}{begun} ended at {end}{lost}")
        lives.finish()
    finally:
        lives.leave()
    _say(f"{time.monotonic() - started:6.0f} s  drained")
    return take_account(Evidence.read(root), RunFacts(lives.kills, lives.put_back, lives.refused))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - a program's progress


def main() -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sink", choices=SINKS, default=DELTA)
    parser.add_argument("--source", choices=SOURCES, default=FILES)
    parser.add_argument(
        "--quotas", choices=(MESSAGES, TIME, COSTS, CONTRACTS), default=MESSAGES, help="what they limit"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "crash", help="below it, a directory a run")
    parser.add_argument("--brief", action="store_true", help="let a life cost as little CPU time as it can")
    parser.add_argument("--frozen", action="store_true", help="freeze the job instead, beside the next run")
    asked = parser.parse_args()
    if asked.sink == KAFKA and asked.source != KAFKA:
        parser.error("a job that writes to a topic reads one: --source kafka")
    if asked.quotas == COSTS and (asked.sink, asked.source) != (DELTA, FILES):
        parser.error("late costs are told by the sink's table, of rows that come in files: --sink delta")
    if asked.sink == ICEBERG and not ICEBERG_JARS:
        parser.error(
            "Iceberg has a runtime for Spark 4.1 alone: run `make versions ARGS=4.1.4`, and then this with "
            "TESTS_DELTA= TESTS_ICEBERG=iceberg-4.1 build/versions/4.1.4/bin/python"
        )
    root: Path = asked.out / f"{asked.source}-{asked.sink}-{asked.seed}"
    shutil.rmtree(root, ignore_errors=True)
    account = crash(
        root,
        asked.sink,
        asked.kills,
        asked.seed,
        asked.source,
        quotas=asked.quotas,
        is_brief=asked.brief,
        is_frozen=asked.frozen,
    )
    _say(account.verdict)
    print(account.to_json(source=asked.source, sink=asked.sink, seed=asked.seed), flush=True)  # noqa: T201 - the result
    return 0 if account.keeps_the_laws else 1


if __name__ == "__main__":
    sys.exit(main())
