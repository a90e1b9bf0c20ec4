"""Checks before every call: who calls, how often, and with how large a body; and the headers of every answer.

A request without a valid token is answered before its body is read. Only the page's own files, the health check and
the API's description need no token: they hold nothing of anybody's policies.

A path is handed on as it was sent, with its segments still percent-encoded: if it were decoded as a whole, a name that
holds a slash would be taken for two segments (`addresses` decodes each segment by itself).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_throttle.admin.api.answers import problem
from spark_throttle.admin.api.request_rate import RequestRates
from spark_throttle.admin.tokens import ROLES, Caller, TokenFile

MOST_BODY_BYTES: Final = 64 * 1024
"""A policy entry has a few hundred bytes."""

OPEN_PATHS: Final = ("/", "/healthz", "/openapi.json")
OPEN_FOLDER: Final = "/page/"

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every answer: nothing is loaded from elsewhere, and nobody may frame the page."""

_ANYBODY: Final = ""
_READING: Final = ("GET", "HEAD")


class Gate:
    """ASGI middleware that authenticates callers, limits requests and sets the headers of every answer.

    Parameters
    ----------
    rates
        The rate limit of each token.
    anonymous_rates
        The rate limit shared by all requests without a valid token, which may be guesses.
    """

    def __init__(self, app: ASGIApp, tokens: TokenFile, rates: RequestRates, anonymous_rates: RequestRates) -> None:
        self._app = app
        self._tokens = tokens
        self._rates = rates
        self._anonymous_rates = anonymous_rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse one request, or hand it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        path = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
        scope = {**scope, "path": path}
        headers = Headers(scope=scope)
        is_open = path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
        send = _marked(send, is_kept=path.startswith(OPEN_FOLDER))
        caller = None if is_open else self._tokens.caller(_bearer(headers))
        refusal = None if is_open else self._refusal(caller, scope["method"], headers)
        if refusal is not None:
            await problem(*refusal[:2], headers=refusal[2])(scope, receive, send)
            return
        scope["state"] = {**scope.get("state", {}), "caller": caller}
        await self._app(scope, _bounded(receive), send)

    def _refusal(self, caller: Caller | None, method: str, headers: Headers) -> tuple[int, str, dict[str, str]] | None:
        rates = self._anonymous_rates if caller is None else self._rates
        wait_ms = rates.throttle_time_ms(_ANYBODY if caller is None else caller.token_id)
        if wait_ms:
            after = {"Retry-After": str(-(-wait_ms // 1000))}
            return 429, f"too many requests; the next one passes in {wait_ms} ms", after
        if caller is None:
            challenge = {"WWW-Authenticate": 'Bearer realm="spark-throttle"'}
            return 401, "there is no token, or it is unknown or has expired: send Authorization: Bearer …", challenge
        if caller.role not in ROLES:
            return 403, f"this release does not know the role {caller.role!r}, so it may do nothing", {}
        if caller.role == "viewer" and method not in _READING:
            return 403, "a viewer's token may only read; a change needs the role admin or tenant_admin", {}
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > MOST_BODY_BYTES:
            return 413, _TOO_LARGE, {}
        return None


_TOO_LARGE: Final = f"the body is larger than {MOST_BODY_BYTES} bytes; split the change, or use the command line"


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _bounded(receive: Receive) -> Receive:
    """Return a `receive` that stops at the bound, whatever length the request announced."""
    left_bytes = MOST_BODY_BYTES

    async def received() -> Message:
        nonlocal left_bytes
        message = await receive()
        left_bytes -= len(message.get("body", b""))
        if left_bytes < 0:
            raise HTTPException(413, _TOO_LARGE)
        return message

    return received


def _marked(send: Send, *, is_kept: bool) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers["Cache-Control"] = "no-cache" if is_kept else "no-store"
        await send(message)

    return sent
