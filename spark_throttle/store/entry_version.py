"""What a caller has read of an entry, so that a change of it can be conditional on nobody having changed it since.

The revision that wrote an entry is no such thing by itself: a store that is restored from a backup gives the numbers
that follow the backup a second time, to other contents. So a version names both. After a restore it still fits exactly
the entries that are as the caller has read them, whichever process is asked, and nothing has to be stored for it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_throttle.errors import ConflictError
from spark_throttle.store.store import SINGLE_KINDS, Entry, Kind

_ABSENT: Final = "{}"
_DIGEST_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class EntryVersion:
    """The revision that wrote an entry, and what it wrote.

    Examples
    --------
    >>> EntryVersion.of(3, '{"locked":true}', given=None)
    EntryVersion(revision=3, contents='a8756ee0267e15a8')
    """

    revision: int
    """0 for an entry that nobody has written."""

    contents: str
    """A digest of the entry's body, and of whether a tenant's administrator wrote it; 16 hexadecimal digits."""

    @classmethod
    def of(cls, revision: int, body: str | None, *, given: str | None) -> EntryVersion:
        """Return the version of an entry by the fields of `store.Entry`."""
        text = f"{'administrator' if given is None else 'tenant'} {body or _ABSENT}"
        return cls(revision, hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest())

    @property
    def etag(self) -> str:
        """The version as an ETag of the API."""
        return f'"{self.revision}-{self.contents}"'


@dataclass(frozen=True, slots=True)
class AnyVersion:
    """The condition that an entry is there, whatever it says; `defaults`, `job` and `queue` always are."""


@dataclass(frozen=True, slots=True)
class NoVersion:
    """A condition that no entry fits.

    Parameters
    ----------
    mismatch
        Why; it follows the name of the entry.
    """

    mismatch: str


Expected: TypeAlias = "int | EntryVersion | tuple[EntryVersion, ...] | AnyVersion | NoVersion | None"
"""The condition of a change of an entry: a version that the caller has read, or one of several; a revision, which is
all that a person gives, and 0 for an entry that must not exist; that it is there; `None` for no condition."""


def check_expected(kind: Kind, name: str, expected: Expected, entry: Entry | None) -> None:
    """Refuse a change of an entry that is not as its author expects it.

    It is judged where the change is planned, on the revision that the change is committed on.

    Raises
    ------
    ConflictError
        If it is at another revision, has other contents at the same one, or is not there.
    """
    if expected is None:
        return
    found = entry.revision if entry is not None else 0
    what = f"{kind.replace('_', ' ')} {name}".strip()
    if isinstance(expected, AnyVersion):
        if entry is None and kind not in SINGLE_KINDS:
            raise ConflictError(what, None, 0, is_entry=True)
        return
    if isinstance(expected, NoVersion):
        raise ConflictError(what, None, found, is_entry=True, mismatch=expected.mismatch)
    if isinstance(expected, tuple):
        if _version_of(entry) not in expected:
            mismatch = f" is at none of the {len(expected)} versions that the change was made for"
            raise ConflictError(what, None, found, is_entry=True, mismatch=mismatch)
        return
    revision = expected.revision if isinstance(expected, EntryVersion) else expected
    if revision != found:
        raise ConflictError(what, revision, found, is_entry=True)
    if isinstance(expected, EntryVersion) and expected != _version_of(entry):
        mismatch = (
            f" has other contents at revision {found} than the change was made for; the store may have been restored "
            f"from a backup since, which gives revisions twice"
        )
        raise ConflictError(what, revision, found, is_entry=True, mismatch=mismatch)


def _version_of(entry: Entry | None) -> EntryVersion:
    if entry is None:
        return ABSENT_VERSION
    return EntryVersion.of(entry.revision, entry.body, given=entry.given)


ABSENT_VERSION: Final = EntryVersion.of(0, None, given=None)
"""The version of an entry that is not there, such as defaults that nobody has written."""
