"""Changes of a store, one after another: each is planned on the newest revision, and again if another comes first."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from spark_throttle.errors import ConfigurationError, ConflictError, NotFoundError, ThrottleError
from spark_throttle.store.checks.limit_changes import Loss
from spark_throttle.store.entries import path_of
from spark_throttle.store.store import Author, Change, PolicyStore, change_to, check_wanted, while_wanted

MOST_ATTEMPTS: Final = 200
"""Number of lost races after which a change is given up; each time another author's change was made."""

_LONGEST_PAUSE_SECONDS: Final = 0.1


MOST_MADE: Final = 20
"""Number of entries of which the outcome of a change keeps what they said before and say after it."""


@dataclass(frozen=True, slots=True)
class MadeChange:
    """One entry before and after a change: its JSON; `None` where it does not exist."""

    path: str
    """Path of the entry in a document."""

    before: str | None
    after: str | None

    given_after: str | None = None
    """`store.Entry.given` after the change."""


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of a change."""

    revision: int
    """The store's revision after the change; also the entry's if `is_changed`."""

    is_changed: bool
    """Whether anything was committed; false if the store already said the same."""

    notes: tuple[str, ...] = ()
    """Effects of the change that its author may not expect from its text."""

    made: tuple[MadeChange, ...] = field(default=(), compare=False)
    """The first `MOST_MADE` entries that were changed."""

    left_out: int = field(default=0, compare=False)
    """How many more entries were changed."""

    losses: tuple[Loss, ...] = field(default=(), compare=False)
    """What the change costs (`protection`), where it was tried and not made: else it would not have been made without
    its author's word."""


class ChangeRecorder(Protocol):
    """Is told what becomes of changes."""

    def begin(self) -> None:
        """Raise an error if a change could not be recorded; it is not made then."""

    def end(self, author: Author, changes: Sequence[Change], outcome: CommitResult | ThrottleError) -> None:
        """Record the outcome of a change."""


class Committer:
    """Makes changes on exactly the revision that they were planned on; safe for use by several threads.

    Parameters
    ----------
    is_dry_run
        Whether changes are planned and not made.
    """

    def __init__(
        self,
        store: PolicyStore,
        clock_ms: Callable[[], int],
        pause: Callable[[float], object],
        recorder: ChangeRecorder | None = None,
        *,
        is_dry_run: bool = False,
    ) -> None:
        self._store = store
        self._is_dry_run = is_dry_run
        self._clock_ms = clock_ms
        self._pause = pause
        self._recorder = recorder
        self._random = random.Random()  # noqa: S311 - spreads attempts; no decision depends on it

    def commit(
        self, plan: Callable[[int], list[Change]], author: Author, planned: Sequence[Change] = ()
    ) -> CommitResult:
        """Commit the changes that `plan` returns for the newest revision; plan again if another change comes first.

        Parameters
        ----------
        planned
            What is recorded of the changes; `plan` may fill it before it refuses them.
        """
        if self._recorder is None:
            return self._commit(plan, author)
        self._recorder.begin()
        try:
            made = self._commit(plan, author)
        except ThrottleError as error:
            self._recorder.end(author, planned, error)
            raise
        self._recorder.end(author, planned, made)
        return made

    def _commit(self, plan: Callable[[int], list[Change]], author: Author) -> CommitResult:
        _check_author(author)
        attempt = 0
        while True:
            with self._store.turn():
                self._store.check_whole()
                revision = self._store.revision()
                try:
                    changes, before = self._planned(plan, revision)
                except _OvertakenError as error:
                    attempt += 1
                    if attempt >= MOST_ATTEMPTS:
                        what = f"the policy store {self._store.location}"
                        raise ConflictError(what, revision, self._store.revision()) from error
                    continue
                if changes == before:
                    return CommitResult(revision, is_changed=False)
                made = tuple(
                    MadeChange(path_of(*change.key), was.body, change.body, change.given)
                    for change, was in zip(changes, before, strict=False)
                )
                if self._is_dry_run:
                    return CommitResult(revision, is_changed=True, made=made, left_out=len(changes) - len(made))
                at_ms = self._clock_ms()
                check_wanted()
                try:
                    with while_wanted():
                        after = self._store.commit(changes, expected_revision=revision, author=author, at_ms=at_ms)
                    return CommitResult(after, is_changed=True, made=made, left_out=len(changes) - len(made))
                except ConflictError:
                    attempt += 1
                    if attempt >= MOST_ATTEMPTS:
                        raise
            self._pause(self._random.random() * min(_LONGEST_PAUSE_SECONDS, 0.002 * 2 ** min(attempt, 8)))

    def _planned(self, plan: Callable[[int], list[Change]], revision: int) -> tuple[list[Change], list[Change]]:
        """Return what is planned on a revision, and what its first entries are there."""
        generation = self._store.generation
        try:
            changes = plan(revision)
            keys = [change.key for change in changes[:MOST_MADE]]
            found = self._store.find(keys, at=revision)
        except NotFoundError as error:
            if self._store.generation == generation:
                raise
            raise _OvertakenError from error
        if self._store.generation != generation:
            raise _OvertakenError
        return changes, [change_to(key, found.get(key)) for key in keys]


class _OvertakenError(Exception):
    """A backup was put back while a change was planned: the revisions that were read are not of one history."""


def _check_author(author: Author) -> None:
    if not author.who:
        raise ConfigurationError("a change needs its author: say who makes it")
    for what, text in (("author", author.who), ("reason", author.why)):
        try:
            text.encode()
        except UnicodeEncodeError:
            # As a command's argument has it that is not in the system's encoding.
            raise ConfigurationError(
                f"the {what} of a change, {text!r}, holds half of a surrogate pair, which UTF-8 cannot encode; write "
                f"it in UTF-8"
            ) from None
