"""A call is checked before it is made: its caller, its rate and its body; and every answer gets its headers.

A request without a valid token is answered before its body is read. Only the page's own files, the health check and
the API's description need no token: they hold nothing of anybody's policies. Those who bring none wait in a queue of
their own, and are counted by the address that they come from.

A body is read before its request gets a turn (`turns`), and the turn ends when the answer begins: no client holds one
by being slow. What is worked on for a client that has left, or for longer than `WORK_SECONDS`, is given up
(`store.while_wanted`); a commit that has begun is not.

A path is handed on as it was sent, with its segments still percent-encoded: if it were decoded as a whole, a name that
holds a slash would be taken for two segments (`requests` decodes each segment by itself).
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spark_throttle.admin.api.answers import problem, security_headers
from spark_throttle.admin.api.request_audit import READING, RequestAudit, door_of
from spark_throttle.admin.api.requests import with_joined_conditions
from spark_throttle.admin.api.server import peer_of
from spark_throttle.admin.api.turns import NoTurnError, ServerRates, Turns
from spark_throttle.admin.caller import NO_ROLE, ROLES, Caller
from spark_throttle.admin.tokens import FORM, TokenFile
from spark_throttle.errors import FileUnusableError, SignInUnavailableError, ThrottleError
from spark_throttle.store.store import while_wanted

if TYPE_CHECKING:
    from spark_throttle.admin.sign_in import SignIn

logger = logging.getLogger(__name__)

MOST_BODY_BYTES: Final = 64 * 1024
"""A policy entry has a few hundred bytes."""

BODY_SECONDS: Final = 20.0
"""From the end of the headers to the end of the body."""

AT_ONCE: Final = 16
"""Requests with a token that are worked on at once: more would only wait for the interpreter, fewer for the store."""

OPEN_AT_ONCE: Final = 4
"""Requests without a token that are worked on at once. Together, fewer than the 40 threads that anyio has for them."""

MOST_WAITING: Final = 1024
WAIT_SECONDS: Final = 10.0
WORK_SECONDS: Final = 20.0
"""Time for which a request is worked on; the page waits no longer."""

HEALTH_PATH: Final = "/healthz"
"""Has no queue and no rate limit: a flood must not make a server look dead to whoever would then restart it."""

OPEN_PATHS: Final = ("/", HEALTH_PATH, "/openapi.json")
OPEN_FOLDER: Final = "/page/"

_Refusal: TypeAlias = tuple[int, str, dict[str, str]]
"""Status, detail and headers of an answer."""

_CALLS: Final = "/admin/v2/"
_ANYBODY: Final = ""
_ANYWHERE: Final = ("",)
_SOON: Final = {"Retry-After": "1"}
_TWO_LENGTHS: Final = "the request has both Content-Length and Transfer-Encoding; send one of them"
_ENDING: Final = "the server is ending, and it is unknown whether anything was changed; look before you try again"
_NOT_WHOLE: Final = "the server is ending; the request had not arrived as a whole, and nothing was changed"
_NO_CALLERS: Final = "the server cannot read its tokens, so it lets nobody in; the reason is in its log"
_NO_ROLE: Final = "nothing that the sign-in says of you gives you a role here; ask an administrator"
_NO_SIGN_IN: Final = "the sign-in provider does not answer, so the server cannot tell who you are; try again later"
_NO_RECORD: Final = (
    "the server cannot write its audit log, so it changes nothing; nothing was changed, and the reason is in its log"
)


class Gate:
    """ASGI middleware that authenticates callers, limits requests and sets the headers of every answer.

    Parameters
    ----------
    rates
        The rate limits of callers.
    audit
        Records what is done and what is refused; `None` records nothing.
    sign_in
        Identifies callers with a token of an OpenID Connect provider; `None` lets only the server's own tokens in.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: TokenFile,
        rates: ServerRates,
        audit: RequestAudit | None = None,
        sign_in: SignIn | None = None,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._rates = rates
        self._audit = audit
        self._sign_in = sign_in
        self._turns = Turns(AT_ONCE, most_waiting=MOST_WAITING, wait_seconds=WAIT_SECONDS)
        self._open_turns = Turns(OPEN_AT_ONCE, most_waiting=MOST_WAITING, wait_seconds=WAIT_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse one request, or hand it on."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        path = _without_last_slash(scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0])
        state = {**scope.get("state", {}), "door": door_of(Headers(scope=scope))}
        scope = {**scope, "path": path, "headers": with_joined_conditions(scope["headers"]), "state": state}
        if self._audit is None:
            await self._let_in(scope, receive, send)
            return
        try:
            await self._let_in(scope, receive, self._audit.recorded(scope, send))
        except Exception:
            await self._audit.record(scope, 500, "the server failed")
            raise

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, headers = scope["path"], Headers(scope=scope)
        is_open = path in OPEN_PATHS or path.startswith(OPEN_FOLDER)
        send = _marked(send, scope["scheme"], is_kept=path.startswith(OPEN_FOLDER))
        if "content-length" in headers and "transfer-encoding" in headers:
            # Two programs in a row could take different ones for the end of the request (RFC 9112, section 6.1).
            await problem(400, _TWO_LENGTHS, headers={"Connection": "close"})(scope, receive, send)
            return
        if path == HEALTH_PATH:
            await self._app(scope, receive, send)
            return
        peer = peer_of(scope["client"] or _ANYWHERE)
        try:
            caller, reason = (None, "") if is_open else await self._caller(headers)
        except SignInUnavailableError as error:
            scope["state"]["reason"] = str(error)
            await problem(503, _NO_SIGN_IN, headers=_SOON)(scope, receive, send)
            return
        except ThrottleError as error:
            scope["state"]["reason"] = str(error)
            # A stranger learns nothing of the server's files; who cares for the server finds the reason in its log.
            await problem(503, _NO_CALLERS, headers=_SOON)(scope, receive, send)
            return
        scope["state"]["caller"] = caller
        if reason:
            scope["state"]["reason"] = reason
        refusal = self._open_refusal(peer) if is_open else self._refusal(caller, scope["method"], headers)
        if refusal is not None:
            await problem(*refusal[:2], headers=refusal[2])(scope, receive, send)
            return
        if self._audit is not None and scope["method"] not in READING:
            try:
                await self._audit.check()
            except FileUnusableError as error:
                logger.error("a change is refused: %s", error)  # noqa: TRY400 - the message says it all
                await problem(503, _NO_RECORD, headers=_SOON)(scope, receive, send)
                return
        await self._work(scope, receive, send, caller, peer)

    async def _work(self, scope: Scope, receive: Receive, send: Send, caller: Caller | None, peer: str) -> None:
        """Read a request's body, wait for its turn, and hand it on."""
        try:
            # Nobody who brings no token has anything to say.
            body = b"" if caller is None else await _body(receive)
        except _BodyTooLargeError:
            await problem(413, _TOO_LARGE)(scope, receive, send)
            return
        except TimeoutError:
            await problem(408, _TOO_SLOW, headers={"Connection": "close"})(scope, receive, send)
            return
        except asyncio.CancelledError:  # the server ends, and with it this task
            await problem(503, _NOT_WHOLE, headers=_SOON)(scope, receive, send)
            return
        if body is None:
            return
        turns, taker = (self._open_turns, peer) if caller is None else (self._turns, caller.token_id)
        try:
            await turns.take(taker)
        except NoTurnError as error:
            await problem(503, f"{error}; nothing was changed", headers=_SOON)(scope, receive, send)
            return
        turn = _Turn(turns, taker)
        leaving, end = asyncio.ensure_future(_left(receive)), time.monotonic() + WORK_SECONDS
        await asyncio.sleep(0)  # a client that is gone is seen now

        def is_wanted() -> bool:
            return time.monotonic() < end and not leaving.done()

        try:
            if is_wanted():
                with while_wanted(is_wanted):
                    await self._app(scope, _again(body, leaving), turn.until_answered(send))
        except asyncio.CancelledError:
            if not turn.is_over:
                scope["state"]["is_unknown"] = True  # the change may be made after the answer
                await problem(503, _ENDING, headers=_SOON)(scope, receive, send)
            raise
        finally:
            turn.end()
            leaving.cancel()

    async def _caller(self, headers: Headers) -> tuple[Caller | None, str]:
        """Return who calls; if that is unknown, `None` and the reason, which the caller is not told."""
        text = _bearer(headers)
        if not text:
            return None, ""
        if self._sign_in is not None and not FORM.fullmatch(text):
            return await self._sign_in.judged(text)
        return self._tokens.judged(text)

    def _open_refusal(self, peer: str) -> _Refusal | None:
        wait_ms = self._rates.addresses.throttle_time_ms(peer)
        return _too_many(wait_ms) if wait_ms else None

    def _refusal(self, caller: Caller | None, method: str, headers: Headers) -> _Refusal | None:
        rates = self._rates
        if caller is None:
            wait_ms = rates.guesses.throttle_time_ms(_ANYBODY)
        else:
            wait_ms = rates.tokens.throttle_time_ms(caller.token_id)
        if wait_ms == 0 and caller is not None and caller.role == "tenant_admin" and method not in READING:
            wait_ms = rates.tenant_changes.throttle_time_ms(caller.tenant or caller.token_id)
        if wait_ms:
            return _too_many(wait_ms)
        if caller is None:
            challenge = {"WWW-Authenticate": 'Bearer realm="spark-throttle"'}
            return 401, "there is no token, or it is unknown or has expired: send Authorization: Bearer …", challenge
        if caller.role not in ROLES:
            unknown = f"this release does not know the role {caller.role!r}, so it may do nothing"
            return 403, _NO_ROLE if caller.role == NO_ROLE else unknown, {}
        if caller.role == "viewer" and method not in READING:
            return 403, "a viewer's token may only read; a change needs the role admin or tenant_admin", {}
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > MOST_BODY_BYTES:
            return 413, _TOO_LARGE, {}
        return None


_TOO_SLOW: Final = f"the body of the request did not arrive within {BODY_SECONDS:g} s"
_TOO_LARGE: Final = f"the body is larger than {MOST_BODY_BYTES} bytes; split the change, or use the command line"


def _without_last_slash(path: str) -> str:
    """Return the path of a call, which may end with a slash, as PIP-82 and Pulsar's clients write some."""
    return path.removesuffix("/") if path.startswith(_CALLS) else path


def _bearer(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _too_many(wait_ms: int) -> _Refusal:
    after = {"Retry-After": str(-(-wait_ms // 1000))}
    return 429, f"too many requests; the next one passes in {wait_ms} ms", after


class _BodyTooLargeError(Exception):
    pass


async def _body(receive: Receive) -> bytes | None:
    """Return the body of a request, bounded whatever length it announced; `None` if its client has left.

    Raises
    ------
    TimeoutError
        If it does not come in time.
    """
    body, is_more = b"", True
    async with asyncio.timeout(BODY_SECONDS):
        while is_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            is_more = message.get("more_body", False)
            if len(body) > MOST_BODY_BYTES:
                raise _BodyTooLargeError
    return body


async def _left(receive: Receive) -> Message:
    """Return when the client leaves, or has its answer."""
    while (message := await receive())["type"] != "http.disconnect":
        pass
    return message


def _again(body: bytes, leaving: asyncio.Future[Message]) -> Receive:
    """Return a `receive` that begins with a body that was read already."""
    is_given = False

    async def received() -> Message:
        nonlocal is_given
        if is_given:
            return await asyncio.shield(leaving)
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received


class _Turn:
    """A turn that was taken, and is given back once."""

    def __init__(self, turns: Turns, taker: str) -> None:
        self._turns, self._taker = turns, taker
        self.is_over = False

    def end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self._turns.give_back(self._taker)

    def until_answered(self, send: Send) -> Send:
        async def sent(message: Message) -> None:
            self.end()
            await send(message)

        return sent


def _marked(send: Send, scheme: str, *, is_kept: bool) -> Send:
    marks = {**security_headers(scheme), "Cache-Control": "no-cache" if is_kept else "no-store"}

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in marks.items():
                headers[name] = value
        await send(message)

    return sent
