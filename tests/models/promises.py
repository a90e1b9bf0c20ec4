"""What every state of the models must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from tests.models.batch_states import State as JobState
from tests.models.batch_states import has_report, kept_of
from tests.models.lease_states import Run, State

Promise: TypeAlias = Callable[[Any, Any], bool]

_MOST_RETURNS: Final = 8

# ------------------------------------------------------------------------------------------------------------ batches


def none_doubled(_: Any, s: JobState) -> bool:
    rows = s.table.rows + s.letters.rows
    return len(rows) == len(set(rows))


def none_lost(_: Any, s: JobState) -> bool:
    committed = s.spark.committed
    end = s.spark.log[committed - 1].end if committed else 0
    return set(range(end)) <= {*s.table.rows, *s.letters.rows, *kept_of(s.spark, committed)}


def count_this_history(_: Any, s: JobState) -> bool:
    times = [(batch, each.time) for batch, each in enumerate(s.spark.log)]
    return all(each.epoch.counted <= set(times[:batch]) for batch, each in enumerate(s.spark.log))


def count_every_report(_: Any, s: JobState) -> bool:
    log, is_right = s.spark.log, True
    for batch, each in enumerate(log):
        if batch and each.epoch != log[batch - 1].epoch:
            told = {(before, log[before].time) for before in range(batch) if has_report(log, before)}
            is_right &= told <= each.epoch.counted | s.gone
    return is_right


_OF_STEPS: Final = (
    "two attempts decide the same", "only the owner writes", "who is refused takes over nothing",
    "a run begins where it was started", "a run begins behind no sink", "a query keeps its name",
    "epochs that are named are there", "changes of policy act in the next batch",
)  # fmt: skip


def _of_step(name: str) -> Promise:
    return lambda _, s: name not in s.wrong


OF_BATCHES: Final[dict[str, Promise]] = {
    "no row is doubled": none_doubled,
    "no row is lost": none_lost,
    "epochs count this history": count_this_history,
    "epochs count every report": count_every_report,
    **{name: _of_step(name) for name in _OF_STEPS},
}


# ------------------------------------------------------------------------------------------------------------- leases


def used(r: Run) -> int:
    """Return what a run uses: what it pinned while its lease lasts, then no more of that than its floor."""
    is_held = r.held_until is not None and r.clock < r.held_until
    return min(r.pinned, r.right if is_held else r.floor) if r.has_lapsed or not is_held else r.pinned


def within_quota(_: Any, s: State) -> bool:
    return sum(map(used, s.runs)) <= s.most_quota


def uses_what_it_claims(_: Any, s: State) -> bool:
    return all(used(r) <= min(each.claim for each in r.window) for r in s.runs)


def silent_part_returns(model: Any, s: State) -> bool:
    """A run that has just looked, alone since `dead_after`, leaves the silent no more than their floor, or nothing."""
    silent, times = dict(s.silent_since), model.times
    for r in s.runs:
        if r.looked is None or r.clock != r.looked or any(member not in silent for member, _ in r.peers):
            continue
        least = min(each.claim for each in r.window)
        since = max(silent.values(), default=0)
        waits = s.now - since - times.stale - (times.hold + times.margin)  # by its clock it may be a drift less
        if waits > times.margin and r.right < min(least, r.quota - times.most_kept(r.quota)):
            return False
        if waits > times.forget + times.margin and r.right < min(least, r.quota):
            return False
    return True


def told_go_beyond(_: Any, s: State) -> bool:
    return all(r.is_superseded or r.told[:2] <= (r.incarnation, r.id) for r in s.runs)


def owner_may_go_on(model: Any, s: State) -> bool:
    owners = {r.place: r.id for r in s.runs}  # the last that was started
    waits = [r for r in s.runs if r.is_superseded and owners[r.place] == r.id and r.last_yield <= _MOST_RETURNS]
    return all(model.go_on(s, r.id) is not None for r in waits)


def nobody_yields_to_a_copy(_: Any, s: State) -> bool:
    return all(r.member != other.member or r.place == other.place for r in s.runs for other in s.runs)


def unleased_time_is_unpaid(_: Any, s: State) -> bool:
    return not any(r.overpaid for r in s.runs)


OF_LEASES: Final[dict[str, Promise]] = {
    "the quota is kept": within_quota,
    "a run uses what all have seen it claim": uses_what_it_claims,
    "a silent part returns": silent_part_returns,
    "who is told of a greater mark goes beyond it or yields": told_go_beyond,
    "the owner of a checkpoint may go on": owner_may_go_on,
    "nobody yields to a copy": nobody_yields_to_a_copy,
    "time without a lease is not paid": unleased_time_is_unpaid,
}
