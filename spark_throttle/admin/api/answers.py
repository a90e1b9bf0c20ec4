"""A request that fails is answered in one form, problem details (RFC 9457), for every error.

pydantic and the web framework find what does not fit a call, but their words know neither a caller nor its remedy: the
value, the bound and the remedy are said here. An answer never holds a token or a stack trace; text that UTF-8 cannot
encode is escaped, so every error can be sent. Every answer has the security headers, but for the refusal of what is not
HTTP or of a connection too many, which uvicorn gives by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from spark_throttle.admin.caller import READS_ALL
from spark_throttle.admin.refusals import refusal_of
from spark_throttle.core.arithmetic.units import describe
from spark_throttle.errors import (
    ConflictError,
    NotPermittedError,
    OutcomeUnknownError,
    PolicyError,
    StoredPolicyError,
    ThrottleError,
    UnconfirmedError,
    did_you_mean,
)
from spark_throttle.remedies import IN_PYTHON, WHY_ONE_STEP, Remedy, Words
from spark_throttle.status.liveness import OWNERS_SEE

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

_NARROWED: Final[Mapping[type[Exception], str]] = {
    ConflictError: "another change came first, and nothing was changed; read it again before you try again",
    OutcomeUnknownError: f"it is unknown whether anything was changed, for {OWNERS_SEE}; look before you try again",
}
"""What the administrator of a tenant is told of them."""

REMEDIES: Final[Words] = {
    **IN_PYTHON,
    Remedy.CONFIRM: "confirm it with ?yes=true if it is meant",
    Remedy.MOVE_NAMESPACE: (
        f"to move it in one step, send POST to the same address, or change resource_group in its entry (PUT "
        f"policies/namespaces/…); {WHY_ONE_STEP}"
    ),
    Remedy.MOVE_OTHER: (
        f"to move it in one step, change resource_group in its entry (PUT policies/tenants/… or policy/defaults); "
        f"{WHY_ONE_STEP}"
    ),
    Remedy.MAKE_STORE: "ask who runs the server to restore it",
}
"""The remedies as a client says them."""

_LONGEST_DETAIL: Final = 2000
_PARTS: Final = ("path", "query", "body", "header")
_LONGEST_NAME: Final = 64
_NO_OBJECT: Final = "the body is {shown}; send a JSON object, such as {{}}"
_PROBLEMS: Final[Mapping[str, str]] = {
    "int_parsing": "{shown} is not a whole number; give one such as 3",
    "int_parsing_size": "the number has too many digits; give one such as 3",
    "bool_parsing": "{shown} is neither true nor false",
    "greater_than_equal": "{shown} is less than {ge}, the least allowed",
    "less_than_equal": "{shown} is more than {le}, the most allowed",
    "string_too_long": "the text has {length} characters; it may have at most {max_length}",
    "string_too_short": "the text is empty; give at least one character",
    "dict_type": _NO_OBJECT,
    "model_type": _NO_OBJECT,
    "model_attributes_type": _NO_OBJECT,
}
_UNKNOWN: Final = "{shown} does not fit the call; GET /openapi.json says what does"

_NO_CALL: Final = "no call has this path; GET /openapi.json lists all calls"
_NO_METHOD: Final = "the path takes {allowed}, not {method}"
MOST_LOSSES: Final = 100


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
        losses=None if losses is None else list(losses[:MOST_LOSSES]),
    )  # fmt: skip
    text = json.dumps(body.model_dump(exclude_none=True))
    return Response(text, status, media_type=PROBLEM_TYPE, headers=dict(headers or {}))


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a call for its OpenAPI description; every call may be refused or throttled."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {PROBLEM_TYPE: {"schema": schema}}}
        for status in sorted({400, 401, 403, 413, 422, 429, 503, 504, *statuses})
    }


def answer_errors(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Make `app` answer every error of this package, and every request that does not fit its call, as a problem.

    Parameters
    ----------
    routes
        The calls; an answer to an unknown method names the methods of a path.
    """
    of_router = unrouted(routes)

    async def of_request(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101 - the handler is registered for it
        found = error_of_request(error, fields_of_body(request))
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, found.problem, path=found.path)

    async def of_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101 - the handler is registered for it
        # An error of the router has no words but those of its status.
        is_routers = error.detail == HTTPStatus(error.status_code).phrase
        detail, headers = (of_router(request, error.status_code) if is_routers else None) or (error.detail, {})
        return problem(error.status_code, str(detail), headers={**(error.headers or {}), **headers})

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
    assert isinstance(error, ThrottleError)  # noqa: S101 - the handler is registered for it
    status = refusal_of(error).status
    if isinstance(error, ConflictError) and not _is_conditional(request):
        # The request named no revision: the change lost too many races.
        status = HTTPStatus.SERVICE_UNAVAILABLE
    headers = {"Retry-After": "1"} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    said = error.told(REMEDIES)
    if _is_of_one_tenant(request) and _is_of_the_platform(error):
        request.state.reason = said  # for the audit log
        return problem(status, _NARROWED.get(type(error), OWNERS_SEE), headers=headers)
    if isinstance(error, StoredPolicyError):
        return problem(status, said, headers=headers)
    if isinstance(error, PolicyError):
        return problem(status, said.removeprefix(f"{error.path}: "), path=error.path)
    if isinstance(error, NotPermittedError):
        return problem(status, said, path=error.path)
    if isinstance(error, UnconfirmedError):
        return problem(status, said, path="yes", losses=error.losses)
    return problem(status, said, headers=headers)


def _is_of_one_tenant(request: Request) -> bool:
    caller = getattr(request.state, "caller", None)
    return caller is not None and caller.role not in READS_ALL


def _is_of_the_platform(error: ThrottleError) -> bool:
    """Return whether the text of an error may hold more than what its caller said or may read."""
    if isinstance(error, ConflictError):
        return error.what.startswith("the policy store")
    return not refusal_of(error).is_of_request


def _is_conditional(request: Request) -> bool:
    return "expected" in request.query_params or any(name in request.headers for name in ("if-match", "if-none-match"))


# -------------------------------------------------------------------------------- requests that do not fit


def error_of_request(error: RequestValidationError, fields: Sequence[str] = ()) -> PolicyError:
    """Return the first thing that is wrong with a request; its path is the parameter or the field.

    Parameters
    ----------
    fields
        The fields that the body may have.

    Examples
    --------
    >>> limit = {"type": "less_than_equal", "loc": ("query", "limit"), "input": "5000", "ctx": {"le": 1000}}
    >>> print(error_of_request(RequestValidationError([limit])))
    limit: '5000' is more than 1000, the most allowed
    """
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part not in _PARTS]
    return PolicyError(".".join(where)[:_LONGEST_NAME] or "body", _problem(first, where, fields))


def fields_of_body(request: Request) -> list[str]:
    """Return the fields that the body of a request's call may have; none if its call names none."""
    body = getattr(request.scope.get("route"), "body_field", None)
    return list(getattr(body and body.field_info.annotation, "model_fields", ()))


def _problem(item: Mapping[str, Any], where: Sequence[str], fields: Sequence[str]) -> str:
    kind, value, context = item["type"], item.get("input"), item.get("ctx") or {}
    if kind == "name":  # `requests` raised it
        return str(item["msg"])
    if kind == "missing":
        return "the call needs this parameter" if where else "the call needs a body; send a JSON object, such as {}"
    if kind == "extra_forbidden":
        hint = did_you_mean(where[-1][:_LONGEST_NAME], fields)
        return f"unknown field{hint or '; the fields here are ' + ', '.join(fields)}"
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        return f"{describe(value)} is none of {', '.join(choices)}{did_you_mean(str(value)[:_LONGEST_NAME], choices)}"
    length = len(value) if isinstance(value, str) else 0
    return _PROBLEMS.get(kind, _UNKNOWN).format(shown=describe(value), length=length, **context)


def unrouted(routes: Iterable[BaseRoute]) -> Callable[[Request, int], tuple[str, dict[str, str]] | None]:
    """Return what tells the detail and the headers of an answer to a request that no call takes."""
    calls = [route for route in routes if isinstance(route, APIRoute)]

    def told(request: Request, status: int) -> tuple[str, dict[str, str]] | None:
        if status == HTTPStatus.NOT_FOUND:
            return _NO_CALL, {}
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            matching = (call for call in calls if call.matches(request.scope)[0] is not Match.NONE)
            allowed = ", ".join(sorted({method for call in matching for method in call.methods or ()}))
            return _NO_METHOD.format(allowed=allowed, method=describe(request.method)), {"Allow": allowed}
        return None

    return told
