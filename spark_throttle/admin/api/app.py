"""The admin API and its page: PIP-82's calls and our own over a policy store, and its effect on the watched jobs.

`spark-throttle serve` makes the application and serves it. The OpenAPI description at
``/openapi.json``, which is also in ``conf/openapi.json``, lists every call.

The page's files are a fixed set, shipped in the package; no part of a request becomes a path.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from spark_throttle.admin.api import job_calls, pip82_calls, policy_calls, scope_calls
from spark_throttle.admin.api.answers import Problem, answer_errors
from spark_throttle.admin.api.calls import Context, refuse_unknown_query
from spark_throttle.admin.api.gate import Gate
from spark_throttle.admin.api.request_audit import RequestAudit
from spark_throttle.admin.api.requests import VisibleJSONResponse
from spark_throttle.admin.api.server import ForwardedFor
from spark_throttle.admin.api.turns import ServerRates
from spark_throttle.admin.audit import AuditLog
from spark_throttle.admin.tokens import TokenFile
from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.policy.quotas import NamespaceQuota, Quota
from spark_throttle.store.checks.tenant_changes import MOST_TENANT_ENTRIES
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import PolicyStore

if TYPE_CHECKING:
    from spark_throttle.admin.sign_in import SignIn
    from spark_throttle.admin.watch.otlp import MetricsSender


_page = APIRouter(include_in_schema=False)

_TYPES: Final = {
    ".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".LICENSE": "text/plain",
    ".svg": "image/svg+xml",
}  # fmt: skip


@_page.get("/")
async def get_page() -> Response:
    """Return the page."""
    return await get_page_file("index.html")


@_page.get("/page/{name}")
async def get_page_file(name: str) -> Response:
    """Return one of the page's files."""
    content = _contents().get(name)
    if content is None:
        raise HTTPException(404, "the page has no such file")
    return Response(content, media_type=_TYPES[PurePath(name).suffix])


@cache
def _contents() -> dict[str, bytes]:
    found = (files("spark_throttle.admin") / "page").iterdir()
    return {each.name: each.read_bytes() for each in found if PurePath(each.name).suffix in _TYPES}


REQUESTS_PER_SECOND: Final = 100

_DESCRIPTION: Final = (
    "Resource groups, attachments and quotas of spark-throttle, with PIP-82's calls and field names, and their effect "
    "on the jobs that follow the store. Every call needs a bearer token. The answer to a change has the revision that "
    "it made, and its effect on each watched job."
)


_open: Final = APIRouter()
"""The calls for anybody; a query is ignored."""


class Health(BaseModel):
    """Whether the server answers; a caller without a token learns no more."""

    status: str


def make_app(  # noqa: PLR0913 - what a server is made of
    store: PolicyStore,
    tokens: TokenFile,
    watch: JobWatch,
    *,
    clock_ms: Callable[[], int],
    monotonic_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    requests_per_second: int = REQUESTS_PER_SECOND,
    audit: AuditLog | None = None,
    proxies: Sequence[str] = (),
    sign_in: SignIn | None = None,
    most_tenant_entries: int = MOST_TENANT_ENTRIES,
    is_confirmed: bool = False,
    sender: MetricsSender | None = None,
) -> FastAPI:
    """Return the application over a store.

    Parameters
    ----------
    watch
        The jobs; started and stopped with the application.
    clock_ms
        The wall clock, for commits.
    monotonic_ms
        A clock that nobody sets, for request rates.
    requests_per_second
        Rate limit of each token; all callers without a token share a fifth of it, and the administrators of a tenant
        may make changes at a hundredth of it, and 60 s of that at once. What needs no token may be asked for so often
        from each address.
    audit
        Where changes and refusals are recorded; `None` records nothing.
    proxies
        Addresses and networks of the proxies whose `X-Forwarded-For` counts.
    sign_in
        Identifies callers with a token of an OpenID Connect provider; `None` lets only the server's own tokens in.
    most_tenant_entries
        For how many single namespaces the administrator of one tenant may make an entry.
    is_confirmed
        Whether changes that cost protection need no confirmation of their own.
    sender
        Sends the metrics elsewhere; started and stopped with the application.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch.start()
        if sign_in is not None:
            sign_in.ask_provider()
        if sender is not None:
            sender.start()
        yield
        if sender is not None:
            sender.stop()
        watch.stop()

    # The interactive documents would load scripts from elsewhere; only the description itself is served.
    app = FastAPI(
        title="spark-throttle admin API", version="2", description=_DESCRIPTION, lifespan=lifespan,
        default_response_class=VisibleJSONResponse, docs_url=None, redoc_url=None, openapi_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    service = PolicyService(store, clock_ms=clock_ms, most_tenant_entries=most_tenant_entries)
    app.state.context = Context(service, watch, is_confirmed)
    routers = (
        pip82_calls.group_calls, pip82_calls.attachment_calls, policy_calls.calls, policy_calls.revision_calls,
        job_calls.calls, scope_calls.calls, job_calls.metrics_calls, _page,
    )  # fmt: skip
    for router in routers:
        app.include_router(router, dependencies=[Depends(refuse_unknown_query)])
    app.include_router(_open)
    answer_errors(app, [route for router in (_open, *routers) for route in router.routes])
    app.add_middleware(
        Gate,
        tokens=tokens,
        rates=ServerRates.of(requests_per_second, monotonic_ms),
        audit=None if audit is None else RequestAudit(audit, clock_ms=monotonic_ms),
        sign_in=sign_in,
    )
    if proxies:
        app.add_middleware(ForwardedFor, proxies=proxies)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign] # FastAPI's own way to extend the description
    app.state.description = cache(lambda: json.dumps(app.openapi()).encode())
    return app


@_open.get("/healthz", tags=["health"])
async def _health() -> Health:
    """Return `ok`: the server answers."""
    return Health(status="ok")


@_open.get("/openapi.json", include_in_schema=False)
async def _get_description(request: Request) -> Response:
    """Return the OpenAPI description; it is written once, for anybody may ask for it."""
    return Response(request.app.state.description(), media_type="application/json")


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description, with the token that every call needs and the form of every error."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        parts = document.setdefault("components", {})
        models = (Problem, Quota, NamespaceQuota)
        parts.setdefault("schemas", {}).update({each.__name__: each.model_json_schema() for each in models})
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, calls in document["paths"].items():
            for call in calls.values():
                call["responses"].pop("422", None) if path == "/healthz" else None
                call["security"] = [] if path == "/healthz" else [{"token": []}]
        for unused in ("HTTPValidationError", "ValidationError"):
            parts["schemas"].pop(unused, None)
        app.openapi_schema = document
    return app.openapi_schema
