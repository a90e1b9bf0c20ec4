"""A policy store that is followed while jobs run.

A revision committed before a batch is planned acts in that batch. A revision that cannot be applied, or a store that
cannot be reached, leaves the last good document in force: neither may stop a stream or lift its limits. The problem is
logged once, and every snapshot has it until it is fixed. How long a batch waits for a store that hangs is in
`policy.source`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from spark_throttle.errors import (
    ConfigurationError,
    NotFoundError,
    PolicyError,
    StoredFormatError,
    StoreUnavailableError,
)
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.policy.source import DocumentInForce, PolicySnapshot
from spark_throttle.store.entries import document_of
from spark_throttle.store.policy_location import open_store
from spark_throttle.store.store import PolicyStore

_NOTHING: Final = (-1, -1)
_MOST_RACES: Final = 10


class FollowedStore:
    """The policies of a store, read again when it has a new revision.

    While there is no new revision, `current` costs as much as `PolicyStore.revision` and returns the same object. Not
    safe for use by several threads at once.

    Parameters
    ----------
    location
        A location that `open_store` takes.
    open_at
        Opens the store at a location.
    """

    def __init__(self, location: str, *, open_at: Callable[[str], PolicyStore] = open_store) -> None:
        self.location = location
        self._open_at = open_at
        self._store: PolicyStore | None = None
        self._examined = _NOTHING
        """The store's generation and its revision, when it was last read whole."""

        self._kept = DocumentInForce(location)

    def current(self) -> PolicySnapshot:
        """Return the last good document, and what is wrong with the newest revision, if anything.

        Raises
        ------
        StoreUnavailableError
            If the store cannot be read and never could be.
        ConfigurationError
            If there never was a policy store at the location.
        PolicyError
            If the newest revision cannot be applied and no earlier one that was read could.
        """
        examined, last = _NOTHING, self._kept.snapshot
        try:
            # Opened again after a failure: the store may have been deleted, or replaced by another.
            store = self._store = self._store or self._open_at(self.location)
            examined = _newest(store)
            if last is not None and examined == self._examined:
                return last
            examined, document = self._read(store)
        except (StoreUnavailableError, ConfigurationError) as error:
            self._store, self._examined = None, _NOTHING
            if last is None:
                raise
            return self._kept.keep(last, str(error))
        except (PolicyError, StoredFormatError) as error:
            if last is None:
                raise
            self._examined = examined
            return self._kept.keep(last, f"the newest revision of {self.location} cannot be applied: {error}")
        self._examined = examined
        return self._kept.accept(PolicySnapshot(document, revision_of(document), None, examined[1]))

    def _read(self, store: PolicyStore) -> tuple[tuple[int, int], PolicyDocument]:
        """Return the newest document, and what `_newest` says of it."""
        for _ in range(_MOST_RACES):
            examined = _newest(store)
            with suppress(NotFoundError):  # a backup was put back meanwhile, which has fewer revisions
                document = document_of(store.scan(at=examined[1]), what=self.location)
                if store.generation == examined[0]:  # else the revisions of this number are others
                    return examined, document
        raise StoreUnavailableError(self.location, "backups are put back all the time; find out who does that")


def _newest(store: PolicyStore) -> tuple[int, int]:
    """Return a store's generation and its newest revision: after a restore other commits have the same numbers."""
    revision = store.revision()
    return store.generation, revision
