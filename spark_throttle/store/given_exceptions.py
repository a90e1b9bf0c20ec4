"""Exceptions as people see them: which are in force, which have ended, and which revision gave or took each.

An exception ends by itself: nobody writes its end, so no revision has it. The revision that gave it says when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from spark_throttle.policy.quotas import ExceptionPolicy
from spark_throttle.store.entries import exception_of, path_of, values_of
from spark_throttle.store.store import Entry, Key, Kind, PolicyStore, Revision

State: TypeAlias = Literal["in_force", "ended"]
Done: TypeAlias = Literal["given", "taken back", "removed after its end", "reworded"]


def state_of(exception: ExceptionPolicy, now_ms: int) -> State:
    """Return whether an exception is in force."""
    return "in_force" if now_ms < exception.until_ms else "ended"


@dataclass(frozen=True, slots=True)
class GivenException:
    """The exception of one entry."""

    kind: Kind
    name: str
    path: str
    """The path of the entry in a document."""

    state: State
    until: str
    until_ms: int
    reason: str
    sets: dict[str, Any]
    """What it sets of `publish` and `dispatch`."""

    revision: int
    """Revision of the commit that wrote the entry."""


def given_exceptions(entries: Iterable[Entry], now_ms: int) -> list[GivenException]:
    """Return the exceptions of entries: those in force, the first to end in front; then the ended, the last in front.

    Examples
    --------
    >>> until = '{"exception":{"until":"1970-01-01T00:00:0%dZ","reason":"a move","publish":{"weight":2}}}'
    >>> entries = [Entry("tenant", name, until % end, 1) for name, end in (("a", 9), ("b", 3), ("c", 8), ("d", 4))]
    >>> [(each.name, each.state) for each in given_exceptions(entries, 5_000)]
    [('c', 'in_force'), ('a', 'in_force'), ('d', 'ended'), ('b', 'ended')]
    """
    found = []
    for entry in entries:
        exception = exception_of(entry.body)
        if exception is not None:
            sets = {key: part for key, part in values_of(exception).items() if key in ("publish", "dispatch")}
            made = GivenException(
                entry.kind, entry.name, path_of(*entry.key), state_of(exception, now_ms), exception.until,
                exception.until_ms, exception.reason, sets, entry.revision,
            )  # fmt: skip
            found.append(made)
    in_force = [each for each in found if each.state == "in_force"]
    ended = [each for each in found if each.state == "ended"]
    return sorted(in_force, key=lambda each: each.until_ms) + sorted(ended, key=lambda each: -each.until_ms)


@dataclass(frozen=True, slots=True)
class ExceptionChange:
    """What a revision did to the exception of one entry."""

    path: str
    done: Done
    until: str
    reason: str


def exception_changes(store: PolicyStore, revisions: Sequence[Revision]) -> dict[int, list[ExceptionChange]]:
    """Return what revisions that follow each other did to exceptions, by revision; two reads of the store tell it."""
    if not revisions:
        return {}
    at_ms = {each.revision: each.at_ms for each in revisions}
    before = min(at_ms) - 1
    written = list(store.changed(after=before, until=max(at_ms)))
    there = {key: exception_of(entry.body) for key, entry in store.find({e.key for e in written}, at=before).items()}
    found: dict[int, list[ExceptionChange]] = {}
    for entry in written:
        was, becomes = there.get(entry.key), exception_of(entry.body)
        there[entry.key] = becomes
        if was != becomes:
            found.setdefault(entry.revision, []).extend(_changes(entry.key, was, becomes, at_ms[entry.revision]))
    return found


def _changes(
    key: Key, was: ExceptionPolicy | None, becomes: ExceptionPolicy | None, at_ms: int
) -> Iterable[ExceptionChange]:
    if was is not None and becomes is not None and was == becomes.model_copy(update={"reason": was.reason}):
        yield ExceptionChange(path_of(*key), "reworded", becomes.until, becomes.reason)
        return
    if was is not None:
        done: Done = "taken back" if at_ms < was.until_ms else "removed after its end"
        yield ExceptionChange(path_of(*key), done, was.until, was.reason)
    if becomes is not None:
        yield ExceptionChange(path_of(*key), "given", becomes.until, becomes.reason)
