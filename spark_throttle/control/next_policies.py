"""The policies that a job follows, as it notes them in its control directory whenever they change.

The note is for people and for `status`; no decision reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from spark_throttle.files.storage import Directory, read_note
from spark_throttle.record import Count, Within, to_json

_NAME = "followed.json"


@dataclass(frozen=True, slots=True)
class NextPolicies:
    """The policies that the next batch is planned with."""

    revision: Annotated[str, Within(0, 1000)]
    """An id of the policies' content for the direction that the job enforces (`compile.revision_of`)."""

    store_revision: Count | None
    """The store's revision; `None` where the job follows a file or a fixed document."""

    problem: Annotated[str, Within(0, 1_000_000)] | None
    """Why the present content of the file or the store is not in force; `None` if it is."""


def write_next_policies(directory: Directory, followed: NextPolicies) -> None:
    """Write the policies that a job follows, over those noted before."""
    directory.write(_NAME, to_json(followed))


def read_next_policies(directory: Directory) -> NextPolicies | None:
    """Return the policies that a job follows, or `None` before its first batch is planned."""
    return read_note(directory, _NAME, NextPolicies, "the file")
