"""A job is one member of those that share quotas: that of its checkpoint, and never that of a copy of it.

Jobs that meet in an exchange take a process for the successor of another, which must be dead, if both name the same
*member*. A checkpoint that was copied is that of another job, whose original may be alive, and whatever the copy holds,
the original holds too. So a member's name is drawn when a job first shares, and bound to the directory that it was
drawn for: in any other directory, a copy, another is drawn. To the other jobs that is a new job. The share of the old
member is free a lease after its last report, if its job is dead; if it lives, both share.

The file that holds it, and its field, are named `seat`.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable
from typing import Final

from spark_throttle.files.storage import Directory

logger = logging.getLogger(__name__)

FORMAT: Final = 1
SEAT: Final = "seat.json"


def drawn_member() -> str:
    """Return a name that no other member has."""
    return uuid.uuid4().hex


def member_in(directory: Directory, draw: Callable[[], str] = drawn_member) -> str:
    """Return the member that the job is whose control directory this is.

    Parameters
    ----------
    draw
        Returns a name that no other member has, where this directory has none.
    """
    place, content = directory.place(), directory.read(SEAT)
    member = None if content is None else _bound(content, place)
    if member is not None:
        return member
    member = draw()
    if content is not None:
        logger.warning(
            "exchange: %s is a copy, or was moved: the job shares as a new member, %s; the share of the old member is "
            "free a lease after its last report",
            directory.location, member,
        )  # fmt: skip
    directory.write(SEAT, json.dumps({"format": FORMAT, "seat": member, "place": place}, indent=1).encode())
    return member


def drawn_run() -> int:
    """Return random bits that identify a start of a job, between 1 and 2**62."""
    return uuid.uuid4().int >> 66 | 1


def _bound(content: bytes, place: str) -> str | None:
    """Return the member if it was drawn for `place`; `None` if it was not, or cannot be read: a new one is safe."""
    try:
        fields = json.loads(content)
        is_bound = fields["format"] == FORMAT and fields["place"] == place
        return str(fields["seat"]) if is_bound else None
    except (ValueError, KeyError, TypeError):
        return None
