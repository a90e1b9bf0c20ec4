"""What every call of the API is given: the store's service, the jobs' watch, its caller; and the answer to a change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Final, Literal, TypeAlias

from fastapi import Depends, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from spark_throttle.admin.api.requests import IfMatch, IfNoneMatch, Why, Yes, expected_version, is_any_of
from spark_throttle.admin.caller import READS_ALL, Caller
from spark_throttle.admin.redaction import without_secrets
from spark_throttle.admin.watch.job_watch import JobView, JobWatch
from spark_throttle.errors import NotFoundError, PolicyError, did_you_mean
from spark_throttle.status.liveness import life_in_words, problem_in_words
from spark_throttle.store.checks.namespace_index import NamespaceIndex
from spark_throttle.store.committer import CommitResult
from spark_throttle.store.entries import StoredEntry
from spark_throttle.store.entry_version import ABSENT_VERSION, EntryVersion, Expected
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Door


@dataclass(frozen=True, slots=True)
class Context:
    """The policies and the jobs that a server serves."""

    service: PolicyService
    watch: JobWatch
    locked: NamespaceIndex
    is_confirmed: bool = False
    """Whether every change counts as confirmed."""


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


def refuse_unknown_query(request: Request) -> None:
    """Refuse a query parameter that the API's description lacks, or that is given twice.

    As in a policy, no key may be ignored: neither a misspelt one, nor the first of two.

    Raises
    ------
    PolicyError
        If there is one; its path is the key.
    """
    if not request.query_params:
        return
    paths = request.app.openapi()["paths"]
    call = paths.get(request.scope["route"].path, {}).get(request.method.lower(), {})
    known = [parameter["name"] for parameter in call.get("parameters", ()) if parameter["in"] == "query"]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            hint = did_you_mean(name[:64], known)
            raise PolicyError(name[:64], f"the call has no such query parameter{hint}")
        if given.count(name) > 1:
            raise PolicyError(name[:64], "the query parameter is repeated; keep one of them")


ApiContext: TypeAlias = Annotated[Context, Depends(_context)]
AnyCaller: TypeAlias = Annotated[Caller, Depends(_caller)]


def _of_roles(*roles: str) -> Callable[[Caller], Caller]:
    def check(caller: AnyCaller) -> Caller:
        if caller.role not in roles:
            needed = " or ".join(roles)
            raise HTTPException(HTTPStatus.FORBIDDEN, f"this needs the role {needed}; the token's is {caller.role}")
        return caller

    return check


Admin: TypeAlias = Annotated[Caller, Depends(_of_roles("admin"))]
READERS: Final = [Depends(_of_roles(*READS_ALL))]
"""The callers that may see what belongs to no single tenant."""


def readable_tenant(caller: Caller) -> str | None:
    """Return the only tenant that the caller may see; `None` for all.

    Raises
    ------
    HTTPException
        With status 403 if its role may see nothing.
    """
    if caller.role in READS_ALL:
        return None
    if caller.role == "tenant_admin" and caller.tenant:
        return caller.tenant
    raise HTTPException(HTTPStatus.FORBIDDEN, f"the role {caller.role!r} may see nothing")


def check_tenant(caller: Caller, namespace: str) -> None:
    """Refuse a tenant admin access to another tenant.

    Raises
    ------
    HTTPException
        With status 403.
    """
    tenant = readable_tenant(caller)
    if tenant is not None and namespace.partition("/")[0] != tenant:
        raise HTTPException(HTTPStatus.FORBIDDEN, f"the token is only for the tenant {tenant!r}")


def view_of(watch: JobWatch, job: str) -> JobView:
    """Return the view of a job.

    Raises
    ------
    NotFoundError
        If the server does not watch the job.
    """
    view = watch.view(job)
    if view is None:
        raise NotFoundError(
            "job", job, did_you_mean(job[:64], watch.names) or "; GET status lists those that are watched"
        )
    return view


# ------------------------------------------------------------------------------------------------------- changes


EffectState: TypeAlias = Literal["next_batch", "in_force", "refused", "not_followed", "not_listening", "unknown"]


class JobEffect(BaseModel):
    """The effect of a change on one job."""

    job: str
    state: EffectState
    """`next_batch`: the next batch is planned with the change. `in_force`: the job follows this revision already.
    `not_listening`: the job has not begun, or gives no sign of life: nobody knows when a batch will have the change."""

    store_revision: int | None
    """The revision that the job follows so far."""

    planned_epoch: int
    """The newest epoch that was planned before the change; the change acts in batches of later epochs."""

    detail: str


class ChangeResponse(BaseModel):
    """The outcome of a change: whether it was made, and where and when it acts."""

    revision: int
    """The store's revision after the change."""

    changed: bool
    """Whether anything was committed; false if the store already said the same."""

    notes: list[str]
    """Effects of the change that the caller may not expect."""

    acting: list[JobEffect]
    """The effect on each watched job; a job that is not watched follows the store in the same way."""


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A requested change: its reason, its condition, and the response that answers it."""

    context: Context
    request: Request
    response: Response
    why: str
    if_match: str | None
    if_none_match: str | None
    is_confirmed: bool

    def author(self, caller: Caller) -> Author:
        """Return the author of the change; a tenant admin's is judged as such.

        Raises
        ------
        HTTPException
            With status 403 if the caller's role may change nothing.
        """
        door: Door = self.request.state.door
        why = without_secrets(self.why)  # a history has more readers than a token
        if caller.role == "admin":
            return Author(caller.who, why, None, door, caller.identity, self.is_confirmed)
        if caller.role == "tenant_admin" and caller.tenant:
            return Author(caller.who, why, caller.tenant, door, caller.identity, self.is_confirmed)
        raise HTTPException(HTTPStatus.FORBIDDEN, f"the role {caller.role!r} may change nothing")

    @property
    def expected(self) -> Expected:
        """The version of the entry that the change requires; see `requests.expected_version`."""
        return expected_version(self.if_match, self.if_none_match)

    def answer(self, made: CommitResult, *, is_entry: bool = True) -> ChangeResponse:
        """Return the outcome of the change; set the ETag of the entry if the change wrote one."""
        if made.is_changed:
            self.request.state.revision, self.request.state.made = made.revision, made  # for the audit log
        if made.is_changed and is_entry:
            written = made.made[0]
            is_there = written.after is not None  # defaults without a setting are no entry
            version = EntryVersion.of(made.revision, written.after, given=written.given_after)
            self.response.headers["ETag"] = (version if is_there else ABSENT_VERSION).etag
        store = self.context.service.store.location
        is_wide = readable_tenant(_caller(self.request)) is None
        acting = [_acting(view, made.revision, store, is_wide=is_wide) for view in self.context.watch.views()]
        notes = list(made.notes)
        if not acting:
            notes.append("the server watches no job, so it does not know whether a job follows this store")
        return ChangeResponse(revision=made.revision, changed=made.is_changed, notes=notes, acting=acting)


def _asked(
    context: ApiContext,
    request: Request,
    response: Response,
    why: Why = "",
    yes: Yes = False,  # noqa: FBT002 - a query parameter
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> ChangeRequest:
    return ChangeRequest(context, request, response, why, if_match, if_none_match, yes or context.is_confirmed)


def _told(
    context: ApiContext,
    request: Request,
    response: Response,
    why: Why = "",
    yes: Yes = False,  # noqa: FBT002 - a query parameter
) -> ChangeRequest:
    for header in ("If-Match", "If-None-Match"):
        if header in request.headers:
            raise PolicyError(header, "the call changes no single entry; leave it out, and give ?expected=REVISION")
    return ChangeRequest(context, request, response, why, None, None, yes or context.is_confirmed)


Change: TypeAlias = Annotated[ChangeRequest, Depends(_asked)]
UnconditionalChange: TypeAlias = Annotated[ChangeRequest, Depends(_told)]
"""The change of a call that takes no condition on an entry's revision, but on the store's, as `expected`."""


def _acting(view: JobView, revision: int, location: str, *, is_wide: bool) -> JobEffect:
    state, detail = _effect(view, revision, location, is_wide=is_wide)
    return JobEffect(
        job=view.name, state=state, store_revision=None if view.followed is None else view.followed.store_revision,
        planned_epoch=view.planned_epoch, detail=detail,
    )  # fmt: skip


def _effect(view: JobView, revision: int, location: str, *, is_wide: bool) -> tuple[EffectState, str]:
    life, followed = view.liveness(), view.followed
    if not life.has_begun:
        return "not_listening", f"no job is listening: {life.detail}; the change acts when one begins"
    problem = problem_in_words(view.problem, is_wide=is_wide)
    if problem is not None or followed is None:
        return "unknown", problem or "the job has planned no batch yet; it reads the store when it does"
    if followed.store_revision is None:
        remedy = f"; start it with policies: {location}" if is_wide else ""
        return "not_followed", f"the job follows no policy store{remedy}"
    if not life.is_listening:
        detail = life_in_words(life, is_wide=is_wide)
        return "not_listening", f"no job is listening: {detail}; the change acts when the job goes on"
    if followed.problem is not None:
        return "refused", problem_in_words(followed.problem, is_wide=is_wide) or ""
    return _effect_on_follower(followed.store_revision, revision)


def _effect_on_follower(followed: int, revision: int) -> tuple[EffectState, str]:
    if followed >= revision:
        return "in_force", f"the job follows revision {followed}"
    return "next_batch", f"revision {followed} is in force; the next batch is planned with {revision}"


def is_known(stored: StoredEntry, if_none_match: str | None, response: Response) -> bool:
    """Set the ETag of an entry, and return whether the caller has it already (304)."""
    response.headers["ETag"] = stored.version.etag
    return if_none_match is not None and is_any_of(stored.version, if_none_match)


def not_modified(stored: StoredEntry) -> Response:
    """Return the answer to a caller that has the entry already."""
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": stored.version.etag})
