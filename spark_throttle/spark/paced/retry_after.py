"""The header ``Retry-After`` of an HTTP answer (RFC 9110, 10.2.3): so many seconds, or a date.

A date is a time by the destination's clock. So it is compared with the answer's own ``Date``, and with this machine's
clock only where the answer has none. What is no number and no date says nothing. More than a day is a day: so an answer
cannot close a destination for good. Where a destination asks for no time, pauses double between two bounds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

LONGEST_ASKED_SECONDS: Final = 86_400.0
"""A destination that asks for longer is asked again after a day."""

FIRST_PAUSE_SECONDS: Final = 0.1
LONGEST_PAUSE_SECONDS: Final = 5.0


def wall_ms() -> int:
    """Return the wall-clock time, which is the same for all who are asked to wait."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - what a destination asks for holds across processes


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that an answer asks to wait, 0 for a date that is over; `None` if it does not ask.

    Parameters
    ----------
    headers
        The answer's, with names in small letters.

    Examples
    --------
    >>> retry_after_seconds({"retry-after": "120"})
    120.0
    >>> date, later = "Fri, 02 Jan 2026 10:00:00 GMT", "Fri, 02 Jan 2026 10:00:30 GMT"
    >>> retry_after_seconds({"date": date, "retry-after": later})
    30.0
    >>> retry_after_seconds({"retry-after": "soon"}) is None
    True
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_ASKED_SECONDS)
    until = _date(text)
    if until is None:
        return None
    now = _date(headers.get("date", "")) or datetime.fromtimestamp(time.time(), UTC)  # noqa: TID251 - a date is compared
    return min(max(0.0, (until - now).total_seconds()), LONGEST_ASKED_SECONDS)


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
