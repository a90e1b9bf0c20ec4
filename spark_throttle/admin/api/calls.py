"""A call of the API states where it is, who may make it and what it is given; changes have one form of answer.

A call is a function under `Calls.at`, which states its method, its path and the roles that may make it. It takes what
it needs as parameters of the types below; its docstring is its description in ``/openapi.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from spark_throttle.admin.api.answers import MOST_LOSSES, documented
from spark_throttle.admin.api.replayed_change import ReplayRequest, Tried, replayed
from spark_throttle.admin.api.requests import (
    IfMatch,
    IfNoneMatch,
    RevisionNumber,
    Segment,
    StrictRoute,
    TenantSegment,
    Why,
    Yes,
    expected_version,
    is_any_of,
)
from spark_throttle.admin.caller import READS_ALL, ROLES, Caller
from spark_throttle.admin.redaction import without_secrets
from spark_throttle.admin.shown_policies import Plan, names_after, planned_of
from spark_throttle.admin.watch.job_watch import JobView, JobWatch
from spark_throttle.errors import NotFoundError, PolicyError, did_you_mean
from spark_throttle.status.liveness import life_in_words, problem_in_words
from spark_throttle.store.committer import CommitResult
from spark_throttle.store.entries import ABSENT_VERSION, EntryVersion, StoredEntry
from spark_throttle.store.entry_conditions import Expected
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from spark_throttle.what_if.outcome import WhatIf

WRITERS: Final = ("admin", "tenant_admin")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Answer = TypeVar("_Answer")


class Calls(APIRouter):
    """The calls on one subject.

    Parameters
    ----------
    subject
        What the description lists them under.
    """

    def __init__(self, subject: str, *, prefix: str = "/admin/v2") -> None:
        super().__init__(prefix=prefix, tags=[subject], route_class=StrictRoute)

    def at(
        self,
        *calls: str,
        who: Sequence[str] | None = None,
        errors: Sequence[int] = (),
        responses: dict[int | str, dict[str, Any]] | None = None,
        **options: Any,  # noqa: ANN401 - as FastAPI takes them
    ) -> Callable[[_Function], _Function]:
        """Return a decorator that serves a function.

        Parameters
        ----------
        calls
            Method and path, such as ``GET /history``; a function may have several.
        who
            The roles that may make the call, others are refused (403); by default all that may read, or may change.
        errors
            Statuses that the call may answer with, beyond those of every call and of every change: a change may name
            an entry, or a job to replay, that there is not, and may have conditions.
        """

        def served(function: _Function) -> _Function:
            for call in calls:
                method, _, path = call.partition(" ")
                roles, conditions = (ROLES, ()) if method == "GET" else (WRITERS, (404, 412, 428))
                self.add_api_route(
                    path, function, methods=[method], dependencies=[Depends(_of_roles(who or roles))],
                    responses={**documented(*errors, *conditions), **(responses or {})}, **options,
                )  # fmt: skip
            return function

        return served


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
            hint = did_you_mean(name[:64], known) or f"; it has {', '.join(known) or 'none'}"
            raise PolicyError(name[:64], f"the call has no such query parameter{hint}")
        if given.count(name) > 1:
            raise PolicyError(name[:64], "the query parameter is repeated; keep one of them")


# -------------------------------------------------------------------------------------------- what a call is given


@dataclass(frozen=True, slots=True)
class Context:
    """The policies and the jobs that a server serves."""

    service: PolicyService
    watch: JobWatch
    is_confirmed: bool = False
    """Whether every change counts as confirmed."""


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


def _caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


ApiContext: TypeAlias = Annotated[Context, Depends(_context)]
AnyCaller: TypeAlias = Annotated[Caller, Depends(_caller)]


def _of_roles(roles: Sequence[str]) -> Callable[[Caller], None]:
    def check(caller: AnyCaller) -> None:
        if caller.role not in roles or (caller.role == "tenant_admin" and not caller.tenant):
            needed = " or ".join(roles)
            raise HTTPException(HTTPStatus.FORBIDDEN, f"this needs the role {needed}; the token's is {caller.role}")

    return check


def _seen_tenant(caller: AnyCaller) -> str | None:
    return None if caller.role in READS_ALL else caller.tenant or ""


SeenTenant: TypeAlias = Annotated[str | None, Depends(_seen_tenant)]
"""The only tenant that the caller may see; `None` for all."""


def check_tenant(tenant: str | None, namespace: str) -> None:
    """Refuse a caller that may see only `tenant` access to another (403)."""
    if tenant is not None and namespace.partition("/")[0] != tenant:
        raise HTTPException(HTTPStatus.FORBIDDEN, f"the token is only for the tenant {tenant!r}")


def _own_tenant(only: SeenTenant, tenant: TenantSegment) -> str:
    check_tenant(only, tenant)
    return tenant


def _own_namespace(tenant: Annotated[str, Depends(_own_tenant)], namespace: Segment) -> str:
    return f"{tenant}/{namespace}"


OwnTenant: TypeAlias = Annotated[str, Depends(_own_tenant)]
"""The tenant of the path, which the caller may see."""

OwnNamespace: TypeAlias = Annotated[str, Depends(_own_namespace)]
"""The namespace of the path, whose tenant the caller may see."""


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

    plan: Plan | None = None
    """What the change would do, if it was only tried (`dry_run`): nothing was written, and `revision` is as it was."""

    what_if: WhatIf | None = None
    """What it would have done to the recorded traffic of the job that `replay` names, beside the policies there are:
    the first 200 scopes in which a message waits, is rejected, or is admitted more or less."""


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A requested change: its author and its condition; makes it, and answers."""

    context: Context
    request: Request
    response: Response
    author: Author
    expected: Expected
    is_dry_run: bool = False
    replay: ReplayRequest | None = None

    def made(
        self,
        change: Callable[..., CommitResult],
        *what: object,
        notes: Sequence[str] = (),
        is_entry: bool = True,
        **how: object,
    ) -> ChangeResponse:
        """Make a change, and return its outcome.

        Parameters
        ----------
        change
            A method of `PolicyService`, or a function like one; it is given `what`, the author, `how` and the condition
            that the change requires.
        notes
            What the caller may not expect, beyond what the service knows.
        is_entry
            Whether it writes one entry, whose ETag the answer then has.
        """
        if self.is_dry_run:
            service = self.context.service.dry_run()
            return self._tried(change(service, *what, self.author, expected=self.expected, **how), notes)
        made = change(self.context.service, *what, self.author, expected=self.expected, **how)
        if made.is_changed:
            self.request.state.revision, self.request.state.made = made.revision, made  # for the audit log
        if made.is_changed and is_entry:
            written = made.made[0]
            is_there = written.after is not None  # defaults without a setting are no entry
            version = EntryVersion.of(made.revision, written.after, given=written.given_after)
            self.response.headers["ETag"] = (version if is_there else ABSENT_VERSION).etag
        store, is_wide = self.context.service.store.location, self.author.tenant is None
        acting = [_acting(view, made.revision, store, is_wide=is_wide) for view in self.context.watch.views()]
        said = [*made.notes, *notes]
        if not acting:
            said.append("the server watches no job, so it does not know whether a job follows this store")
        return ChangeResponse(revision=made.revision, changed=made.is_changed, notes=said, acting=acting)

    def _tried(self, made: CommitResult, notes: Sequence[str]) -> ChangeResponse:
        """Answer with what a change would do that was not made."""
        self.request.state.is_dry_run = True  # for the audit log
        store = self.context.service.store
        plan = Plan.of(planned_of(made), lambda: names_after(store, made), most_losses=MOST_LOSSES)
        said = [*made.notes, *notes]
        found = None
        if self.replay is not None:
            view = view_of(self.context.watch, self.replay.job)
            found = replayed(view, store, made, self.replay.seconds, tenant=self.author.tenant)
        return ChangeResponse(
            revision=made.revision, changed=made.is_changed, notes=said, acting=[], plan=plan, what_if=found
        )


def _author(
    context: ApiContext,
    request: Request,
    caller: AnyCaller,
    why: Why = "",
    yes: Yes = False,  # noqa: FBT002 - a query parameter
) -> Author:
    """Return the author of a change; a tenant admin's is judged as such."""
    tenant = None if caller.role == "admin" else caller.tenant or ""
    reason = without_secrets(why)  # a history has more readers than a token
    return Author(caller.who, reason, tenant, request.state.door, caller.identity, yes or context.is_confirmed)


ChangeAuthor: TypeAlias = Annotated[Author, Depends(_author)]


def _change(
    context: ApiContext, request: Request, response: Response, author: ChangeAuthor, tried: Tried,
    if_match: IfMatch = None, if_none_match: IfNoneMatch = None,
) -> ChangeRequest:  # fmt: skip
    expected = expected_version(if_match, if_none_match)
    return ChangeRequest(context, request, response, author, expected, *tried)


def _change_of_store(
    context: ApiContext, request: Request, response: Response, author: ChangeAuthor, tried: Tried,
    expected: Annotated[
        RevisionNumber | None, Query(description="Change the store only if it is at this revision; else 412.")
    ] = None,
) -> ChangeRequest:  # fmt: skip
    for header in ("If-Match", "If-None-Match"):
        if header in request.headers:
            raise PolicyError(header, "the call changes no single entry; leave it out, and give ?expected=REVISION")
    return ChangeRequest(context, request, response, author, expected, *tried)


Change: TypeAlias = Annotated[ChangeRequest, Depends(_change)]
ChangeOfStore: TypeAlias = Annotated[ChangeRequest, Depends(_change_of_store)]
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


def answered(
    stored: StoredEntry, if_none_match: str | None, response: Response, shown: Callable[[StoredEntry], _Answer]
) -> _Answer | Response:
    """Return the answer to a read of an entry, with its ETag; 304 if the caller has the entry already."""
    etag = stored.version.etag
    if if_none_match is not None and is_any_of(stored.version, if_none_match):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return shown(stored)
