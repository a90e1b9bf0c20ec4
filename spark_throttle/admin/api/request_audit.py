"""The requests that the audit log has: every attempt to change something, and every request that is not permitted.

A change is refused while the log cannot be written. The line of a change is on the disk before the first byte of the
answer goes out.

What was done is always recorded. Refusals are bounded, for each caller and for all strangers together, because whoever
is refused could otherwise fill the disk; the next line tells how many were left out.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.types import Message, Scope, Send

from spark_throttle.admin.api.turns import MOST_CALLERS, RequestRates
from spark_throttle.admin.audit import NOTHING_CHANGED, AuditLog, Event, append_or_log, changes_of
from spark_throttle.admin.caller import Caller
from spark_throttle.admin.refusals import Outcome
from spark_throttle.store.committer import CommitResult
from spark_throttle.store.store import Door

REFUSALS_PER_SECOND: Final = 1
REFUSALS_AT_ONCE: Final = 60
"""Refusals of a caller that are recorded: so many at once, and so many per second after them."""

READING: Final = ("GET", "HEAD", "OPTIONS")
_STRANGERS: Final = ""
_NOT_PERMITTED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


def door_of(headers: Headers) -> Door:
    """Return the door of a request: the page, if a browser says that its own origin's page made it.

    It tells people where a change came from, and permits nothing: whoever holds a token can say either.
    """
    return "page" if headers.get("sec-fetch-site") == "same-origin" else "api"


class RequestAudit:
    """Records the requests of a server.

    Parameters
    ----------
    log
        Where to.
    clock_ms
        A clock that nobody sets, for the bound on refusals.
    """

    def __init__(self, log: AuditLog, *, clock_ms: Callable[[], int]) -> None:
        self._log = log
        self._rates = RequestRates(REFUSALS_PER_SECOND, burst_seconds=REFUSALS_AT_ONCE, clock_ms=clock_ms)
        self._lock = threading.Lock()
        self._omitted: OrderedDict[str, int] = OrderedDict()

    async def check(self) -> None:
        """Refuse a change that could not be recorded.

        Raises
        ------
        FileUnusableError
            If the log cannot be written.
        """
        await asyncio.to_thread(self._log.check)

    async def record(self, scope: Scope, status: int, detail: str) -> None:
        """Record the answer to a request, if it belongs in the log."""
        caller: Caller | None = scope["state"].get("caller")
        is_change = scope["method"] not in READING
        if not is_change and status not in _NOT_PERMITTED:
            return
        outcome = "unknown" if scope["state"].get("is_unknown") else _outcome(status, scope["state"])
        key = _STRANGERS if caller is None else caller.token_id
        if outcome in NOTHING_CHANGED and "revision" not in scope["state"] and self._rates.throttle_time_ms(key):
            with self._lock:
                self._omitted[key] = self._omitted.pop(key, 0) + 1
                if len(self._omitted) > MOST_CALLERS:
                    self._omitted.popitem(last=False)
            return
        with self._lock:
            omitted = self._omitted.pop(key, None)
        made: CommitResult | None = scope["state"].get("made")
        event = Event(
            door=scope["state"]["door"], caller=None if caller is None else caller.identity,
            who=None if caller is None else caller.name, role=None if caller is None else caller.role,
            tenant=None if caller is None else caller.tenant, source=str((scope["client"] or ("unknown",))[0]),
            proxy=scope["state"].get("proxy"), action=f"{scope['method']} {scope['path']}", outcome=outcome,
            status=status, detail=detail, why=_asked(scope, "why"), revision=scope["state"].get("revision"),
            omitted=omitted, changes=[] if made is None else changes_of(made.made),
            changes_left_out=None if made is None else made.left_out or None,
        )  # fmt: skip
        await asyncio.to_thread(append_or_log, self._log, event)

    def recorded(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that records the answer before it goes out."""
        begun: list[Message] = []

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)
                return
            if begun:
                start = begun.pop()
                detail = _detail(start["status"], message.get("body", b""), scope)
                await self.record(scope, start["status"], detail)
                await send(start)
            await send(message)

        return sent


def _outcome(status: int, state: Mapping[str, object]) -> Outcome:
    if status < 400:
        return "done" if "revision" in state else "unchanged"
    if status == HTTPStatus.GATEWAY_TIMEOUT:
        return "unknown"
    if status == HTTPStatus.PRECONDITION_REQUIRED:
        return "unconfirmed"
    return "failed" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "refused"


def _detail(status: int, body: bytes, scope: Scope) -> str:
    """Return the reason of a refusal: the one that the caller is not told, or what a problem document gives."""
    state: Mapping[str, object] = scope["state"]
    if status < 400:
        return "dry run" if "is_dry_run" in state else ""
    is_dry_run = _asked(scope, "dry_run").lower() not in ("", "false", "0", "no", "off")
    return ("dry run: " if is_dry_run else "") + _reason(status, body, state)


def _reason(status: int, body: bytes, state: Mapping[str, object]) -> str:
    if "reason" in state and status != HTTPStatus.TOO_MANY_REQUESTS:
        return str(state["reason"])
    try:
        said: Any = json.loads(body)
        return str(said["detail"])
    except (ValueError, KeyError, TypeError):
        return HTTPStatus(status).phrase


def _asked(scope: Scope, name: str) -> str:
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), errors="replace")
    return (query.get(name) or [""])[0]
