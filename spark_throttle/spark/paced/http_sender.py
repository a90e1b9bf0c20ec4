"""Rows over HTTP: one POST per call, with the call's key in a header, over connections that are kept.

A task opens its connections once. A request that failed without an answer, or was answered with a status that says "not
now", is made again, with the same key and the same bytes, up to `attempts` times; every other answer but a success ends
the batch.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from spark_throttle.errors import ConfigurationError, DeliveryError
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.sending import Rows, Send

if TYPE_CHECKING:
    import httpx

KEY_HEADER: Final = "Idempotency-Key"

_NOT_NOW: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class HttpSender:
    """A sender for `ThrottledStreamWriter.paced` that posts the rows of a call as a JSON array.

    Bytes are sent in base64, times in ISO 8601, decimals as text. Needs the extra ``paced`` (httpx).

    Parameters
    ----------
    url
        Where the rows go.
    headers
        Headers of every request, such as ``Authorization``.
    timeout_seconds
        The longest time for each phase of a request: to connect, to send, to receive.
    attempts
        How often a call is tried, the first time included. The pauses between double, from 100 ms to 5 s.

    Raises
    ------
    ConfigurationError
        If a number is too small, or httpx is not installed.

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
        except ImportError as error:
            raise ConfigurationError("HttpSender needs httpx: install spark-throttle[paced]") from error
        if not self.url.startswith(("http://", "https://")):
            raise ConfigurationError(f"url is {self.url!r}; give one that begins with http:// or https://")
        if self.attempts < 1:
            raise ConfigurationError(f"attempts is {self.attempts}; give a number from 1 on")
        if not self.timeout_seconds > 0:
            raise ConfigurationError(f"timeout_seconds is {self.timeout_seconds}; give a number above 0")

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
        pause_seconds = _FIRST_PAUSE_SECONDS
        for attempt in range(1, self.attempts + 1):
            problem, is_final = await self._try(client, body, key)
            if problem is None:
                return
            if is_final or attempt == self.attempts:
                raise DeliveryError(self.url, key, problem, attempt)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, _LONGEST_PAUSE_SECONDS)

    async def _try(self, client: httpx.AsyncClient, body: bytes, key: str) -> tuple[str | None, bool]:
        """Return what went wrong, if anything, and whether to try again is in vain."""
        import httpx

        try:
            answer = await client.post(self.url, content=body, headers={KEY_HEADER: key})
        except httpx.TransportError as error:
            return f"no answer ({type(error).__name__})", False
        if answer.is_success:
            return None, False
        return f"it answered {answer.status_code}", answer.status_code not in _NOT_NOW


def encoded(rows: Rows) -> bytes:
    """Return rows as JSON: the same bytes for the same rows.

    Examples
    --------
    >>> encoded([{"id": 1, "value": b"x", "at": date(2026, 1, 2)}])
    b'[{"id":1,"value":"eA==","at":"2026-01-02"}]'
    """
    return json.dumps(rows, separators=(",", ":"), default=_plain, ensure_ascii=False).encode()


def _plain(value: Any) -> str:  # noqa: ANN401 - what Arrow makes of a column
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, date | datetime) else str(value)
