"""A policy store keeps policies between the jobs that follow them and the people who change them.

A store holds *entries*: one for each resource group, tenant, namespace (or glob of namespaces) and exemption, and one
for each of the defaults, the job and the queue. A change of some entries is one *commit*, and commits are numbered
without gaps: 1, 2, 3, … is the *revision* of the whole store, and the revision of an entry is that of the commit that
last wrote it. Every store makes these promises, and `spark_throttle.testing.store_suite` tests them:

* a commit is made whole or not at all, and only on the revision that its author has seen;
* what was committed stays readable: the entries of every revision, and who committed it, when and why;
* what administrators gave (`Change.given`) stays with the entry that a tenant's administrator wrote;
* after an error the caller knows whether the change was made, or is told that nobody knows
  (`OutcomeUnknownError`).

A store does not check the content of a policy: `service.PolicyService` does, and every change of a policy goes
through it.

Work on a store goes on only while somebody waits for its result. Who works for a caller says how to find out whether
that is so (`while_wanted`), for everything that the same thread or task does. What reads or judges many entries asks on
the way (`check_wanted`), and gives up where nobody waits. Nothing has been changed then: a commit is asked about before
it begins, and never while it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, get_args

from spark_throttle.errors import ConflictError, NotFoundError, UnwantedError

Kind: TypeAlias = Literal["resource_group", "tenant", "namespace", "exempt", "defaults", "job", "queue"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
SINGLE_KINDS: Final[frozenset[Kind]] = frozenset({"defaults", "job", "queue"})
"""Kinds that have a single entry, whose name is empty."""

Key: TypeAlias = tuple[Kind, str]
"""What names an entry in its store: its kind, and its name, which is empty for the kinds that have a single entry."""

MEMBER_KINDS: Final[tuple[Kind, ...]] = ("tenant", "namespace", "defaults")
"""Kinds whose entries may name a resource group."""


@dataclass(frozen=True, slots=True)
class Change:
    """A commit's change to one entry."""

    kind: Kind
    name: str
    """Name of the entry; empty for the kinds that have a single entry."""

    body: str | None
    """The policy as JSON (`entries.body_of`); `None` removes the entry."""

    given: str | None = None
    """`Entry.given` of the entry that is written."""

    @property
    def key(self) -> Key:
        """What names the entry in its store."""
        return self.kind, self.name


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry at one revision of the store."""

    kind: Kind
    name: str
    body: str | None
    """The policy as JSON; `None` if the commit removed the entry, which only `PolicyStore.changed` returns."""

    revision: int
    """Revision of the commit that wrote the entry."""

    given: str | None = None
    """What administrators wrote under this name before a tenant's administrator wrote the entry: the body, or `NOTHING`
    if they wrote none; `None` for an entry that administrators wrote."""

    @property
    def key(self) -> Key:
        """What names the entry in its store."""
        return self.kind, self.name


NOTHING: Final = ""
"""`Entry.given` of an entry that a tenant's administrator made."""


Door: TypeAlias = Literal["api", "page", "cli", "library", "hand"]
"""How a change came in: the admin API, its page, the command line, a program that uses this package, or an edit of the
file by hand."""


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a change, and the reason for it.

    `who` is what the author is called, and the command line lets its user choose it. `door` and `caller` are set by
    code that knows them, and nobody chooses them.
    """

    who: str
    why: str = ""

    tenant: str | None = None
    """The tenant whose administrator makes the change; `None` for an administrator. Only code that has authenticated
    the author sets it."""

    door: Door = "library"
    caller: str | None = None
    """What was authenticated: the token or the sign-in of a caller of the API, the system's user of the command line;
    `None` if nothing was."""
    is_confirmed: bool = True
    """Whether the author accepts what the change costs (`protection`). A caller that asks people sets it to what they
    have said."""


@dataclass(frozen=True, slots=True)
class Revision:
    """The facts of one commit, apart from the entries that it wrote."""

    revision: int
    at_ms: int
    """Time of the commit by its author's wall clock."""

    who: str
    why: str
    changes: int
    """Number of entries that the commit wrote or removed."""

    door: Door | None = None
    """`Author.door`; `None` for a commit of a release that did not keep it."""

    caller: str | None = None
    """`Author.caller`."""

    @classmethod
    def of(cls, number: int, at_ms: int, author: Author, changes: int) -> Revision:
        """Return the facts of an author's commit."""
        return cls(number, at_ms, author.who, author.why, changes, author.door, author.caller)


class PolicyStore(Protocol):
    """The interface of every store; safe for use by several threads, and by several processes at once.

    Each call reads the newest revision, unless `at` names another. Every call may raise `StoreUnavailableError`.
    """

    @property
    def location(self) -> str:
        """Name of the store in messages."""

    @property
    def generation(self) -> int:
        """How often the store has found, when it was read, that what it had read before is not there any more.

        Somebody may have restored a backup: then other commits have the same numbers, and what a caller has kept of the
        entries is wrong. No call reads the store for this.
        """

    def revision(self) -> int:
        """Return the newest revision, 0 before the first commit; cheap while nothing changes."""

    def get(self, kind: Kind, name: str, *, at: int | None = None) -> Entry | None:
        """Return an entry, or `None` if it does not exist."""

    def find(self, keys: Collection[Key], *, at: int | None = None) -> dict[Key, Entry]:
        """Return those of some entries that exist, in one read of the store however many they are."""

    def page(
        self, kind: Kind, *, after: str = "", limit: int = 100, at: int | None = None, resource_group: str | None = None
    ) -> list[Entry]:
        """Return at most `limit` entries of a kind whose names follow `after`, in the order of their UTF-8 bytes.

        Parameters
        ----------
        resource_group
            If given, return only entries that are attached to this group.
        """

    def scan(self, *, at: int | None = None) -> Iterator[Entry]:
        """Yield every entry: kinds in the order of `KINDS`, names in the order of their UTF-8 bytes."""

    def delegated(self, *, at: int | None = None) -> list[Entry]:
        """Return the namespaces' entries that tenants' administrators wrote (those with `Entry.given`), by name."""

    def changed(self, *, after: int, until: int) -> Iterator[Entry]:
        """Yield the entries that the commits after revision `after`, up to and including `until`, wrote, in order."""

    def history(self, *, before: int | None = None, limit: int = 20) -> list[Revision]:
        """Return the newest commits, newest first; if `before` is given, only commits before that revision."""

    def check_whole(self) -> None:
        """Refuse to go on with a store that has lost its history or its entries, though a revision can be read.

        Every change checks it first.

        Raises
        ------
        DamagedError
            If it has.
        """

    def turn(self) -> AbstractContextManager[None]:
        """Return a context in which other authors who ask for a turn wait, if the store can make them wait.

        It avoids lost races, but nothing depends on it: `commit` alone ensures that no change is lost.
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
            If it is no longer the newest; nothing was changed.
        OutcomeUnknownError
            If the store did not answer; the commit may have happened.
        """


def check_revision(at: int | None, newest: int) -> int:
    """Return the revision to read: `at`, or the newest if `at` is `None`.

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


def check_newest(store: PolicyStore, expected_revision: int | None, newest: int) -> None:
    """Refuse a change of a whole store that was made for another revision than its newest; `None` is for any.

    Raises
    ------
    ConflictError
        If they differ.
    """
    if expected_revision not in (None, newest):
        raise ConflictError(f"the policy store {store.location}", expected_revision, newest)


_ORDER: Final = {kind: place for place, kind in enumerate(KINDS)}


def differing(store: PolicyStore, before: int, after: int) -> list[tuple[Change, Change]]:
    """Return the entries that differ between two revisions, by kind and name: what makes them each of the two.

    The log between the revisions says which entries may differ, and what they are at the later one; one read says what
    they were at the earlier.

    Raises
    ------
    NotFoundError
        If a revision does not exist.
    """
    newest = store.revision()
    earlier, later = sorted(check_revision(at, newest) for at in (before, after))
    new = {entry.key: entry for entry in store.changed(after=earlier, until=later)}
    old = store.find(new, at=earlier)
    keys = sorted(new, key=lambda key: (_ORDER[key[0]], key[1]))
    pairs = ((change_to(key, old.get(key)), change_to(key, new[key])) for key in keys)
    return [pair if before == earlier else pair[::-1] for pair in pairs if pair[0] != pair[1]]


def change_to(key: Key, entry: Entry | None) -> Change:
    """Return the change that makes an entry what it is; `None` is for one that does not exist."""
    return Change(*key, None) if entry is None else Change(*key, entry.body, entry.given)


def _always() -> bool:
    return True


_is_wanted: ContextVar[Callable[[], bool]] = ContextVar("_is_wanted", default=_always)


@contextmanager
def while_wanted(is_wanted: Callable[[], bool] = _always) -> Iterator[None]:
    """Return a context in which work goes on only while `is_wanted` returns true; by default it always goes on.

    Examples
    --------
    >>> with while_wanted(lambda: False):
    ...     check_wanted()
    Traceback (most recent call last):
    ...
    spark_throttle.errors.UnwantedError: nobody waits any more for what takes so long, and nothing was changed; \
ask for less: a page, or fewer entries
    """
    token = _is_wanted.set(is_wanted)
    try:
        yield
    finally:
        _is_wanted.reset(token)


def check_wanted() -> None:
    """Give up what nobody waits for.

    Raises
    ------
    UnwantedError
        If the caller has left, or its time is up.
    """
    if not _is_wanted.get()():
        raise UnwantedError
