"""Jobs that share quotas, simulated: clocks differ, jobs die and sleep, reports are late, lost or repeated."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from spark_throttle.core.arithmetic.rate_codes import decode, encode
from spark_throttle.sharing.division import OtherSeats
from spark_throttle.sharing.peers import Update, Visit
from spark_throttle.sharing.report import Measurement, ShareReport
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.sharing import Sharing

SETTINGS = ShareSettings(interval_ms=1_000, lease_ms=10_000, report_every=10)
GOLD, SILVER = 11, 22
BUDGET = 97
"""What the jobs together may use in each window."""

WINDOW_MS = 30_000
FIRST_WINDOW = 1_000
"""The scope of the first window; that of each later one is the next number."""

CLOCKS_MS = (-(2**60), -(10**9), 0, 0, 0, 2**60)
"""What a steady clock may say at first."""

_SLOTS = 16


def measured(demands: dict[int, int], quota: int = 1_000_000) -> Measurement:
    """Return what a job wants, as rates of messages, of scopes that all have one quota; bytes are not limited."""
    ids = np.array(sorted(demands), dtype=np.int64)
    wanted = np.array([[demands[each], 0] for each in ids.tolist()], dtype=np.int64).reshape(-1, 2)
    quotas = np.array([[quota, -1]] * len(ids), dtype=np.int64).reshape(-1, 2)
    rows = np.flatnonzero(wanted[:, 0] > 0)
    return Measurement(ids, quotas, np.minimum(wanted, quota), rows, wanted[rows], np.ones(len(rows), dtype=np.int64))


def of_budgets(asks: dict[int, int], used: dict[int, int], known: dict[int, int]) -> Measurement:
    """Return what a job wants of windows of a budget, what this run used, and what it knows of earlier runs."""
    ids = np.array(sorted(asks), dtype=np.int64)
    wanted = np.array([[asks[each], 0] for each in ids.tolist()], dtype=np.int64).reshape(-1, 2)
    usage = np.array([[used.get(each, 0), known.get(each, 0)] for each in ids.tolist()], dtype=np.int64).reshape(-1, 2)
    budgets = np.array([[BUDGET, -1]] * len(ids), dtype=np.int64).reshape(-1, 2)
    rows, period = np.arange(len(ids)), np.ones(len(ids), dtype=np.uint8)
    return Measurement(ids, budgets, usage, rows, wanted, np.ones(len(ids), dtype=np.int64), period)


class GreedySharing(Sharing):
    """Leases of a job that claims at random: the quota must not depend on what anybody wants."""

    greed: random.Random | None = None

    def _divide(self, others: OtherSeats) -> None:
        super()._divide(others)
        if self.greed is not None and len(self._own.ids):
            part = self.greed.choice([0, 1, 2, 5, 9, 10])
            wanted = np.where(self._own.quota < 0, 0, self._own.quota * part // 10)
            wanted = np.maximum(np.where(self._is_leaving[:, None], 0, wanted), self._taken())
            self._target_micro_per_ms = decode(encode(wanted))


@dataclass
class Store:
    """Registers, with all that was ever in them."""

    history: dict[str, list[tuple[int, ShareReport]]] = field(default_factory=lambda: defaultdict(list))
    """The reports of each member, of all its runs, in the order of their writes."""

    deleted: list[tuple[int, str | None]] = field(default_factory=list)
    """When which member's registers were deleted; `None` is all members'."""

    def write(self, at_ms: int, report: ShareReport) -> None:
        self.history[report.member].append((at_ms, report))

    def delete(self, at_ms: int, member: str | None = None) -> None:
        self.deleted.append((at_ms, member))

    def read(self, as_of_ms: int) -> dict[str, ShareReport]:
        """Return the registers: the one of a member's last run under its name."""
        found: dict[str, ShareReport] = {}
        for member, versions in self.history.items():
            gone_ms = max(
                (at_ms for at_ms, who in self.deleted if who in (None, member) and at_ms <= as_of_ms), default=None
            )
            runs: dict[int, ShareReport] = {}
            for at_ms, report in versions:
                if at_ms <= as_of_ms and (gone_ms is None or at_ms > gone_ms):
                    runs[report.mark.run] = report
            for report in sorted(runs.values(), key=lambda each: each.mark, reverse=True):
                found[member if member not in found else f"{member}.{report.mark.run:x}"] = report
        return found


@dataclass
class SimulatedJob:
    """One job: its machine's clock, its leases, and what its last epoch holds."""

    member: str
    clock_offset_ms: int
    clock_ppm: int = 0
    incarnation: int = 1
    is_alive: bool = True
    demands: dict[int, int] = field(default_factory=dict)
    quota: int = 1_000_000
    sharing: Sharing = field(init=False)
    pinned: dict[int, int] = field(default_factory=dict)
    next_visit_ms: int = 0
    next_trigger_ms: int = 0
    settings: ShareSettings = SETTINGS
    greed: random.Random | None = None
    """Claims at random, if given."""

    ahead_ms: int | None = None
    """How far its calendar is ahead, by which windows of the budget begin; `None` if it shares none."""

    uses_all: bool = False
    """Whether it uses at once all that it may use of the budget."""

    known: dict[int, int] = field(default_factory=dict)
    """By window: what its checkpoint says that its earlier runs used."""

    spent: dict[int, int] = field(default_factory=dict)
    """By window: what this run used."""

    limit: dict[int, int] = field(default_factory=dict)
    """By window: what it may use in this epoch."""

    runs: random.Random = field(init=False)
    spends: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.runs = random.Random(f"{self.member} {self.clock_offset_ms}")
        self.spends = random.Random(f"{self.member} spends")
        self.start()

    def start(self) -> None:
        sharing = GreedySharing(
            self.member, self.member, self.incarnation, self.settings, 1 + self.runs.getrandbits(60)
        )
        sharing.greed = self.greed
        self.sharing = sharing
        self.incarnation += 1
        self.pinned = {}
        self.known = {each: self.known.get(each, 0) + used for each, used in self.spent.items()}
        self.spent, self.limit = {}, {}
        self.is_alive = True

    def clock(self, now_ms: int) -> int:
        return now_ms + self.clock_offset_ms + now_ms * self.clock_ppm // 1_000_000

    def measure(self, now_ms: int = 0) -> None:
        wanted = measured(self.demands, self.quota)
        if self.ahead_ms is not None:
            window = FIRST_WINDOW + (now_ms + self.ahead_ms) // WINDOW_MS
            ask = min(BUDGET, max(self.demands.values(), default=0) // 10_000)
            wanted = wanted.joined(of_budgets({window - 1: 0, window: ask}, self.spent, self.known))
        self.sharing.measure(wanted)

    def visit(self, found: dict[str, ShareReport], started_ms: int, now_ms: int) -> None:
        ids = self.sharing.ids  # a register says nothing of other scopes
        reports = {name: replace(report, rows=report.rows.only(ids)) for name, report in found.items()}
        self.sharing.take_in(Visit(reports), started_ms=self.clock(started_ms), now_ms=self.clock(now_ms))

    def trigger(self, now_ms: int) -> None:
        """Plan a batch: measure what is wanted, and hold to what may be used."""
        self.measure(now_ms)
        share = self.sharing.share(self.clock(now_ms))
        self.sharing.pin(share.ids, share.rate_micro_per_ms)
        self.pinned = dict(zip(share.ids.tolist(), np.maximum(share.rate_micro_per_ms[:, 0], 0).tolist(), strict=True))
        if self.ahead_ms is not None:
            window = FIRST_WINDOW + (now_ms + self.ahead_ms) // WINDOW_MS
            at = np.searchsorted(share.ids, window)
            self.limit = {window: int(share.rate_micro_per_ms[at, 0] - share.earlier[at])}

    def report(self, now_ms: int) -> Update:
        return self.sharing.next_report(now_ms=self.clock(now_ms), wall_ms=self.clock(now_ms))

    def used(self, scope: int, now_ms: int) -> int:
        """Return the rate that the job earns: what it pinned, and no more than its floor once its lease ended."""
        if not self.is_alive:
            return 0
        pinned = self.pinned.get(scope, 0)
        sharing = self.sharing
        if sharing._held_until_ms is not None and self.clock(now_ms) < sharing._held_until_ms:
            return pinned
        at = np.flatnonzero(sharing._own.ids == scope)
        floor = int(sharing._floor_micro_per_ms[at[0], 0]) if len(at) else 0
        return min(pinned, floor)


@dataclass
class World:
    """Jobs and their exchange, in real time."""

    jobs: list[SimulatedJob]
    store: Store = field(default_factory=Store)
    now_ms: int = 0
    worst: float = 0.0
    spent: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """By window: what all jobs have used of the budget."""

    gives_out_more: bool = False
    """Whether the policy may pass the quota at times, as PIP-82's may."""

    owners: dict[str, SimulatedJob] = field(default_factory=dict)
    """The process that owns each member's checkpoint: only it goes on after it yielded."""

    _began_ms: int = 0

    def let_owners_go_on(self) -> None:
        for job in self.owners.values():
            if job.sharing.may_go_on:
                job.sharing.go_on()

    def check(self, quota: int = 1_000_000) -> None:
        for scope in (GOLD, SILVER):
            used = [job.used(scope, self.now_ms) for job in self.jobs]
            self.worst = max(self.worst, sum(used) / quota)
            assert sum(used) <= quota or self.gives_out_more, f"at {self.now_ms} ms scope {scope} is used at {used}"
        for job in self.jobs:
            self.spend(job)

    def spend(self, job: SimulatedJob) -> None:
        """Let a job use what its epoch says that it may use of the budget, or a part of it."""
        for window, limit in job.limit.items() if job.is_alive else ():
            tokens = max(0, limit - job.spent.get(window, 0))
            tokens = tokens if job.uses_all else min(tokens, job.spends.choice([0, 1, tokens, tokens]))
            job.spent[window] = job.spent.get(window, 0) + tokens
            self.spent[window] += tokens
            assert self.spent[window] <= BUDGET, f"at {self.now_ms} ms {self.spent[window]} of {BUDGET} are used"

    def cycle(self, cycles: int = 1) -> None:
        """Let every job look four times a cycle, and sixteen times while it waits, and report once or if others wait.

        One comes after another, batches are short, and nothing is lost.
        """
        live = [job for job in self.jobs if job.is_alive]
        for slot in range(_SLOTS * cycles):
            for number, job in enumerate(live):
                self.now_ms = (slot * len(live) + number + 1) * SETTINGS.interval_ms // (
                    _SLOTS * len(live)
                ) + self._began_ms
                job.trigger(self.now_ms)
                if number % 4 == slot % 4 or not job.sharing.is_settled:
                    job.visit(self.store.read(self.now_ms), self.now_ms, self.now_ms)
                    job.trigger(self.now_ms)
                if (number % 4 == slot % _SLOTS or job.sharing.must_tell) and not job.sharing.is_superseded:
                    self.store.write(self.now_ms, job.report(self.now_ms).report)
                self.let_owners_go_on()
                self.check()
        self._began_ms = self.now_ms

    def used(self, scope: int = GOLD) -> list[int]:
        return [job.used(scope, self.now_ms) for job in self.jobs]


def _plan(job: SimulatedJob, rng: random.Random, now_ms: int) -> None:
    """Plan a batch, unless the last one, which may take long, still runs."""
    if now_ms >= job.next_trigger_ms:
        job.trigger(now_ms)
        job.next_trigger_ms = now_ms + rng.choice([0, 0, 0, 0, 0, 0, 0, 100, 2_000, 6_000])


def leave_out_budgets(world: World, rng: random.Random) -> None:
    """Let all jobs, none, or some share a budget beside their quotas: rates must not depend on it."""
    part = rng.choice([0.0, 0.5, 1.0])
    for job in world.jobs:
        job.ahead_ms = None if rng.random() < part else job.ahead_ms


def lag(seed: int, steps: int, jobs: int = 3) -> World:
    """Return a world in which nobody dies, and everybody goes by reports that may be a third of a lease old.

    Each register is out of date by itself, so an older report may follow a newer one.
    """
    rng = random.Random(seed)
    world = World(
        [SimulatedJob(f"job{n}", rng.randint(-5_000, 5_000), greed=rng, ahead_ms=900 * n) for n in range(jobs)]
    )
    for job in world.jobs:
        job.demands = {GOLD: 1_000_000}
    world.cycle(6)
    oldest_ms = SETTINGS.hold_ms // 2 + SETTINGS.margin_ms // 2
    for _ in range(steps):
        world.now_ms += rng.choice([1, 10, 50, 100])
        job = rng.choice(world.jobs)
        if rng.random() < 0.5:
            _plan(job, rng, world.now_ms)
        elif world.now_ms >= job.next_visit_ms:
            job.next_visit_ms = world.now_ms + rng.randint(SETTINGS.interval_ms // 4, SETTINGS.interval_ms)
            found = world.store.read(world.now_ms)
            for member in found:
                if member != job.member:
                    found[member] = world.store.read(world.now_ms - rng.randint(0, oldest_ms))[member]
            job.visit(found, world.now_ms, world.now_ms)
            if rng.random() < 0.5:
                _plan(job, rng, world.now_ms)
            world.store.write(world.now_ms, job.report(world.now_ms).report)
        world.check()
    return world


def reborn(seed: int, steps: int, jobs: int = 2) -> World:
    """Return a world of jobs that are started again and again, and do not know of each other for a while.

    Each register is out of date by itself, by a margin at most, and a report may take as long to be written.
    """
    rng = random.Random(seed)
    margin_ms = SETTINGS.margin_ms
    world = World([SimulatedJob(f"job{n}", rng.randint(-5_000, 5_000), ahead_ms=900 * n) for n in range(jobs)])
    leave_out_budgets(world, rng)
    for job in world.jobs:
        job.demands = {GOLD: 5_000_000}
        job.trigger(0)
    for _ in range(steps):
        world.now_ms += rng.choice([1, 10, 20, 100])
        job = rng.choice(world.jobs)
        if rng.random() < 0.005:
            job.start()
        elif rng.random() < 0.3:
            _plan(job, rng, world.now_ms)
        elif world.now_ms >= job.next_visit_ms:
            job.next_visit_ms = world.now_ms + rng.choice([0, 50, 300])
            found = _found(world, job, lambda: rng.choice([margin_ms, margin_ms, rng.randint(0, margin_ms)]))
            job.visit(found, world.now_ms, world.now_ms)
            _plan(job, rng, world.now_ms)
            if rng.random() < 0.5:
                late_ms = rng.choice([0, margin_ms, rng.randint(0, margin_ms)])
                world.store.write(world.now_ms + late_ms, job.report(world.now_ms).report)
        world.check()
    return world


def roam(seed: int, steps: int, jobs: int = 4, *, is_greedy: bool = False) -> World:
    """Return a world after so many random events, having checked the quota after each."""
    rng = random.Random(seed)
    lease_ms, margin_ms = SETTINGS.lease_ms, SETTINGS.margin_ms
    world = World(
        [
            SimulatedJob(
                f"job{n}",
                rng.choice(CLOCKS_MS) + rng.randint(-lease_ms, lease_ms),
                rng.randint(-1_000, 1_000),
                greed=rng if is_greedy else None,
                ahead_ms=rng.randint(0, 5_000),
            )
            for n in range(jobs)
        ]
    )
    leave_out_budgets(world, rng)
    for job in world.jobs:
        job.is_alive = rng.random() < 0.6
        job.next_visit_ms = rng.randint(0, 2_000)
    paused_until: dict[str, int] = {}
    outage_until: dict[str, int] = {}
    for _ in range(steps):
        world.now_ms += rng.choice([1, 10, 50, 100, 200])
        job = rng.choice(world.jobs)
        if rng.random() < 0.004:
            job.is_alive = False
        elif not job.is_alive and rng.random() < 0.03:
            if rng.random() < 0.3:
                put_back(world, job, rng)
            job.start()
        elif rng.random() < 0.003:
            paused_until[job.member] = world.now_ms + rng.randint(1, 3 * lease_ms)
        elif rng.random() < 0.004:
            outage_until[job.member] = world.now_ms + rng.randint(1, 3 * lease_ms)
        if rng.random() < 0.05:
            job.demands = {
                scope: rng.choice([0, 1_000, 200_000, 500_000, 900_000, 5_000_000])
                for scope in (GOLD, SILVER)
                if rng.random() < 0.9
            }
        if job.is_alive and paused_until.get(job.member, 0) <= world.now_ms:
            _act(world, job, rng, is_cut_off=outage_until.get(job.member, 0) > world.now_ms, margin_ms=margin_ms)
        world.check()
    return world


def put_back(world: World, job: SimulatedJob, rng: random.Random) -> None:
    """Put a dead job's checkpoint back, with or without its register."""
    job.incarnation = rng.randint(0, job.incarnation)
    job.known = {each: rng.randint(0, used) for each, used in (job.known | job.spent).items()}
    job.spent = {}
    if rng.random() < 0.5:
        world.store.delete(world.now_ms, job.member)


def cloned(seed: int, steps: int, jobs: int = 3) -> World:
    """Return a world of jobs that are restarted, put back and cloned, and whose registers are deleted.

    All reach the exchange: they look once in a margin at least, or are held up before they have used anything. Each
    register is out of date by itself, by a margin at most, and a report may take as long to be written. Of two
    processes of a job, the one that began last owns the checkpoint.
    """
    rng = random.Random(seed)
    margin_ms = SETTINGS.margin_ms
    world = World(
        [
            SimulatedJob(f"job{n}", rng.choice(CLOCKS_MS) + rng.randint(-5_000, 5_000), ahead_ms=900 * n)
            for n in range(jobs)
        ]
    )
    leave_out_budgets(world, rng)
    for job in world.jobs:
        job.demands = {GOLD: 5_000_000}
        world.owners[job.member] = job
    for _ in range(steps):
        world.now_ms += rng.choice([1, 10, 20, 50])
        what, one = rng.random(), rng.choice(world.jobs)
        if what < 0.004:
            if rng.random() < 0.5:
                put_back(world, one, rng)
            one.start()
            world.owners[one.member] = one
        elif what < 0.012 and sum(job.member == one.member for job in world.jobs) == 1:
            world.jobs.append(clone_of(one, rng))
            world.owners[one.member] = world.jobs[-1]
        elif what < 0.014:
            world.store.delete(world.now_ms, rng.choice([None, one.member]))
        elif what < 0.02:
            one.demands = {GOLD: rng.choice([0, 1_000, 200_000, 5_000_000])}
        for job in [job for job in world.jobs if job.next_visit_ms <= world.now_ms]:
            _look(world, job, rng)
            world.check()
            is_held_up = not job.sharing.is_established and rng.random() < 0.1
            job.next_visit_ms = world.now_ms + (5 * margin_ms if is_held_up else rng.choice([50, 300, margin_ms - 50]))
        if rng.random() < 0.3:
            one.trigger(world.now_ms)
        world.check()
        world.let_owners_go_on()
        world.jobs = [job for job in world.jobs if not job.sharing.is_superseded]
    return world


def clone_of(job: SimulatedJob, rng: random.Random) -> SimulatedJob:
    """Return another process that runs a job, from a checkpoint that is as old, older, or newer."""
    demands = {GOLD: rng.choice([0, 1_000, 5_000_000])}  # it may claim less than the other has
    clone = SimulatedJob(job.member, rng.randint(-5_000, 5_000), demands=demands, ahead_ms=job.ahead_ms)
    clone.known = {each: rng.randint(0, used) for each, used in (job.known | job.spent).items()}
    clone.incarnation = max(0, job.incarnation - 1 + rng.choice([-3, -1, 0, 0, 0, 1]))
    clone.start()
    return clone


def _look(world: World, job: SimulatedJob, rng: random.Random) -> None:
    """Visit, with the registers of others up to a margin out of date, and report, which may take a margin."""
    margin_ms = SETTINGS.margin_ms
    found = _found(world, job, lambda: rng.choice([margin_ms, 0, rng.randint(0, margin_ms)]))
    job.visit(found, world.now_ms, world.now_ms)
    job.trigger(world.now_ms)
    if not job.sharing.is_superseded:
        late_ms = rng.choice([0, 0, margin_ms, rng.randint(0, margin_ms)])
        world.store.write(world.now_ms + late_ms, job.report(world.now_ms).report)


def _found(world: World, job: SimulatedJob, old_ms: Callable[[], int]) -> dict[str, ShareReport]:
    """Return the registers, those of other runs each as it was so long ago."""
    found: dict[str, ShareReport] = {}
    for name, report in world.store.read(world.now_ms).items():
        run = report.mark.run
        as_of_ms = world.now_ms - (0 if run == job.sharing.run else old_ms())
        found.update((name, old) for old in world.store.read(as_of_ms).values() if old.mark.run == run)
    return found


def _act(world: World, job: SimulatedJob, rng: random.Random, *, is_cut_off: bool, margin_ms: int) -> None:
    what = rng.random()
    if what < 0.4:
        _plan(job, rng, world.now_ms)
    elif world.now_ms >= job.next_visit_ms and not is_cut_off:
        job.next_visit_ms = world.now_ms + rng.randint(SETTINGS.interval_ms // 2, SETTINGS.interval_ms * 3 // 2)
        # Computing takes a while, during which others go on; what was read is as old as the exchange may be out by.
        stale_ms = rng.choice([0, 0, 0, rng.randint(0, margin_ms)])
        if rng.random() < 0.9:
            job.visit(world.store.read(world.now_ms - stale_ms), world.now_ms, world.now_ms)
        if rng.random() < 0.7:
            _plan(job, rng, world.now_ms)
        if rng.random() < 0.2:  # it only looked
            return
        update = job.report(world.now_ms)
        if rng.random() < 0.9:
            late_ms = rng.choice([0, 0, 0, rng.randint(0, margin_ms)])
            world.store.write(world.now_ms + late_ms, replace(update.report))
