"""A job's seat among those that share quotas: the seat of its checkpoint, and never that of a copy of it.

Jobs that meet in an exchange take a process for the successor of another, which must be dead, if both name the same
*seat*. A checkpoint that was cloned names the seat of the original, and the original may be alive. So the seat is bound
to the directory that it was drawn for: in any other directory, a copy, another seat is drawn. To the other jobs that is
a new job. The share of the old seat is free a lease after its last report, if its job is dead; if it lives, both share.
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
    """Return the seat of the job whose control directory this is; the directory holds its manifest.

    Parameters
    ----------
    query
        The query in the manifest, after which the first seat of a query is named.
    """
    place, content = directory.place(), directory.read(_NAME)
    seat = query if content is None else _bound(content, place)
    if seat is None:
        seat = uuid.uuid4().hex
        logger.warning(
            "exchange: %s is a copy, or was moved: the job shares from a new seat, %s; the share of the old seat is "
            "free a lease after its last report",
            directory.location, seat,
        )  # fmt: skip
    elif content is not None:
        return seat
    directory.write(_NAME, json.dumps({"format": FORMAT, "seat": seat, "place": place}, indent=1).encode())
    return seat


def drawn_run() -> int:
    """Return random bits that identify a start of a job, between 1 and 2**62."""
    return uuid.uuid4().int >> 66 | 1


def _bound(content: bytes, place: str) -> str | None:
    """Return the seat if it was drawn for `place`; `None` if it was not, or cannot be read: a new seat is safe."""
    try:
        fields = json.loads(content)
        is_bound = fields["format"] == FORMAT and fields["place"] == place
        return str(fields["seat"]) if is_bound else None
    except (ValueError, KeyError, TypeError):
        return None
