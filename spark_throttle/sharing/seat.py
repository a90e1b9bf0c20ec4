"""Whose place a job takes among those that share quotas: that of its checkpoint, and never that of a copy of it.

Jobs that meet in an exchange take a process for the follower of another, which must be dead, if both name one *seat*.
A checkpoint that was cloned names what the original does, and the original may be alive. So the seat is bound to the
directory that it was drawn for: in any other one, a copy, another is drawn. To the others that is a new job. What the
old one had is free a lease after its last report, if it is dead; if it lives, both share.
"""

from __future__ import annotations

import json
import logging
import uuid
from typing import Final

from spark_throttle.files.storage import Directory

logger = logging.getLogger(__name__)

FORMAT: Final = 1
_NAME: Final = "seat.json"


def seat_of(directory: Directory, query: str) -> str:
    """Return the seat of the job whose control directory this is, which holds its manifest.

    Parameters
    ----------
    query
        Of the manifest: the first seat of a query has its name.
    """
    place, content = directory.place(), directory.read(_NAME)
    seat = query if content is None else _bound(content, place)
    if seat is None:
        seat = uuid.uuid4().hex
        logger.warning(
            "exchange: %s is a copy, or was moved: the job shares from a new seat, %s; what the one before had is free "
            "a lease after its last report",
            directory.location, seat,
        )  # fmt: skip
    elif content is not None:
        return seat
    directory.write(_NAME, json.dumps({"format": FORMAT, "seat": seat, "place": place}, indent=1).encode())
    return seat


def drawn_run() -> int:
    """Return random bits that name a start of a job, between 1 and 2**62."""
    return uuid.uuid4().int >> 66 | 1


def _bound(content: bytes, place: str) -> str | None:
    """Return the seat if it was drawn for a place; `None` if it was not, or nobody can tell: a new one is safe."""
    try:
        fields = json.loads(content)
        is_bound = fields["format"] == FORMAT and fields["place"] == place
        return str(fields["seat"]) if is_bound else None
    except (ValueError, KeyError, TypeError):
        return None
