"""What a state of the model of batches is: Spark's part of a checkpoint, a control directory, sinks, and runs."""

from __future__ import annotations

from typing import Final, NamedTuple

Rows = tuple[int, ...]


class Epoch(NamedTuple):
    """What a batch depends on besides its rows and the state."""

    number: int
    policy: int
    settled: int
    """The newest batch whose report was there when the epoch was made; -1 for none."""

    counted: frozenset[tuple[int, int]]
    """Ghost: the batches, by number and time, whose reports it and the epochs before it were made from."""


class Outcome(NamedTuple):
    """What was decided on the rows that waited or came."""

    admitted: Rows
    rejected: Rows
    waiting: Rows


class Logged(NamedTuple):
    """A planned batch; its number is its place in the log."""

    epoch: Epoch
    end: int
    """The batch takes the source's rows up to here."""

    time: int
    decided: Outcome | None = None
    """Ghost: what its first attempt decided."""

    told: int = 0
    """The batch takes what is told of rows that left up to here."""


class Report(NamedTuple):
    """What a batch tells the next epoch."""

    batch: int
    time: int
    epoch: int


class Control(NamedTuple):
    """The control directory."""

    name: int = 0
    """The query's name in its manifest; 0 where there is none."""

    owner: int = 0
    """The run that took it over last; 0 before the first."""

    epochs: frozenset[Epoch] = frozenset()
    reports: frozenset[Report] = frozenset()


class Spark(NamedTuple):
    """Spark's part of the checkpoint."""

    log: tuple[Logged, ...] = ()
    committed: int = 0
    """The number of committed batches."""

    kept: tuple[Rows, ...] = ((),)
    """The rows that wait in the state with which each batch begins."""


class Table(NamedTuple):
    """A sink with transactions, and the newest batch that it knows."""

    rows: Rows = ()
    batch: int = -1
    identity: tuple[object, ...] = ()


class Run(NamedTuple):
    """A driver process."""

    id: int
    found: int
    """The owner of the control directory when the process was started."""

    newest: int
    """The newest batch of the log that it knows."""

    at: str
    has_begun: bool = False
    """Whether it has taken over the control directory."""

    followed: int | None = None
    """The policy that it noted last."""

    planned: Epoch | None = None
    outcome: Outcome | None = None


REFUSALS: Final = (
    "TakenOverError", "ConfigurationError", "ConcurrentRunError", "CheckpointMismatchError", "DamagedError",
    "EpochMissingError",
)  # fmt: skip
"""Errors by which a run refuses to go on."""

IDLE, PLANNED, READY, LOGGED, DECIDED, KEPT, WRITTEN, LETTERED, REPORTED = (
    "idle", "planned", "ready", "logged", "decided", "kept", "written", "lettered", "reported",
)  # fmt: skip


class Backup(NamedTuple):
    """All that a restore may bring back."""

    spark: Spark
    control: Control
    table: Table
    letters: Table


class State(NamedTuple):
    """A job, its sinks and its runs."""

    offered: int = 0
    policy: int = 0
    spark: Spark = Spark()
    control: Control = Control()
    table: Table = Table()
    letters: Table = Table()
    runs: tuple[Run, ...] = ()
    """The runs that live."""

    backups: tuple[Backup, ...] = ()
    starts: int = 0
    plans: int = 0
    """How many batches were ever logged."""

    restores: int = 0
    gone: frozenset[tuple[int, int]] = frozenset()
    """Ghost: the reports that went with a control directory, or with batches that were undone."""

    wrong: frozenset[str] = frozenset()
    """Ghost: the promises that a step, and not a state, has broken."""


def run_of(s: State, run: int) -> Run | None:
    return next((each for each in s.runs if each.id == run), None)


def put_run(s: State, run: Run) -> State:
    return s._replace(runs=tuple(run if each.id == run.id else each for each in s.runs))


def drop_run(s: State, run: int) -> State:
    return s._replace(runs=tuple(each for each in s.runs if each.id != run))


def wronged(s: State, invariant: str, is_broken: bool) -> State:
    return s._replace(wrong=s.wrong | {invariant}) if is_broken else s


def base_of(s: State, r: Run) -> Epoch | None:
    """Return the epoch of the newest batch that a run knows."""
    return s.spark.log[r.newest].epoch if 0 <= r.newest < len(s.spark.log) else None


def rows_of(s: State, batch: int) -> Rows:
    begin = s.spark.log[batch - 1].end if batch else 0
    return (*kept_of(s.spark, batch), *range(begin, s.spark.log[batch].end))


def kept_of(spark: Spark, batch: int) -> Rows:
    return spark.kept[batch] if batch < len(spark.kept) else ()


def has_report(log: tuple[Logged, ...], batch: int) -> bool:
    before = log[batch - 1] if batch else None
    if before is None:
        return True
    return (before.epoch, before.end, before.told) != (log[batch].epoch, log[batch].end, log[batch].told)
