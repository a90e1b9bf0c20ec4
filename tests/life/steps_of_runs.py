"""The rules of a job's runs: it dies, starts again, is put back, copied, or started twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spark_throttle.errors import ThrottleError
from spark_throttle.testing.simulation.disk import CRASH_POINTS
from spark_throttle.testing.simulation.exchange import SimulatedMachine
from spark_throttle.testing.simulation.job import SimulatedJob
from tests.life import policies
from tests.life.drawing import JUMPS_MS, Drawing, Rule, Traffic
from tests.life.laws import TAKEOVER, Violation
from tests.life.policies import Document

if TYPE_CHECKING:
    from tests.life.life import Backup, Life


def _crash(d: Drawing) -> dict[str, Any]:
    document = None
    if d.rng.random() < 0.5:
        document = d.next_policy()
    return {
        "at": d.rng.choice(CRASH_POINTS), "rows": d.rows(20), "after_ms": 1_000,
        "down_ms": d.rng.choice((0, 1_000, 3_600_000)), "document": document,
    }  # fmt: skip


def _crashed(life: Life, at: Any, rows: Traffic, after_ms: int, down_ms: int, document: Document | None) -> None:
    life.job.crash(at)
    life.offer(rows)
    life.trigger(after_ms)
    if document is not None:
        life.set_policies(document)
    life.restart(down_ms)


def _restart(d: Drawing) -> dict[str, Any]:
    return {"down_ms": d.rng.choice((0, 1_000, 3_600_000)), "jump_ms": d.rng.choice((0, 0, *JUMPS_MS))}


def _restarted(life: Life, down_ms: int, jump_ms: int) -> None:
    life.job.stop()
    life.set_clock(jump_ms)
    life.restart(down_ms)


def _move(d: Drawing) -> dict[str, Any]:
    """Draw moves between a few machines, for the same ones come back."""
    machines = []
    for name in ("one", "two"):
        up_ms = d.rng.choice((0, 1_000, 10**9))
        machines.append({"boot": f"{name}, {up_ms}", "ahead_ms": d.rng.choice((0, 0, *JUMPS_MS)), "up_ms": up_ms})
    return {
        "machines": machines * d.rng.randint(1, 3), "rows": d.rows(20), "triggers": d.rng.choice((1, 3, 10)),
        "down_ms": d.rng.choice((0, 1_000, 1_000, 3_600_000)),
    }  # fmt: skip


def _moved(life: Life, machines: list[dict[str, Any]], rows: Traffic, triggers: int, down_ms: int) -> None:
    """Let the job fail over from one machine to another, and back."""
    for machine in machines:
        life.move(SimulatedMachine(**machine), down_ms)
        for _ in range(triggers):
            life.offer(rows)
            life.trigger(1_000)


def _starts_or_is_restored(life: Life, backup: Backup) -> None:
    """Start the job; one that refuses is put back to a backup."""
    try:
        life.restart(1_000, may_refuse=True)
        life.trigger(1_000, may_refuse=True)
    except ThrottleError:
        life.restore(backup)


def _put_back(d: Drawing) -> dict[str, Any]:
    return {"batches": d.rng.randint(1, 4), "rows": d.rows(5)}


def _was_put_back(life: Life, batches: int, rows: Traffic) -> None:
    """Put the checkpoint back; a job that refuses to go on so gets its newest checkpoint again."""
    backup = life.backup()
    life.job.put_back(batches)
    life.forget()
    life.offer(rows)
    _starts_or_is_restored(life, backup)


def _undo(d: Drawing) -> dict[str, Any]:
    """Draw a message that overdraws, and batches that are undone while its debt is repaid."""
    name, rows = d.rng.choice(d.names), d.rows(30)
    if d.rng.random() < 0.6:
        d.document = policies.common_group(d.rng, d.document)
    return {
        "document": d.document, "first": [(name, d.rng.choice((1, 60_000, 1_000_000)), 1), *rows],
        "before": d.rng.choice((1, 1, 2)), "rows": d.rows(5), "batches": d.rng.choice((1, 3, 4, 10)),
        "other": d.next_policy() if d.rng.random() < 0.2 else None, "with_control": d.rng.random() < 0.2,
        "triggers": d.rng.choice((1, 5, 20)),
    }  # fmt: skip


def _undone(life: Life, document: Document, first: Traffic, before: int, triggers: int, **undone: Any) -> None:
    """Put checkpoint and sinks back by some batches."""
    life.set_policies(document)
    life.offer(first)
    for _ in range(before):
        life.trigger(1_000)
    if life.job.checkpoint.log:
        _undo_batches(life, **undone)
    for _ in range(triggers):
        life.trigger(1_000)


def _undo_batches(life: Life, rows: Traffic, batches: int, other: Document | None, with_control: bool) -> None:
    """Run batches, and put checkpoint and sinks back; the control directory goes back too, or stays."""
    backup, unpaid_ms, overpaid_ms = life.backup(), life.world.unpaid_ms, life.world.overpaid_ms
    if other is not None:
        life.set_policies(other)
    for _ in range(batches):
        life.offer(rows)
        life.trigger(1_000)
    if not with_control:
        backup.checkpoint.control = dict(life.job.checkpoint.control)
    life.restore(backup)
    life.world.unpaid_ms, life.world.overpaid_ms = unpaid_ms, overpaid_ms


def _lose_control(d: Drawing) -> dict[str, Any]:
    return {}


def _lost_control(life: Life) -> None:
    """Restore a checkpoint without its control directory: that is refused, and the directory is then found again."""
    backup = life.backup()
    life.job.lose_control()
    life.forget()
    _starts_or_is_restored(life, backup)


def _clone(d: Drawing) -> dict[str, Any]:
    return {"rows": d.rows(5)}


def _cloned(life: Life, rows: Traffic) -> None:
    """Start a copy of the job on the same sinks: one of the two is refused, before anything is lost or doubled.

    Where it is the job itself, the sinks are put back to before the copy, as the error says.
    """
    backup = life.backup()
    life.offer(rows)
    clone = life.job.clone()
    try:
        clone.restart()
        clone.trigger(0)
    except ThrottleError:
        return
    finally:
        clone.stop()
    life.offer(rows)
    batches = life.batches
    try:
        life.trigger(1_000, may_refuse=True)
    except ThrottleError:
        life.restore(backup)
    else:
        if life.batches == batches:  # nothing was left for a batch, and the next start will see what the copy wrote
            life.restore(backup)


def _twin(d: Drawing) -> dict[str, Any]:
    is_other_query = d.rng.random() < 0.3
    at = None if is_other_query or d.rng.random() < 0.3 else d.rng.choice(CRASH_POINTS)
    return {"is_other_query": is_other_query, "at": at, "rows": d.rows(20)}


def _twinned(life: Life, is_other_query: bool, at: Any, rows: Traffic) -> None:
    """Start a second run in the control directory of the first, which runs; one of the two is refused."""
    if life.job.is_down:
        life.restart(0)
    if is_other_query:
        _other_query(life, rows)
    else:
        _taken_over(life, at, rows)


def _taken_over(life: Life, at: Any, rows: Traffic) -> None:
    """Start the job again while the run before, held up in a batch or between two, is only taken for dead."""
    first = life.job

    def start_again() -> None:
        if life.job is first:
            life.note_planned()
            life.world.job = first.twin()
            life.restart(1_000)
            for _ in range(2):
                life.offer(rows)
                life.trigger(1_000)

    life.offer(rows)
    if at is not None:
        first.hold_up(at, start_again)
        _refuses(first)
        life.note_planned()
    start_again()
    for _ in range(3):
        life.offer(rows)
        before = dict(first.checkpoint.control)
        is_refused = first.is_down or _refuses(first)
        if first.checkpoint.control != before:
            raise Violation(TAKEOVER, "a run that was taken over wrote into the control directory")
        if is_refused:
            break
    else:
        raise Violation(TAKEOVER, "two runs of one query go on with one control directory")
    life.trigger(1_000)


def _other_query(life: Life, rows: Traffic) -> None:
    """Give another query the control path of this one: it is refused, or this one is; the other one goes on."""
    backup = life.backup()
    other = life.job.twin(is_other_query=True)
    is_refused = _refuses(other, is_start=True)
    are_we_refused = False
    for _ in range(3):
        other.offer([("acme/a", 1)] * 3)
        is_refused = is_refused or _refuses(other)
        life.offer(rows)
        try:
            if not are_we_refused:
                life.trigger(1_000, may_refuse=True)
        except ThrottleError:
            are_we_refused = True
    if is_refused == are_we_refused:
        who = "both" if is_refused else "neither"
        raise Violation(TAKEOVER, f"of two queries that were given one control directory, {who} were refused")
    other.stop()
    if are_we_refused:
        life.restore(backup)


def _refuses(job: SimulatedJob, *, is_start: bool = False) -> bool:
    """Return whether a run that is not the life's own is refused at its start, or in a batch."""
    try:
        if is_start:
            job.restart()
        else:
            job.trigger(1_000)
    except ThrottleError:
        return True
    return False


RULES_OF_RUNS: Final[dict[str, Rule]] = {
    "crash": (3, _crash, _crashed),
    "restart": (1, _restart, _restarted),
    "move": (1, _move, _moved),
    "put_back": (1, _put_back, _was_put_back),
    "undo": (2, _undo, _undone),
    "lose_control": (1, _lose_control, _lost_control),
    "clone": (1, _clone, _cloned),
    "twin": (1, _twin, _twinned),
}
"""The rules of runs, by name."""
