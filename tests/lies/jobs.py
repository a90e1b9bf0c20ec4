"""A simulated job whose control directory, state and exchange lie: it is refused, or goes on as if they had not.

A job lives for some batches, and is kept at several *moments*: between two batches, and as it died at a crash point.
Each fault begins with a copy of a moment. What follows it without a fault, its *twin*, is played once. A run that ends
with the same rows in the same places as its twin is right. Of another one the laws are asked, by the tables alone:

- every row that was offered is admitted, rejected or waiting, once;
- rows of a namespace are admitted in their order;
- no window of a scope has more than ``burst + rate * time``, one row and, for processing time, the twin more;
- a batch that was run again was decided the same;
- the jobs that share a quota hold no more than all of it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from spark_throttle.checkpoint.batch_records import CHARGES
from spark_throttle.core.quota import UNLIMITED
from spark_throttle.errors import ThrottleError
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing import SimulatedJob
from spark_throttle.testing.simulation.disk import CRASH_POINTS, Checkpoint
from spark_throttle.testing.simulation.exchange import SimulatedExchange, SimulatedTime
from spark_throttle.testing.simulation.query import SimulatedBatch, Surroundings, costs_nothing
from spark_throttle.testing.simulation.rows import Row
from tests.lies import faults
from tests.lies.faults import Injected, LyingFiles
from tests.lies.outcomes import Found, Outcome, is_refusal, said

Limits = dict[str, tuple[int, int, int]]
"""By the beginning of namespaces' names: messages a second, bytes a second (0 for none) and the burst in seconds."""

STATE: Final = "state"
BATCHES: Final = 9
BATCHES_AFTER: Final = 3
TRIGGER_MS: Final = 1_000
ROW_NS: Final = 40_000_000
_WITHOUT: Final = "without the fault"
_TIMED: Final = "c/"
_TIME_PERCENT: Final = 10


@dataclass(frozen=True, slots=True)
class World:
    """What a job is given."""

    name: str
    policies: dict[str, Any]
    limits: Limits
    namespaces: tuple[str, ...]
    is_timed: bool = False
    is_sharing: bool = False


_GROUP: Final = {"messages_per_second": 4, "burst_seconds": 2}
_BYTES: Final = {"bytes_per_second": 3_000, "burst_seconds": 1}
WORLDS: Final = (
    World(
        "tokens",
        {
            "version": 1,
            "resource_groups": {"gold": {"publish": _GROUP}},
            "tenants": {"a": {"resource_group": "gold"}, "b": {"publish": _BYTES}},
            "namespaces": {"d/x": {"publish": {"messages_per_second": 1, "burst_seconds": 2, "on_excess": "reject"}}},
        },
        {"a/": (4, 0, 2), "b/": (0, 3_000, 1), "d/x": (1, 0, 2)},
        ("a/x", "a/y", "b/x", "d/x", "e/x"),
    ),
    World(
        "time",
        {
            "version": 1,
            "resource_groups": {"gold": {"publish": _GROUP}},
            "tenants": {
                "a": {"resource_group": "gold"},
                "c": {"publish": {"request_percentage": _TIME_PERCENT, "burst_seconds": 2}},
            },
        },
        {"a/": (4, 0, 2)},
        ("a/x", "c/x", "c/y", "e/x"),
        is_timed=True,
    ),
    World(
        "shared",
        {
            "version": 1,
            "resource_groups": {"gold": {"publish": _GROUP}},
            "tenants": {"a": {"resource_group": "gold"}, "b": {"publish": _BYTES}},
        },
        {"a/": (4, 0, 2), "b/": (0, 3_000, 1)},
        ("a/x", "a/y", "b/x", "e/x"),
        is_sharing=True,
    ),
)  # fmt: skip


def kind_of(name: str) -> str:
    """Return the kind of a file of a control directory."""
    folder, _, file = name.partition("/")
    return file.split(".")[1] if folder == "batches" else folder


@dataclass(slots=True)
class Moment:
    """A job that was stopped, or that died."""

    batches: int
    checkpoint: Checkpoint
    writes: list[tuple[str, faults.Content]]
    outside: Surroundings
    now_ms: int
    objects: list[tuple[str, faults.Content]]
    counts: tuple[int, int]
    """The seats and the names that the exchange has drawn."""

    attempts: list[SimulatedBatch]
    twins: dict[bool, _Run] = field(default_factory=dict)


@dataclass(slots=True)
class _Run:
    """What a job did after a moment."""

    job: SimulatedJob
    control: LyingFiles
    objects: LyingFiles
    over_quota: list[str] = field(default_factory=list)
    rows: tuple[list[int], list[int], list[int]] = field(default_factory=lambda: ([], [], []))
    """The numbers of the rows that were admitted, were rejected and wait."""

    reads: frozenset[str] = frozenset()
    """The files that were asked for after the fault."""


@dataclass(slots=True)
class _Holders:
    """Looks, whenever somebody acts in an exchange, at what its members may spend together."""

    run: _Run
    limits: Limits

    def act(self) -> int:
        """Look."""
        exchange = self.run.job.exchange
        assert exchange is not None
        held: Counter[tuple[str, int]] = Counter()
        for member in exchange.members:
            for (_, name), rates in member.leased().items():
                for dimension, rate in enumerate(rates):
                    held[name, dimension] += 0 if rate == UNLIMITED else max(rate, 0)
        for (name, dimension), rate in held.items():
            quota = self.limits["a/" if name == "gold" else "b/"][dimension]
            if quota and rate > quota * 1_000:
                self.run.over_quota.append(f"members hold {rate} of {name} at {exchange.time.now_ms} ms")
        return 10**9


class JobBench:
    """The moments of one job, into which faults are injected."""

    def __init__(self, seed: str, world: World, *, moments: int = 8) -> None:
        self.world = world
        self.name = f"job of {world.name}"
        self._draw = random.Random(seed)
        self._offers = [self._offer() for _ in range(BATCHES + BATCHES_AFTER + 2)]
        self.moments = list(self._prepared(moments))

    def _offer(self) -> list[tuple[str, int]]:
        draw = self._draw
        sizes = {"b/x": (400, 2_500)}
        found = [
            (name, draw.choice(sizes.get(name, (50, 200))))
            for name in self.world.namespaces
            for _ in range(draw.choice([0, 2, 4, 7]))
        ]
        draw.shuffle(found)
        return found

    def _new(self, exchange: SimulatedExchange | None) -> SimulatedJob:
        costs = _times if self.world.is_timed else costs_nothing
        return SimulatedJob(self.world.policies, exchange=exchange, cost_ns=costs, batches_retained=5)

    def _exchange(self, objects: LyingFiles, now_ms: int) -> SimulatedExchange | None:
        if not self.world.is_sharing:
            return None
        settings = ShareSettings(interval_ms=400, lease_ms=4_000)
        return SimulatedExchange(settings, objects, SimulatedTime(now_ms))

    def _prepared(self, moments: int) -> Iterator[Moment]:
        """Let a job live, and yield its moments; some of its batches die once."""
        objects, control = LyingFiles(), LyingFiles()
        job = self._new(self._exchange(objects, 0))
        job.stop()
        job.checkpoint.control = control
        job.restart()
        wanted = sorted(self._draw.sample(range(2, BATCHES), min(moments, BATCHES - 2)))
        for batch in range(BATCHES):
            job.offer(self._offers[batch])
            if batch in wanted and self._draw.random() < 0.6:
                job.crash(at=self._draw.choice(CRASH_POINTS))
            job.trigger(TRIGGER_MS)
            if batch in wanted:
                yield self._moment(job, control, objects, batch + 1)
            if job.is_down:
                job.restart()

    @staticmethod
    def _moment(job: SimulatedJob, control: LyingFiles, objects: LyingFiles, batches: int) -> Moment:
        exchange = job.exchange
        counts = (0, 0) if exchange is None else (exchange.seats, exchange.drawn_members)
        checkpoint = job.checkpoint.copy()
        return Moment(
            batches, checkpoint, list(control.writes), job.outside.copy(), job.steady_ms, list(objects.writes), counts,
            list(job.attempts),
        )  # fmt: skip

    def _begun(self, moment: Moment) -> _Run:
        """Return a job at a moment, which is down."""
        objects = LyingFiles(moment.objects)
        exchange = self._exchange(objects, moment.now_ms)
        job = self._new(None)
        job.stop()
        job.checkpoint = moment.checkpoint.copy()
        job.checkpoint.control = control = LyingFiles(moment.writes)
        job.outside, job.attempts = moment.outside.copy(), list(moment.attempts)
        job.time = SimulatedTime(moment.now_ms)
        run = _Run(job, control, objects)
        if exchange is not None:
            exchange.seats, exchange.drawn_members = moment.counts
            job.exchange, job.is_sharing, job.time = exchange, True, exchange.time
            exchange.time.actors.append(_Holders(run, self.world.limits))
        return run

    def _played(self, run: _Run, moment: Moment, *, from_batch: int, fault: Injected | None = None) -> None:
        """Play the batches that are left, and read what waits then."""
        job = run.job
        for batch in range(from_batch, moment.batches + BATCHES_AFTER):
            job.offer(self._offers[batch])
            job.trigger(TRIGGER_MS)
            if fault is not None and batch == moment.batches + 1:
                fault.arrive(run.control)
                fault.arrive(run.objects)
        run.rows = (
            [row.id for row in job.admitted],
            [each.row.id for each in job.rejected],
            [row.id for row in job.waiting],
        )

    def _until_fault(self, moment: Moment, *, is_alive: bool) -> _Run:
        """Return a job at the place where a fault comes: before it starts, or after its first batch."""
        run = self._begun(moment)
        if is_alive:
            run.job.restart()
            run.job.offer(self._offers[moment.batches])
            run.job.trigger(TRIGGER_MS)
        run.control.reads.clear()
        run.objects.reads.clear()
        return run

    def _go_on(self, run: _Run, moment: Moment, *, is_alive: bool, fault: Injected | None = None) -> None:
        if not is_alive:
            run.job.restart()
        self._played(run, moment, from_batch=moment.batches + is_alive, fault=fault)

    def twin(self, moment: Moment, *, is_alive: bool) -> _Run:
        """Return what follows a moment without a fault."""
        if is_alive not in moment.twins:
            run = self._until_fault(moment, is_alive=is_alive)
            self._go_on(run, moment, is_alive=is_alive)
            run.reads = frozenset(run.control.reads | run.objects.reads)
            problems = list(self.broken(run, moment, run))
            assert not problems, problems
            moment.twins[is_alive] = run
        return moment.twins[is_alive]

    def fault(self, draw: random.Random) -> Found | None:
        """Inject a fault that is drawn, and return what became of it; `None` if the files cannot have it."""
        moment, is_alive = draw.choice(self.moments), draw.random() < 0.3
        twin = self.twin(moment, is_alive=is_alive)
        if draw.random() < 0.08:
            return self._fault_of_state(draw, moment)
        run = self._until_fault(moment, is_alive=is_alive)
        is_shared = self.world.is_sharing and draw.random() < 0.4
        files = run.objects if is_shared else run.control
        file = _drawn_file(draw, files)
        kind = draw.choice(faults.KINDS)
        fault = faults.inject(draw, files, kind, file)
        if fault is None:
            return None
        what = f"{self.name}, " + ("exchange" if is_shared else kind_of(file))
        if kind in faults.MANY_FILES:
            what = f"{self.name}, " + ("exchange" if is_shared else "control")
        if (kind in faults.DAMAGES or kind == "another's content") and file not in twin.reads:
            return Found(what, kind, "unread")
        outcome, detail = self._outcome(run, moment, twin, fault, is_alive=is_alive)
        where = f"{file} after {moment.batches} batches, alive {is_alive}: {detail}"
        return Found(what, kind, outcome, where)

    def _outcome(
        self, run: _Run, moment: Moment, twin: _Run, fault: Injected, *, is_alive: bool
    ) -> tuple[Outcome, str]:
        try:
            self._go_on(run, moment, is_alive=is_alive, fault=fault)
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            names = ("memory:control", "the decider's state", *fault.held, *(n.rpartition("/")[2] for n in fault.held))
            if not is_refusal(error, names):
                return "crashed", said(error)
            return self._after_refusal(run, moment, twin, fault, error)
        if run.rows == twin.rows and not run.over_quota:
            return "right", ""
        problems = list(self.broken(run, moment, twin))
        if not problems:
            return "right", ""
        return weighed(problems, fault), "; ".join(problems)[:600]

    def _after_refusal(
        self, run: _Run, moment: Moment, twin: _Run, fault: Injected, error: Exception
    ) -> tuple[Outcome, str]:
        """Mend what is damaged, go on, and see that the refusal has cost nothing."""
        run.job.stop()
        fault.repair(run.control)
        fault.repair(run.objects)
        offered = len(run.job.outside.source)
        done = next(n for n in range(len(self._offers) + 1) if offered <= sum(map(len, self._offers[:n])))
        try:
            run.job.restart()
            self._played(run, moment, from_batch=done)
        except ThrottleError as again:
            return "refused", f"and again: {said(again)}"
        except Exception as crash:  # noqa: BLE001 - as above
            return "crashed", f"after {said(error)}: {said(crash)}"
        problems = list(self.broken(run, moment, twin))
        after = f"after {said(error)}: {'; '.join(problems)[:600]}"
        return (weighed(problems, fault), after) if problems else ("refused", said(error))

    def _fault_of_state(self, draw: random.Random, moment: Moment) -> Found | None:
        """Damage the bytes of the state that the next batch loads."""
        run = self._begun(moment)
        states = run.job.checkpoint.states
        newest = run.job.checkpoint.committed
        kind, block = draw.choice(list(faults.DAMAGES)), states[newest]
        found = None if block is None else faults.damaged(draw, kind, block)
        if found is None:
            return None
        states[newest] = found
        what = f"{self.name}, {STATE}"
        try:
            self._go_on(run, moment, is_alive=False)
        except Exception as error:  # noqa: BLE001 - as above
            return Found(
                what, kind, "refused" if is_refusal(error, ("the decider's state", "state")) else "crashed", said(error)
            )
        return Found(what, kind, "silent", "a damaged state was taken")

    # ------------------------------------------------------------------------------------------------------ the laws

    def broken(self, run: _Run, moment: Moment, twin: _Run) -> Iterator[str]:
        """Yield the laws that the tables break."""
        admitted, rejected, waiting = run.rows
        offered, found = len(run.job.outside.source), Counter([*admitted, *rejected, *waiting])
        lost = [row for row in range(offered) if row not in found]
        doubled = [row for row, count in found.items() if count > 1]
        if lost:
            yield f"{len(lost)} rows are lost: {lost[:5]}"
        if doubled:
            yield f"{len(doubled)} rows are doubled: {doubled[:5]}"
        newest: dict[Any, int] = {}
        for row in run.job.admitted:
            if newest.get(row.namespace, -1) > row.id:
                yield f"row {row.id} of {row.namespace!r} follows row {newest[row.namespace]}"
            newest[row.namespace] = row.id
        digests: dict[tuple[int, int], str] = {}
        for attempt in run.job.attempts:
            if digests.setdefault((attempt.number, attempt.now_ms), attempt.digest) != attempt.digest:
                yield f"batch {attempt.number} was decided otherwise when it ran again"
        yield from run.over_quota[:1]
        times = times_of(run.job.attempts)
        for name, limit in self.world.limits.items():
            yield from over_limit(name, limit, run.job.admitted, times)
        if self.world.is_timed and run is not twin:
            ours, theirs = (_timed(each) for each in (run, twin))
            for at_ms, count in ours.items():
                most = max((n for ms, n in theirs.items() if ms <= at_ms), default=0)
                if count > most + 1:
                    yield f"at {at_ms} ms {count} rows of {_TIMED} have left, {most} {_WITHOUT}"
                    break


def weighed(problems: list[str], fault: Injected) -> Outcome:
    """Return whether the documentation tells of what is broken: what a batch charged was not there to be read."""
    gone = [name for name, holds in fault.holds.items() if holds is None]
    gone += [fault.file] if fault.kind == "listed without" else []
    is_told = all(_WITHOUT in problem for problem in problems) and any(kind_of(name) == CHARGES for name in gone)
    return "told" if is_told else "silent"


def _times(rows: Sequence[Row]) -> Mapping[str, int]:
    return {name: n * ROW_NS for name, n in Counter(row.namespace for row in rows).items() if isinstance(name, str)}


def is_of(row: Row, beginning: str) -> bool:
    """Return whether a row's namespace begins with something."""
    return isinstance(row.namespace, str) and row.namespace.startswith(beginning)


def _timed(run: _Run) -> dict[int, int]:
    """Return how many rows with a quota on time had left at the time of each batch."""
    times, total, found = times_of(run.job.attempts), 0, dict[int, int]()
    for row in run.job.admitted:
        if is_of(row, _TIMED):
            total += 1
            found[times[row.id]] = total
    return found


def _drawn_file(draw: random.Random, files: LyingFiles) -> str:
    """Draw a kind of file, and then a file of it; the newest more often than the others."""
    by_kind: dict[str, list[str]] = {}
    for name in sorted(dict.keys(files)):
        by_kind.setdefault(kind_of(name), []).append(name)
    if not by_kind:
        return ""
    names = by_kind[draw.choice(sorted(by_kind))]
    return names[-1] if draw.random() < 0.6 else draw.choice(names)


def times_of(attempts: Sequence[SimulatedBatch]) -> dict[int, int]:
    """Return the time of the batch in which each row was admitted."""
    return {row.id: attempt.steady_ms for attempt in attempts for row in attempt.admitted}


def over_limit(
    beginning: str, limit: tuple[int, int, int], rows: Sequence[Row], times: Mapping[int, int]
) -> Iterator[str]:
    """Yield the first window in which a scope admitted more than its limit."""
    messages, size, burst_seconds = limit
    mine = [row for row in rows if is_of(row, beginning)]
    for rate, amounts in ((messages, [1] * len(mine)), (size, [row.size_bytes or 0 for row in mine])):
        if not rate or not mine:
            continue
        by_time: Counter[int] = Counter()
        for row, amount in zip(mine, amounts, strict=True):
            by_time[times[row.id]] += amount
        at = sorted(by_time)
        for first, begin in enumerate(at):
            total = 0
            for end in at[first:]:
                total += by_time[end]
                most = rate * burst_seconds + rate * (end - begin) / 1000 + max(amounts)
                if total > most:
                    yield f"{beginning} admitted {total} from {begin} to {end} ms, and may {most:.0f}"
                    return
