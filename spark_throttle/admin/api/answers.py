"""How the API answers a request that fails: one form, problem details (RFC 9457), for every error.

An answer never holds a token or a stack trace; text that UTF-8 cannot encode is escaped, so every error can be sent.
Every answer has the security headers, also those that the server gives by itself (`connection_protocol`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from spark_throttle.admin.caller import READS_ALL
from spark_throttle.errors import (
    ConfigurationError,
    ConflictError,
    DuplicateError,
    InUseError,
    NotFoundError,
    NotPermittedError,
    OutcomeUnknownError,
    PolicyError,
    StoredPolicyError,
    StoreError,
    StoreUnavailableError,
    ThrottleError,
    UnconfirmedError,
)
from spark_throttle.status.tenant_words import OWNERS_SEE

PROBLEM_TYPE: Final = "application/problem+json"

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

_TLS_HEADERS: Final[Mapping[str, str]] = {"Strict-Transport-Security": "max-age=31536000"}
"""Over TLS: a browser that was here once does not come back in the clear for a year."""

_STATUSES: Final[tuple[tuple[type[ThrottleError], HTTPStatus], ...]] = (
    (StoredPolicyError, HTTPStatus.SERVICE_UNAVAILABLE),
    (PolicyError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (ConfigurationError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (NotFoundError, HTTPStatus.NOT_FOUND),
    (NotPermittedError, HTTPStatus.FORBIDDEN),
    (UnconfirmedError, HTTPStatus.PRECONDITION_REQUIRED),
    (DuplicateError, HTTPStatus.CONFLICT),
    (InUseError, HTTPStatus.PRECONDITION_FAILED),
    (ConflictError, HTTPStatus.PRECONDITION_FAILED),
    (StoreUnavailableError, HTTPStatus.SERVICE_UNAVAILABLE),
    (OutcomeUnknownError, HTTPStatus.GATEWAY_TIMEOUT),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ThrottleError, HTTPStatus.SERVICE_UNAVAILABLE),
)
_OF_THE_REQUEST: Final = (
    PolicyError, ConfigurationError, NotFoundError, NotPermittedError, UnconfirmedError, DuplicateError, InUseError,
)  # fmt: skip
"""Errors about what the caller said, or may read; others name files and the store."""

_NARROWED: Final[Mapping[type[Exception], str]] = {
    ConflictError: "another change came first, and nothing was changed; read it again before you try again",
    OutcomeUnknownError: f"it is unknown whether anything was changed, for {OWNERS_SEE}; look before you try again",
}
"""What the administrator of a tenant is told of them."""

_LONGEST_DETAIL: Final = 2000
_MOST_LOSSES: Final = 100


class Problem(BaseModel):
    """The reason why a request failed."""

    title: str
    status: int
    detail: str
    reason: str
    """The same as `detail`: Pulsar's clients show an error by this name."""

    path: str | None = None
    """The field of the request that is wrong."""

    losses: list[str] | None = None
    """What the change would cost, where it must be confirmed (428)."""


def security_headers(scheme: str) -> dict[str, str]:
    """Return the headers of every answer over a scheme, `http` or `https`."""
    return {**HEADERS, **(_TLS_HEADERS if scheme == "https" else {})}


def problem(
    status: int,
    detail: str,
    *,
    path: str | None = None,
    losses: Sequence[str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an answer that gives the reason for a failure."""
    detail = detail[:_LONGEST_DETAIL]
    body = Problem(
        title=HTTPStatus(status).phrase, status=status, detail=detail, reason=detail, path=path,
        losses=None if losses is None else list(losses[:_MOST_LOSSES]),
    )  # fmt: skip
    text = json.dumps(body.model_dump(exclude_none=True))
    return Response(text, status, media_type=PROBLEM_TYPE, headers=dict(headers or {}))


@cache
def last_answer(status: int, detail: str, scheme: str) -> bytes:
    """Return a problem as the last bytes of a connection, for what the server refuses before it is a request."""
    soon = {"Retry-After": "1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    answer = problem(status, detail, headers={**security_headers(scheme), "Cache-Control": "no-store", **soon})
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "connection: close"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + bytes(answer.body)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a call for its OpenAPI description; every call may be refused or throttled."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {PROBLEM_TYPE: {"schema": schema}}}
        for status in sorted({400, 401, 403, 413, 422, 429, 503, 504, *statuses})
    }


def answer_errors(app: FastAPI) -> None:
    """Make `app` answer every error of this package, and every request that does not fit its call, as a problem."""

    async def of_request(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - the handler is registered for it
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part not in ("path", "query", "body", "header"))
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, first["msg"], path=where or "body")

    async def of_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - the handler is registered for it
        return problem(error.status_code, str(error.detail), headers=error.headers)

    async def of_fault(request: Request, _: Exception) -> Response:
        # Starlette answers a fault outside of every middleware, so the gate does not see this answer.
        headers = {**security_headers(request.url.scheme), "Cache-Control": "no-store"}
        return problem(500, "the server failed; the reason is in its log", headers=headers)

    app.add_exception_handler(Exception, of_fault)
    app.add_exception_handler(ThrottleError, _of_package)
    app.add_exception_handler(RequestValidationError, of_request)
    app.add_exception_handler(HTTPException, of_http)


async def _of_package(request: Request, error: Exception) -> Response:
    """Return the answer to an error of this package."""
    status = next(status for kind, status in _STATUSES if isinstance(error, kind))
    if isinstance(error, ConflictError) and not _is_conditional(request):
        # The request named no revision: the change lost too many races.
        status = HTTPStatus.SERVICE_UNAVAILABLE
    headers = {"Retry-After": "1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    if _is_of_one_tenant(request) and _is_of_the_platform(error):
        request.state.reason = str(error)  # for the audit log
        return problem(status, _NARROWED.get(type(error), OWNERS_SEE), headers=headers)
    if isinstance(error, StoredPolicyError):
        return problem(status, str(error), headers=headers)
    if isinstance(error, PolicyError):
        return problem(status, error.problem, path=error.path)
    if isinstance(error, NotPermittedError):
        return problem(status, str(error), path=error.path)
    if isinstance(error, UnconfirmedError):
        return problem(status, str(error), path="yes", losses=error.losses)
    return problem(status, str(error), headers=headers)


def _is_of_one_tenant(request: Request) -> bool:
    caller = getattr(request.state, "caller", None)
    return caller is not None and caller.role not in READS_ALL


def _is_of_the_platform(error: Exception) -> bool:
    """Return whether the text of an error may hold more than what its caller said or may read."""
    if isinstance(error, ConflictError):
        return error.what.startswith("the policy store")
    return isinstance(error, StoredPolicyError) or not isinstance(error, _OF_THE_REQUEST)


def _is_conditional(request: Request) -> bool:
    return "expected" in request.query_params or any(name in request.headers for name in ("if-match", "if-none-match"))
