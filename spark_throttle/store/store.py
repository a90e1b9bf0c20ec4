"""Policy stores: where policies live between the jobs that follow them and the people who change them.

A store holds *entries*: one for each resource group, tenant, namespace (or glob of namespaces) and exemption, and one
for each of the defaults, the job and the queue. A change of some entries is one *commit*, and commits are numbered
without gaps: 1, 2, 3, … is the *revision* of the whole store, and the revision of an entry is that of the commit that
last wrote it. What a store promises, and `spark_throttle.testing.store_suite` tests of each:

* a commit is made whole or not at all, and only on the revision that its author has seen;
* what was committed stays readable: every revision's entries, and who made it, when and why;
* after an error the caller knows whether the change was made, or is told that nobody does
  (`OutcomeUnknownError`).

A store checks nothing of what a policy says: `service.PolicyService` does, and everybody who changes policies goes
through it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, get_args

from spark_throttle.errors import NotFoundError

Kind: TypeAlias = Literal["resource_group", "tenant", "namespace", "exempt", "defaults", "job", "queue"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SINGLE_KINDS: Final[frozenset[Kind]] = frozenset({"defaults", "job", "queue"})
"""Kinds of which there is one entry, whose name is empty."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit does to one entry."""

    kind: Kind
    name: str
    """Empty for the kinds of which there is one."""

    body: str | None
    """JSON of what the policy says (`entries.body_of`); `None` removes the entry."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as a revision of the store has it."""

    kind: Kind
    name: str
    body: str | None
    """`None` where the commit removed it; only `PolicyStore.changed` returns such entries."""

    revision: int
    """Of the commit that wrote it."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change, and why."""

    who: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Revision:
    """What is known of one commit beside the entries that it wrote."""

    revision: int
    at_ms: int
    """The wall clock of its author."""

    who: str
    why: str
    changes: int
    """How many entries it wrote or removed."""


class PolicyStore(Protocol):
    """What every store can do; safe for use by several threads, and by several processes at once.

    Each call sees the newest revision, unless `at` names another. Every call may raise `StoreUnavailableError`.
    """

    @property
    def location(self) -> str:
        """How messages name the store."""

    def revision(self) -> int:
        """Return the newest revision, 0 before the first commit; cheap while nothing changes."""

    def get(self, kind: Kind, name: str, *, at: int | None = None) -> Entry | None:
        """Return an entry, or `None` where there is none."""

    def page(
        self, kind: Kind, *, after: str = "", limit: int = 100, at: int | None = None, resource_group: str | None = None
    ) -> list[Entry]:
        """Return the entries of a kind whose names follow `after`, at most `limit`, in the order of their utf-8 bytes.

        Parameters
        ----------
        resource_group
            Only those that are attached to it.
        """

    def scan(self, *, at: int | None = None) -> Iterator[Entry]:
        """Yield every entry: kinds in the order of `KINDS`, names in the order of their utf-8 bytes."""

    def changed(self, *, after: int, until: int) -> Iterator[Entry]:
        """Yield what the commits after revision `after` up to `until` wrote, in the order of the commits."""

    def history(self, *, before: int | None = None, limit: int = 20) -> list[Revision]:
        """Return the newest commits, newest first; of those before revision `before`, if it is given."""

    def turn(self) -> AbstractContextManager[None]:
        """Return a context in which other authors who ask for a turn wait, where the store can make them.

        It spares lost races, and nothing rests on it: `commit` alone keeps changes from being lost.
        """

    def commit(self, changes: Sequence[Change], *, expected_revision: int, author: Author, at_ms: int) -> int:
        """Write or remove entries, and return the new revision.

        Parameters
        ----------
        expected_revision
            The newest revision that the author has seen.

        Raises
        ------
        ConflictError
            If it is not the newest any more; nothing was changed.
        OutcomeUnknownError
            If the store did not answer: the commit may have happened.
        """


def check_revision(at: int | None, newest: int) -> int:
    """Return the revision to read.

    Raises
    ------
    NotFoundError
        If there is no such revision.
    """
    if at is None:
        return newest
    if not 0 <= at <= newest:
        raise NotFoundError("revision", str(at), f"; the newest is {newest}")
    return at
