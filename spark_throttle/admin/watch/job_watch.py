"""Running jobs are read from their control directories every quarter of a second, and kept for a while.

The watch collects a job's reports from its own start on: for a while it keeps the numbers of the job, its groups and
tenants, and for the newest batches also those of every namespace, both up to a number of rows.

Nothing is decided here, and no job waits for the watch. If a directory cannot be read, its job's view says why. Every
job has a thread of its own, so a directory that hangs makes no other job look silent.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_throttle.admin.watch.batch_numbers import BatchNumbers, TimeTotals, Totals, numbers_of
from spark_throttle.admin.watch.scope_history import UsageTable
from spark_throttle.checkpoint.manifest import read_manifest
from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import read_epoch, read_policy
from spark_throttle.control.notes import NextPolicies, read_next_policies
from spark_throttle.control.reports import newest_batch, read_reports
from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.quota import KNOWN, CompiledPolicy, Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import ThrottleError
from spark_throttle.files.storage import Directory
from spark_throttle.sharing.status import Observation, read_observation
from spark_throttle.status.budget_status import BudgetsByScope
from spark_throttle.status.liveness import LifeBounds, Liveness, SignWatch
from spark_throttle.status.time_status import TimeStatus, time_status_of

logger = logging.getLogger(__name__)

BATCHES_KEPT: Final = 900
SCOPES_KEPT: Final = 200_000
"""Bounds on the numbers of groups and tenants that are kept: a quarter of an hour at one batch a second, unless there
are more than some 200 of them; a scope of a batch takes half a KiB."""

WINDOW_BATCHES: Final = 10
WINDOW_ROWS: Final = 2_000_000
"""Bounds on the namespaces' numbers that are kept: `WINDOW_BATCHES` batches with `WINDOW_ROWS` rows in all."""

LOOK_SECONDS: Final = 0.25
SIGN_LOOK_MS: Final = 1_000
"""How often a job's sign of life and its exchange are read: three small files, which an object store bills for."""

_STOP_SECONDS: Final = 1.0

_FIRST_BATCHES: Final = 2
"""Batches that the first look reads, of all that have reported."""
"""How long the end of the watch waits for a look that is under way."""


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """The newest batches of a job under one revision, by namespace; arrays run over the namespaces that were active."""

    policy: CompiledPolicy
    """The policy of these batches."""

    batches: int
    elapsed_ms: int
    names: pa.StringArray
    counts: Int64s
    """The values that `usage_table.MEASURES` names, by namespace, summed over the batches."""

    waiting: Int64s
    """Shape (n, 3): what waits after the newest batch, in the dimensions that are `KNOWN`."""

    oldest_ms: Int64s
    """How long the oldest waiting row of each had waited when the newest batch began, -1 where none waits."""

    held_by: Int64s
    """Shape (n, 2): as in `UsageReport`, of the newest batch in which a quota stopped rows of each."""

    newest_counts: Int64s
    """`counts` of the newest batch alone."""

    newest_ms: int
    """How long the newest batch took; 0 if that is not known."""

    budgets: BudgetsByScope
    """What the newest batch left of the budgets of all scopes."""

    @property
    def newest(self) -> Window:
        """The newest batch alone, as the rows of groups and tenants show it."""
        return replace(self, batches=1, elapsed_ms=self.newest_ms, counts=self.newest_counts)


@dataclass(slots=True)
class JobView:
    """The known state of one job; a look that finds something new replaces it as a whole."""

    name: str
    location: str
    clock: Clock
    """The watcher's clocks."""

    usage: UsageTable | None
    """The job's usage table, if the server was told where it is."""

    signs: SignWatch
    direction: str | None = None
    followed: NextPolicies | None = None
    planned_epoch: int = 0
    """The newest epoch with which a batch was or is being planned."""

    epoch: Epoch | None = None
    epoch_policy: CompiledPolicy | None = None
    time: TimeStatus | None = None
    """The processing time that `epoch` settled; `None` without a quota on processing time."""

    exchange: Observation | None = None
    """What the job knows of the quotas that it shares with other jobs; `None` where it shares nothing."""

    time_totals: TimeTotals = field(default_factory=TimeTotals)
    problem: str | None = None
    """Why the job's directory cannot be read; `None` if it can."""

    batches: deque[BatchNumbers] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    totals: Totals = field(default_factory=Totals)
    """The sums by scope since the watch began, and the ranking of the scopes."""

    rejected_by_reason: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    """The number of rejected messages by `Reason` since the watch began; empty before a batch that reports it."""

    newest: BatchNumbers | None = None
    """The newest batch, with its tenants and namespaces."""

    balance_micro: Int64s | None = None
    """Shape (scopes, 3): the balances of the shared buckets after the newest batch; `None` unless that was decided
    under `epoch_policy`."""

    window: Window | None = None
    newest_seen: tuple[int, int] | None = None
    """The age of the newest batch when it was first seen, and when that was by the watcher's steady clock; in ms."""

    def liveness(self) -> Liveness:
        """Return whether the job lives, as of this moment."""
        return self.signs.liveness()

    def batch_age_ms(self) -> int | None:
        """Return the time since the newest batch; `None` before the first."""
        if self.newest_seen is None:
            return None
        age_ms, at_ms = self.newest_seen
        return age_ms + self.clock.steady_ms() - at_ms


class JobWatch:
    """Watches jobs; safe for use by several threads.

    Parameters
    ----------
    control_paths
        The control directory of each job, ``<checkpoint>/throttle``, by the job's name.
    clock
        The watcher's clocks; by default the machine's.
    bounds
        When a job counts as silent or hanging.
    usage_tables
        Where the usage tables of some jobs are, by the job's name.
    """

    def __init__(
        self, control_paths: Mapping[str, str], *, clock: Clock | None = None, bounds: LifeBounds | None = None,
        usage_tables: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._lock = threading.Lock()
        clock = clock or Clock.system()
        self._jobs = dict[str, _Job]()
        for name, path in control_paths.items():
            directory = Directory(path)
            table = (usage_tables or {}).get(name)
            usage = None if table is None else UsageTable(table, directory)
            view = JobView(name, path, clock, usage, SignWatch(directory, clock, bounds))
            self._jobs[name] = _Job(view, directory)
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def names(self) -> list[str]:
        """Names of the watched jobs."""
        return list(self._jobs)

    def view(self, name: str) -> JobView | None:
        """Return the view of a job, which callers must not change; `None` if the job is not watched."""
        with self._lock:
            job = self._jobs.get(name)
            return None if job is None else job.view

    def views(self) -> list[JobView]:
        """Return the views of all jobs, which callers must not change."""
        with self._lock:
            return [job.view for job in self._jobs.values()]

    def look(self) -> None:
        """Read what the jobs have written since the last look."""
        for job in self._jobs.values():
            self._look_at(job)

    def _look_at(self, job: _Job) -> None:
        try:
            changed = job.look()
        except Exception as error:  # noqa: BLE001 - whatever lies in a job's directory, the next look must come
            problem = str(error) if isinstance(error, ThrottleError | OSError) else repr(error)
            if job.view.problem != problem:
                logger.warning("job %s: %s", job.view.name, problem)
            changed = {"problem": problem}
        if changed:
            with self._lock:
                job.view = replace(job.view, **{"problem": None, **changed})

    def start(self) -> None:
        """Start a thread for each job, which looks every `LOOK_SECONDS`."""
        for name, job in self._jobs.items():
            thread = threading.Thread(target=self._run, args=(job,), name=f"job-watch-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """End the threads; one that hangs in a look is left behind."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(_STOP_SECONDS)

    def _run(self, job: _Job) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            self._look_at(job)


class _Job:
    """One job's directory, and the state that was read from it."""

    def __init__(self, view: JobView, directory: Directory) -> None:
        self.view = view
        self._directory = directory
        self._query = ""
        self._epoch_file = ""
        self._balances: UsageReport | None = None
        self._settled: list[Epoch] = []
        """The epochs with quotas on processing time that the last look found."""

        self._policies: dict[str, CompiledPolicy] = {}
        self._newest: list[BatchNumbers] = []
        """The newest batches with their namespaces, for the window."""

        self._sign_looked_ms: int | None = None
        self._has_looked = False

    def look(self) -> dict[str, Any]:
        """Return the fields of the view that changed."""
        changed: dict[str, Any] = {}
        now_ms = self.view.clock.steady_ms()
        if self._sign_looked_ms is None or now_ms - self._sign_looked_ms >= SIGN_LOOK_MS:
            self.view.signs.look()
            changed["exchange"] = read_observation(self._directory)
            self._sign_looked_ms = now_ms
        manifest = read_manifest(self._directory)
        if manifest is None:
            raise _missing(self.view.location)
        batches, totals, by_reason = self.view.batches, self.view.totals, self.view.rejected_by_reason
        if manifest.query != self._query:
            # The first look, or another query began in its place.
            self._query, self._newest, self._epoch_file, self._policies = manifest.query, [], "", {}
            self._balances = None
            batches, totals, by_reason = deque(maxlen=BATCHES_KEPT), Totals(), by_reason[:0]
            changed |= {
                "direction": manifest.direction, "batches": batches, "totals": totals, "window": None,
                "newest_seen": None, "newest": None, "balance_micro": None, "rejected_by_reason": np.zeros(0, np.int64),
                "time_totals": TimeTotals(),
            }  # fmt: skip
        followed = read_next_policies(self._directory)
        if followed != self.view.followed:
            changed["followed"] = followed
        changed |= self._look_at_epochs()
        last = batches[-1].batch if batches else -1
        newest = newest_batch(self._directory)
        if newest > last:
            after = last if batches else newest - _FIRST_BATCHES
            changed |= self._look_at_batches(after, batches, totals, by_reason)
        changed |= self._look_at_time(changed)
        changed |= self._look_at_balances(changed)
        self._has_looked = True
        if self.view.problem is not None:
            changed["problem"] = None
        return changed

    def _look_at_epochs(self) -> dict[str, Any]:
        files = self._directory.names("epochs")
        if not files or files[-1] == self._epoch_file:
            return {}
        epoch = read_epoch(self._directory, files[-1])
        if epoch is None:
            return {}
        seen = files.index(self._epoch_file) + 1 if self._epoch_file in files else len(files) - 1
        # What an epoch settled is told by no later one; without a quota on processing time, it settled none.
        missed = (read_epoch(self._directory, file) for file in files[seen:-1])
        self._settled = [] if epoch.time is None else [*filter(None, missed), epoch]
        policy = self._policy(epoch.revision)
        self._epoch_file = files[-1]
        return {"planned_epoch": epoch.number, "epoch": epoch, "epoch_policy": policy}

    def _look_at_balances(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        policy, report = changed.get("epoch_policy", self.view.epoch_policy), self._balances
        is_of_policy = policy is not None and report is not None and report.revision == policy.revision
        balance_micro = report.shared_micro if is_of_policy and report is not None else None
        return {} if balance_micro is self.view.balance_micro else {"balance_micro": balance_micro}

    def _look_at_time(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        if "epoch" not in changed:
            return {}
        times = [
            time
            for epoch in self._settled
            if (policy := self._policy(epoch.revision)) is not None
            and (time := time_status_of(epoch, policy)) is not None
        ]
        totals = changed.get("time_totals", self.view.time_totals)
        for time in times:
            totals = totals.with_epoch(time, changed.get("totals", self.view.totals).named)
        return {"time": times[-1] if times else None, "time_totals": totals}

    def _look_at_batches(
        self, last: int, batches: deque[BatchNumbers], totals: Totals, by_reason: Int64s
    ) -> dict[str, Any]:
        batches = deque(batches, maxlen=BATCHES_KEPT)
        for batch, report in read_reports(self._directory, after_batch=last).items():
            policy = self._policy(report.revision)
            if policy is None:
                continue
            before = batches[-1] if batches else None
            elapsed_ms = max(0, report.now_ms - before.now_ms) if before else 0
            numbers, self._balances = numbers_of(batch, report, policy, elapsed_ms), report
            batches.append(numbers.without_details())
            while len(batches) > 1 and sum(len(kept.shared) for kept in batches) > SCOPES_KEPT:
                batches.popleft()
            totals = totals.with_batch(numbers)
            by_reason = _sum(by_reason, numbers.rejected_by_reason)
            is_same = bool(self._newest) and self._newest[-1].revision == numbers.revision
            self._newest = [*self._newest[-(WINDOW_BATCHES - 1) :], numbers] if is_same else [numbers]
        while len(self._newest) > 1 and sum(len(kept.names) for kept in self._newest) > WINDOW_ROWS:
            self._newest = self._newest[1:]
        window = self._window()
        changed: dict[str, Any] = {"batches": batches, "totals": totals, "rejected_by_reason": by_reason}
        if batches and batches[-1].batch > last:
            changed |= {"newest_seen": self._seen(batches[-1].now_ms), "newest": self._newest[-1]}
        return changed | ({} if window is None else {"window": window})

    def _seen(self, batch_time_ms: int) -> tuple[int, int]:
        """Return `JobView.newest_seen` for a batch: the wall clocks date only one that was there at the first look."""
        clock = self.view.clock
        age_ms = 0 if self._has_looked else max(0, clock.wall_ms() - batch_time_ms)
        return age_ms, clock.steady_ms()

    def _policy(self, revision: str) -> CompiledPolicy | None:
        if revision not in self._policies:
            policy = read_policy(self._directory, revision)
            if policy is None:
                return None
            self._policies = {**dict(list(self._policies.items())[-3:]), revision: policy}
        return self._policies[revision]

    def _window(self) -> Window | None:
        if not self._newest:
            return None
        newest = self._newest[-1]
        policy = self._policy(newest.revision)
        if policy is None:
            return None
        # It is not known how long the first batch that was seen took.
        measured = [kept for kept in self._newest if kept.elapsed_ms or kept is newest]
        coded = pa.chunked_array([kept.names for kept in measured], pa.string()).combine_chunks()
        encoded = coded.dictionary_encode()
        names, index = encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        counts = sums(index, np.concatenate([kept.counts for kept in measured]), len(names))
        waiting = np.zeros((len(names), len(KNOWN)), np.int64)
        waiting[index[len(index) - len(newest.names) :]] = newest.waiting
        elapsed_ms = sum(kept.elapsed_ms for kept in measured)
        oldest_ms, held_by = np.full(len(names), -1), np.full((len(names), 2), -1)
        oldest_ms[index[len(index) - len(newest.names) :]] = newest.oldest_ms
        stops = np.concatenate([kept.held_by for kept in measured])
        is_stop = stops[:, 0] >= 0
        held_by[index[is_stop]] = stops[is_stop]  # of those of one name the last stays
        newest_counts = np.zeros_like(counts)
        newest_counts[index[len(index) - len(newest.names) :]] = newest.counts
        return Window(
            policy, len(measured), elapsed_ms, names, counts, waiting, oldest_ms, held_by,
            newest_counts, newest.elapsed_ms, newest.budgets,
        )  # fmt: skip


def _sum(some: Int64s, more: Int64s) -> Int64s:
    """Return the sum of two arrays, the shorter of which lacks zeros at its end."""
    return np.array([a + b for a, b in zip_longest(some.tolist(), more.tolist(), fillvalue=0)], np.int64)


def _missing(location: str) -> ThrottleError:
    return ThrottleError(f"no job has written to {location} yet; give <checkpoint>/throttle of the job")
