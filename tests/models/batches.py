"""The model of batches: an epoch, an offset, a decision, the sinks, a report and a commit, in Spark's order.

A *run* is one driver process; several may live on one checkpoint, and each believes to be alone. A run dies anywhere.
A checkpoint, its control directory and the sinks are put back, together or apart. The model says what a run may do
next, and what it must refuse. Two laws are to hold in every state:

- L1: no row is in the sinks twice, and none before the committed position is neither there nor waiting.
- L6: two attempts at one logged batch decide the same.

Left out: quotas (a policy is a number, which says how many rows a batch lets pass; a recorded decision may be any that
keeps its rows), sinks without transactions, records that are pruned because they are old, files of waiting rows,
processing time, destinations, and two checkpoints that write to one sink. A file is written whole or not at all.
"""

from __future__ import annotations

from tests.models.batch_states import (
    DECIDED,
    IDLE,
    KEPT,
    LETTERED,
    LOGGED,
    PLANNED,
    READY,
    REPORTED,
    WRITTEN,
    Backup,
    Control,
    Epoch,
    Logged,
    Outcome,
    Report,
    Rows,
    Run,
    Spark,
    State,
    Table,
    base_of,
    drop_run,
    has_report,
    put_run,
    rows_of,
    run_of,
    wronged,
)
from tests.models.checker import Model
from tests.models.promises import OF_BATCHES


class Batches(Model[State]):
    """The model."""

    # ------------------------------------------------------------------------------------- what happens to a job

    def arrive(self, s: State, rows: int = 1) -> State:
        """Rows come to the source."""
        return s._replace(offered=s.offered + rows)

    def change_policy(self, s: State, policy: int) -> State:
        """Other policies are in force from now on."""
        return s._replace(policy=policy)

    def die(self, s: State, run: int) -> State | None:
        """A run dies, anywhere."""
        return None if run_of(s, run) is None else drop_run(s, run)

    def put_back(self, s: State, batches: int) -> State | None:
        """Spark's part of the checkpoint goes back to so many committed batches; the rest stays as it is."""
        if s.runs or batches > s.spark.committed or not (batches or s.control.name):
            return None  # who begins anew with another control directory has another query
        spark = Spark(s.spark.log[:batches], batches, s.spark.kept[: batches + 1])
        return s._replace(spark=spark, restores=s.restores + 1)

    def back_up(self, s: State) -> State:
        """All is copied."""
        return s._replace(backups=(*s.backups, Backup(s.spark, s.control, s.table, s.letters)))

    def restore(self, s: State, backup: Backup, with_control: bool) -> State | None:
        """Spark's part and the sinks are put back, and perhaps the control directory."""
        if s.runs:
            return None
        control = backup.control if with_control else s.control
        gone = s.gone | {each[:2] for each in s.control.reports - control.reports}
        spark, _, table, letters = backup
        return s._replace(
            spark=spark, control=control, table=table, letters=letters, gone=gone, restores=s.restores + 1
        )

    def put_control_back(self, s: State, control: Control) -> State | None:
        """The control directory alone is lost, or an older one is put in its place."""
        if s.runs or (s.plans and not s.spark.log):
            return None  # who begins anew with another control directory has another query
        gone = {each[:2] for each in s.control.reports - control.reports}
        return s._replace(control=control, restores=s.restores + 1, gone=s.gone | gone)

    # -------------------------------------------------------------------------------------------- what a run does

    def start(self, s: State, run: int) -> State | None:
        """A process starts on the checkpoint: it checks what is there, and removes reports of undone batches."""
        if run <= s.starts or _refusal_of_start(self, s) is not None:
            return None
        newest = len(s.spark.log) - 1
        reports = _reports_of(self, s)
        control = s.control._replace(name=s.control.name or run, reports=reports)
        gone = {
            each[:2]
            for each in s.control.reports - reports
            if each.batch > newest or each.time != s.spark.log[each.batch].time
        }
        at = LOGGED if len(s.spark.log) > s.spark.committed else IDLE
        runs = (*s.runs, Run(run, s.control.owner, newest, at))
        is_behind = newest >= 0 and newest < max(s.table.batch, s.letters.batch)
        s = wronged(s, "a query keeps its name", bool(s.spark.log or s.control.epochs) and not s.control.name)
        s = wronged(s, "a run begins behind no sink", is_behind)
        return s._replace(control=control, runs=runs, starts=run, gone=s.gone | gone)

    def begin(self, s: State, run: int) -> State | None:
        """A run takes over the control directory, before its first epoch or batch."""
        r = run_of(s, run)
        if r is None or r.has_begun or _refusal_to_begin(self, s, r) is not None:
            return None
        s = wronged(s, "a run begins where it was started", s.control.owner != r.found)
        return put_run(s._replace(control=s.control._replace(owner=run)), r._replace(has_begun=True))

    def plan(self, s: State, run: int, is_new: bool) -> State | None:
        """A run looks at the policies and the reports, and makes an epoch if one is due."""
        r = run_of(s, run)
        if r is None or not r.has_begun or r.at not in (IDLE, READY) or _refusal_to_plan(self, s, r, is_new):
            return None
        base, control = base_of(s, r), s.control
        s = wronged(s, "epochs that are named are there", base is not None and base not in control.epochs)
        is_owner = control.owner == run
        s = wronged(s, "only the owner writes", s.policy != r.followed and not is_owner)
        beyond = [each.batch for each in control.reports if base is not None and each.epoch > base.number]
        if beyond:  # another run's, which this one must not take for undone
            s = wronged(s, "only the owner writes", not is_owner)
            kept = frozenset(each for each in control.reports if each.batch < min(beyond))
            control = control._replace(reports=kept)
        planned = _epoch_after(base, s.policy, control.reports) if is_new else base
        s = wronged(s, "only the owner writes", is_new and not is_owner)
        if not is_new and not self.needs("changed policies", base is not None and base.policy == s.policy):
            return None
        s = wronged(s, "changes of policy act in the next batch", planned is not None and planned.policy != s.policy)
        return put_run(
            s._replace(control=control), r._replace(at=PLANNED if is_new else READY, planned=planned, followed=s.policy)
        )

    def write_epoch(self, s: State, run: int) -> State | None:
        """A run writes the epoch that it planned; if another has taken over since, no offset will name it."""
        r = run_of(s, run)
        if r is None or r.at != PLANNED or r.planned is None:
            return None
        control = s.control._replace(epochs=s.control.epochs | {r.planned})
        return put_run(s._replace(control=control), r._replace(at=READY))

    def log_offset(self, s: State, run: int, end: int, time: int, told: int = 0) -> State | None:
        """A run logs the batch that it planned, with the rows that came; no other run has logged one of that number.

        What is told of rows that left is a source too. It decides nothing here, but a batch that brings it reports.
        """
        r = run_of(s, run)
        begin = s.spark.log[-1].end if s.spark.log else 0
        if r is None or r.planned is None or len(s.spark.log) != r.newest + 1:
            return None
        if not (r.at == READY or self._skips("epoch before offset", r, PLANNED)):
            return None
        if end > s.offered or not self.needs("offsets are read once", end >= begin):
            return None
        s = wronged(s, "epochs that are named are there", r.planned not in s.control.epochs)
        spark = s.spark._replace(log=(*s.spark.log, Logged(r.planned, end, time, None, told)))
        return put_run(s._replace(spark=spark, plans=s.plans + 1), r._replace(newest=r.newest + 1, at=LOGGED))

    def decide(self, s: State, run: int, outcome: Outcome) -> State | None:
        """A run decides on all rows that waited, or came with the batch."""
        r = run_of(s, run)
        if r is None or not r.has_begun or r.at != LOGGED or not _is_epoch_there(self, s, r):
            return None
        if sorted(sum(outcome, ())) != sorted(rows_of(s, r.newest)):
            return None
        log, logged = s.spark.log, s.spark.log[r.newest]
        s = wronged(s, "epochs that are named are there", logged.epoch not in s.control.epochs)
        s = wronged(s, "two attempts decide the same", logged.decided not in (None, outcome))
        log = (*log[: r.newest], logged._replace(decided=logged.decided or outcome), *log[r.newest + 1 :])
        return put_run(s._replace(spark=s.spark._replace(log=log)), r._replace(at=DECIDED, outcome=outcome))

    def keep_state(self, s: State, run: int) -> State | None:
        """The state after a batch is stored; that of a batch that another run stored is the same."""
        r = run_of(s, run)
        if r is None or r.at != DECIDED or r.outcome is None:
            return None
        kept = s.spark.kept
        kept = (*kept[: r.newest + 1], r.outcome.waiting, *kept[r.newest + 2 :])
        return put_run(s._replace(spark=s.spark._replace(kept=kept)), r._replace(at=KEPT))

    def write(self, s: State, run: int) -> State | None:
        """The table takes the rows that leave, or skips a batch that it has."""
        r = run_of(s, run)
        if r is None or r.outcome is None or not (r.at == KEPT or self._skips("state before commit", r, DECIDED)):
            return None
        is_empty = r.newest > 0 and not (r.outcome.admitted or r.outcome.rejected)  # batch 0 leaves its mark always
        table = s.table if is_empty else self._append(s, r, s.table, r.outcome.admitted)
        return None if table is None else put_run(s._replace(table=table), r._replace(at=WRITTEN))

    def write_letters(self, s: State, run: int) -> State | None:
        """The dead letters take the rows that were rejected, or skip a batch that they have."""
        r = run_of(s, run)
        if r is None or r.outcome is None or not (r.at == WRITTEN or self._skips("sinks before commit", r, KEPT)):
            return None
        letters = self._append(s, r, s.letters, r.outcome.rejected) if r.outcome.rejected else s.letters
        return None if letters is None else put_run(s._replace(letters=letters), r._replace(at=LETTERED))

    def report(self, s: State, run: int) -> State | None:
        """A batch that brought an epoch or rows reports, last of its records."""
        r = run_of(s, run)
        if r is None or r.at != LETTERED:
            return None
        control = s.control
        if has_report(s.spark.log, r.newest):
            logged = s.spark.log[r.newest]
            report = Report(r.newest, logged.time, logged.epoch.number)
            others = {each for each in control.reports if each[:2] != report[:2]}
            control = control._replace(reports=frozenset({*others, report}))
        return put_run(s._replace(control=control), r._replace(at=REPORTED))

    def commit(self, s: State, run: int) -> State | None:
        """Spark commits a batch."""
        r = run_of(s, run)
        if r is None or not (r.at == REPORTED or self._skips("one report a batch", r, LETTERED)):
            return None
        spark = s.spark._replace(committed=max(s.spark.committed, r.newest + 1))
        return put_run(s._replace(spark=spark), r._replace(at=IDLE, planned=None, outcome=None))

    def refuse(self, s: State, run: int, why: str | None) -> State | None:
        """A run refuses to go on, and ends: at its start, as it begins, plans or logs, or at a sink."""
        r = run_of(s, run)
        # Spark may ask a run for another plan before it logs the one that it has.
        is_asked_again = r is not None and r.at == READY and why == _refusal_to_plan(self, s, r, True)
        if why is None or not (is_asked_again or why == self.refusal(s, run)):
            return None
        if r is None:
            return s._replace(starts=run)
        if not r.has_begun and why == "ConfigurationError" and "refused before it begins" in self.without:
            s = wronged(s._replace(control=s.control._replace(owner=run)), "who is refused takes over nothing", True)
        if r.has_begun and "notes of a run" in self.without:
            s = wronged(s, "only the owner writes", s.control.owner != run and s.policy != r.followed)
        return drop_run(s, run)

    def refusal(self, s: State, run: int) -> str | None:  # noqa: PLR0911 - a reason each
        """Return why a run, or one that is to start, must not go on."""
        r = run_of(s, run)
        if r is None:
            return _refusal_of_start(self, s) if run > s.starts else None
        if not r.has_begun:
            return _refusal_to_begin(self, s, r)
        if r.at in (KEPT, WRITTEN):
            is_taken = (self.write if r.at == KEPT else self.write_letters)(s, run) is not None
            return None if is_taken else "CheckpointMismatchError"
        if r.at in (IDLE, READY, LOGGED) and not _is_epoch_there(self, s, r):
            return "EpochMissingError"
        if r.at not in (IDLE, READY):
            return None
        if r.at == READY and len(s.spark.log) != r.newest + 1:
            return "ConcurrentRunError"
        if r.newest < 0 and s.control.reports:
            return "ConfigurationError"
        return "TakenOverError" if s.control.owner != run else None

    # ------------------------------------------------------------------------------------------------- exploring

    def _skips(self, guard: str, run: Run, at: str) -> bool:
        return run.at == at and self.needs(guard, False)

    def _append(self, s: State, run: Run, table: Table, rows: Rows) -> Table | None:
        """Return a table after a batch; `None` if it has another one of that number, or a later one."""
        outcome, logged = run.outcome or Outcome((), (), ()), s.spark.log[run.newest]
        identity = (logged.epoch.number, logged.time, *map(len, outcome))
        if table.batch < run.newest:
            return Table(table.rows + rows, run.newest, identity)
        is_same = self.needs("identity of a batch", table.identity == identity)
        return table if table.batch == run.newest and is_same else None

    invariants = OF_BATCHES
    actions = (
        "arrive", "change_policy", "die", "put_back", "back_up", "restore", "put_control_back", "start", "begin",
        "plan", "write_epoch", "log_offset", "decide", "keep_state", "write", "write_letters", "report", "commit",
        "refuse",
    )  # fmt: skip


def _refusal_of_start(model: Batches, s: State) -> str | None:
    """Return why a process may not start."""
    has_run = bool(s.spark.log or s.control.epochs)
    if not model.needs("a manifest that is gone", bool(s.control.name) or not has_run):
        return "DamagedError"
    newest = max(s.table.batch, s.letters.batch) if s.spark.log else -1
    is_ahead = newest >= len(s.spark.log)
    return None if model.needs("sinks are not ahead", not is_ahead) else "CheckpointMismatchError"


def _refusal_to_begin(model: Batches, s: State, r: Run) -> str | None:
    """Return why a run may not take over the control directory."""
    if r.newest < 0 and s.control.reports:
        return "ConfigurationError"
    return None if model.needs("found owner", s.control.owner == r.found) else "TakenOverError"


def _is_epoch_there(model: Batches, s: State, r: Run) -> bool:
    """Return whether the epoch is there that the newest batch names."""
    return model.needs("epoch is there", r.newest < 0 or base_of(s, r) in s.control.epochs)


def _refusal_to_plan(model: Batches, s: State, r: Run, is_new: bool) -> str | None:
    """Return why a run may not plan a batch."""
    if not _is_epoch_there(model, s, r):
        return "EpochMissingError"
    is_owner, base = s.control.owner == r.id, base_of(s, r)
    beyond = base is not None and any(each.epoch > base.number for each in s.control.reports)
    is_fenced = (
        model.needs("notes of a run", s.policy == r.followed or is_owner)
        and model.needs("reports of another run", not beyond or is_owner)
        and model.needs("run fence", not is_new or is_owner)
    )
    if not is_fenced:
        return "TakenOverError"
    is_first = r.newest < 0
    return "ConfigurationError" if is_first and s.control.reports else None


def _reports_of(model: Batches, s: State) -> frozenset[Report]:
    """Return the reports that a start leaves: those up to the first that the log has, and those that it has."""
    log = s.spark.log
    if not log:
        return s.control.reports

    def is_logged(each: Report) -> bool:
        return each.batch < len(log) and model.needs("reports of another history", each.time == log[each.batch].time)

    undone = len(log)
    for each in sorted(s.control.reports, reverse=True):
        if is_logged(each):
            break
        undone = min(undone, each.batch)
    if "reports of undone batches" in model.without:
        undone = len(log) + 1_000_000
    if "reports that are left" in model.without:
        undone = min([undone, *(each.batch for each in s.control.reports if each.batch > log[-1].epoch.settled)])
        return frozenset(each for each in s.control.reports if each.batch < undone)
    return frozenset(each for each in s.control.reports if each.batch < undone or is_logged(each))


def _epoch_after(base: Epoch | None, policy: int, reports: frozenset[Report]) -> Epoch:
    if base is None:
        return Epoch(1, policy, -1, frozenset())
    new = {each.batch: each.time for each in sorted(reports) if each.batch > base.settled}
    settled = max([base.settled, *new])
    return Epoch(base.number + 1, policy, settled, base.counted | frozenset(new.items()))
