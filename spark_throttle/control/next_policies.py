"""The policies that a job follows, as it notes them in its control directory whenever they change.

The note is for people and for `status`; no decision reads it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from spark_throttle.files.storage import Directory
from spark_throttle.files.typed_fields import short_text, whole_number
from spark_throttle.files.versioned_json import read_versioned, versioned

_NAME = "followed.json"
FORMAT = 1
_LONGEST_PROBLEM = 1_000_000


@dataclass(frozen=True, slots=True)
class NextPolicies:
    """The policies that the next batch is planned with."""

    revision: str
    """An id of the policies' content for the direction that the job enforces (`compile.revision_of`)."""

    store_revision: int | None
    """The store's revision; `None` where the job follows a file or a fixed document."""

    problem: str | None
    """Why the present content of the file or the store is not in force; `None` if it is."""


def write_next_policies(directory: Directory, followed: NextPolicies) -> None:
    """Write the policies that a job follows, over those noted before."""
    directory.write(_NAME, versioned(FORMAT, asdict(followed)))


def read_next_policies(directory: Directory) -> NextPolicies | None:
    """Return the policies that a job follows, or `None` before its first batch is planned."""
    return read_versioned(directory, _NAME, "the file", FORMAT, _parsed)


def _parsed(fields: dict[str, Any]) -> NextPolicies:
    return NextPolicies(
        short_text(fields, "revision"),
        None if fields["store_revision"] is None else whole_number(fields, "store_revision"),
        None if fields["problem"] is None else short_text(fields, "problem", most=_LONGEST_PROBLEM),
    )
