"""Rows over HTTP: one POST per call, with the call's key in a header, over connections that are kept.

A task opens its connections once. 429 and 503 are `Backpressure`, with the time that ``Retry-After`` asks for:
`sending` waits, and makes the call again. A request without an answer, or with another answer that may change, is made
again here, up to `attempts` times, and is `Backpressure` after that, or if that takes long: nobody else waits for it
then. Of such a request nobody knows whether it was taken, unless no connection was made. Every other answer but a
success ends the batch. Each attempt has the same key and the same bytes. Of an answer only the status and the headers
are looked at, and no more than `_MOST_ANSWER_BYTES` are read.

``Retry-After`` (RFC 9110, 10.2.3) is so many seconds, or a date: a time by the destination's clock. So it is compared
with the answer's own ``Date``, and with this machine's clock only where the answer has none. What is no number and no
date says nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from spark_throttle.errors import Backpressure, ConfigurationError, DeliveryError
from spark_throttle.spark.paced.calls import IdempotencyKey
from spark_throttle.spark.paced.gate import FIRST_PAUSE_SECONDS, LONGEST_ASKED_SECONDS, LONGEST_PAUSE_SECONDS
from spark_throttle.spark.paced.sending import Rows, Send

if TYPE_CHECKING:
    import httpx
    from tenacity import RetryCallState

KEY_HEADER: Final = "Idempotency-Key"

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_PUSHES_BACK: Final = frozenset((429, 503))
_MAY_CHANGE: Final = frozenset((408, 425, 500, 502, 504))
_PHASES: Final = 3
"""To connect, to send, to receive."""

_MOST_ANSWER_BYTES: Final = 65_536
"""A connection is kept if an answer is no longer."""


@dataclass(frozen=True, slots=True)
class HttpSender:
    """A sender for `ThrottledStreamWriter.paced` that posts the rows of a call as a JSON array.

    Bytes are sent in base64, times in ISO 8601, decimals as text, and what is no number as ``"NaN"``, ``"Infinity"`` or
    ``"-Infinity"``, as Spark's ``to_json`` does. Needs the extra ``paced`` (httpx, tenacity).

    Parameters
    ----------
    url
        Where the rows go.
    headers
        Headers of every request, such as ``Authorization``.
    timeout_seconds
        The longest time for each phase of a request: to connect, to send, to receive. A request takes at most three
        times as long.
    attempts
        How often a call is tried, the first time included, if it had no answer, or was answered with 408, 425, 500, 502
        or 504. The pauses between double, from 100 ms to 5 s, unless ``Retry-After`` asks for more. After that, after
        `timeout_seconds`, and where ``Retry-After`` asks for more than 5 s, the destination is treated as one that
        pushes back, as after 429 and 503.

    Raises
    ------
    ConfigurationError
        If the URL names no host, a number is too small, a header cannot be sent, or a package of the extra is not
        installed.

    Examples
    --------
    >>> HttpSender("https://api.example/events", attempts=3).attempts
    3
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 10.0
    attempts: int = 5

    def __post_init__(self) -> None:
        try:
            import httpx  # noqa: F401 - an extra
            import tenacity  # noqa: F401 - an extra
        except ImportError as error:
            raise ConfigurationError(
                f"HttpSender needs the package {error.name}: install spark-throttle[paced]"
            ) from error
        _check_url(self.url)
        _check_headers(self.headers)
        if type(self.attempts) is not int or self.attempts < 1:
            raise ConfigurationError(f"attempts is {self.attempts!r}; give a whole number from 1 on")
        if type(self.timeout_seconds) not in {int, float} or not 0 < self.timeout_seconds < math.inf:
            raise ConfigurationError(f"timeout_seconds is {self.timeout_seconds!r}; give a number above 0")

    def __repr__(self) -> str:
        """Return it without what may be secret: the headers, and the URL's user and query."""
        return (
            f"HttpSender(url={shown_url(self.url)!r}, timeout_seconds={self.timeout_seconds}, attempts={self.attempts})"
        )

    def opened(self) -> AbstractAsyncContextManager[Send]:
        """Return a context whose value sends over connections that are closed at its end."""
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Send]:
        import httpx

        # The calls in flight are bounded by whoever calls; here each has its connection.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        headers = {"Content-Type": "application/json", **self.headers}
        async with httpx.AsyncClient(headers=headers, limits=limits, timeout=self.timeout_seconds) as client:

            async def send(rows: Rows, key: IdempotencyKey) -> None:
                await self._post(client, encoded(rows), key.text)

            yield send

    async def _post(self, client: httpx.AsyncClient, body: bytes, key: str) -> None:
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, stop_after_delay

        tries = AsyncRetrying(
            retry=retry_if_exception_type(_NotYetError), wait=_pause_seconds,
            stop=stop_after_attempt(self.attempts) | stop_after_delay(self.timeout_seconds), reraise=True,
        )  # fmt: skip
        may_be_taken = False

        async def attempt() -> None:
            nonlocal may_be_taken
            try:
                await self._try(client, body, key)
            except _NotYetError as error:
                may_be_taken |= error.may_be_taken
                raise

        try:
            await tries(attempt)
        except _NotYetError as error:
            raise Backpressure(error.retry_after_seconds, problem=error.problem, may_be_taken=may_be_taken) from error
        except Backpressure as refusal:
            if not may_be_taken:
                raise
            raise Backpressure(refusal.retry_after_seconds, problem=refusal.problem, may_be_taken=True) from refusal

    async def _try(self, client: httpx.AsyncClient, body: bytes, key: str) -> None:
        import httpx

        try:
            async with asyncio.timeout(_PHASES * self.timeout_seconds):
                answer = await self._answer(client, body, key)
        except (httpx.TransportError, TimeoutError) as error:
            why = f"{type(error).__name__}: {error}".removesuffix(": ")
            is_made = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            problem = f"no answer ({why}) at {shown_url(self.url)}"
            raise _NotYetError(problem, None, may_be_taken=is_made) from error
        if answer.is_success:
            return
        problem = f"it answered {answer.status_code}"
        asked = retry_after_seconds(answer.headers)
        is_long = asked is not None and asked > LONGEST_PAUSE_SECONDS
        if answer.status_code in _PUSHES_BACK or (answer.status_code in _MAY_CHANGE and is_long):
            may_be_taken = answer.status_code in _MAY_CHANGE
            raise Backpressure(asked, problem=f"{problem} at {shown_url(self.url)}", may_be_taken=may_be_taken)
        if answer.status_code in _MAY_CHANGE:
            raise _NotYetError(f"{problem} at {shown_url(self.url)}", asked, may_be_taken=True)
        raise DeliveryError(shown_url(self.url), key, problem, 1)

    async def _answer(self, client: httpx.AsyncClient, body: bytes, key: str) -> httpx.Response:
        async with client.stream("POST", self.url, content=body, headers={KEY_HEADER: key}) as answer:
            size_bytes = 0
            async for chunk in answer.aiter_raw():
                size_bytes += len(chunk)
                if size_bytes > _MOST_ANSWER_BYTES:
                    break
        return answer


class _NotYetError(Exception):
    """A request failed in a way that may change."""

    def __init__(self, problem: str, retry_after_seconds: float | None, *, may_be_taken: bool) -> None:
        super().__init__(problem)
        self.may_be_taken = may_be_taken
        self.problem = problem
        self.retry_after_seconds = retry_after_seconds


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


def shown_url(url: str) -> str:
    """Return a URL without its user and its query, which may hold secrets.

    Examples
    --------
    >>> shown_url("https://me:secret@api.example:8443/events?key=secret")
    'https://api.example:8443/events'
    """
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _check_url(url: object) -> None:
    """Refuse what no request can be made to, which would look like a destination that does not answer."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        shown = repr(url) if "@" not in str(url) else "not one"
        raise ConfigurationError(f"url is {shown}; give one that begins with http:// or https://")
    try:
        parts = urlsplit(url)
        shown, is_whole = shown_url(url), bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port or of an address in brackets
        shown, is_whole = f"{url.partition('://')[0]}://…", False
    if not is_whole or not url.isprintable() or " " in url:
        raise ConfigurationError(
            f"url is {shown!r}; give one without spaces that names a host, such as https://api.example/x"
        )


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise ConfigurationError(f"headers is a {type(headers).__name__}; give a dictionary of names and values")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ConfigurationError(f"the header {name!r} is no text; give its name and its value as text")
        if not name:
            raise ConfigurationError("the header '' has no name; give it one")
        if not _HEADER_NAME.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise ConfigurationError(f"the header {name!r} has a character that no header may have; leave it out")
        if name.lower() == KEY_HEADER.lower():
            raise ConfigurationError(f"the header {name!r} is the call's key, which each call has; leave it out")


def _pause_seconds(state: RetryCallState) -> float:
    """Return how long to wait before the next attempt: twice the last pause, or what the destination asks for."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked = error.retry_after_seconds if isinstance(error, _NotYetError) else None
    return max(asked or 0.0, min(FIRST_PAUSE_SECONDS * 2.0 ** (state.attempt_number - 1), LONGEST_PAUSE_SECONDS))


def encoded(rows: Rows) -> bytes:
    """Return rows as JSON: the same bytes for the same rows.

    Examples
    --------
    >>> encoded([{"id": 1, "value": b"x", "at": date(2026, 1, 2)}])
    b'[{"id":1,"value":"eA==","at":"2026-01-02"}]'
    >>> encoded([{"mean": float("nan"), "most": [float("-inf")]}])
    b'[{"mean":"NaN","most":["-Infinity"]}]'
    """
    try:
        text = _dumped(rows)
    except ValueError:  # JSON has no word for some of the numbers
        text = _dumped(_worded(rows))
    return text.encode()


def _dumped(rows: Any) -> str:  # noqa: ANN401 - lists of dictionaries
    return json.dumps(rows, separators=(",", ":"), default=_plain, ensure_ascii=False, allow_nan=False)


def _worded(value: Any) -> Any:  # noqa: ANN401 - what Arrow makes of a column
    """Return a value with words in place of what is no number."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_worded(key): _worded(each) for key, each in value.items()}
    return [_worded(each) for each in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> str:  # noqa: ANN401 - what Arrow makes of a column
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | datetime) else str(value)
