"""Calls for the watched jobs: the newest numbers, numbers over time, and why a namespace is throttled."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from fastapi import Query, Response
from pydantic import BaseModel

from spark_throttle.admin.api.calls import AnyCaller, ApiContext, Calls, SeenTenant, check_tenant, view_of
from spark_throttle.admin.api.requests import Segment
from spark_throttle.admin.api.scope_calls import ScopeNumbers, scope_numbers
from spark_throttle.admin.caller import READS_ALL, ROLES, Role
from spark_throttle.admin.watch.batch_numbers import MOST_NAMED
from spark_throttle.admin.watch.job_numbers import NamespacePage, TimeNumbers, namespaces_of, time_numbers
from spark_throttle.admin.watch.job_watch import JobView
from spark_throttle.admin.watch.metrics import CONTENT_TYPE, exposed
from spark_throttle.control.notes import ExceptionInForce
from spark_throttle.core.usage import ReservationCounts
from spark_throttle.errors import NotFoundError, ThrottleError
from spark_throttle.policy.values import MAX_NAME_BYTES
from spark_throttle.status.explain import explain_job, explain_policy
from spark_throttle.status.explanation import Explanation
from spark_throttle.status.liveness import JobState, life_in_words, problem_in_words
from spark_throttle.status.status import DestinationStatus, ExchangeStatus, destinations_of, exchange_status

calls = Calls("jobs")
metrics_calls = Calls("metrics", prefix="")

RECENT_BATCHES: Final = 40
MOST_EXCEPTIONS: Final = 100

Count: TypeAlias = Annotated[int, Query(ge=1, le=500)]
GroupQuery: TypeAlias = Annotated[str | None, Query(max_length=MAX_NAME_BYTES, description="Only its namespaces.")]
JobQuery: TypeAlias = Annotated[
    str | None, Query(max_length=MAX_NAME_BYTES, description="A watched job; without it, only the store is consulted.")
]


class RecentBatch(BaseModel):
    """A batch, and the revision of the policies that it was decided by."""

    batch: int
    epoch: int
    revision: str


class JobStatus(BaseModel):
    """A watched job."""

    job: str
    state: JobState
    """`reporting`: it lives. `silent`: no sign of life within the bound. `hanging`: it gives signs, but Spark asks for
    no batch. `ended`: the query ended in good order. `unknown`: no sign that can be read and dated."""

    listening: bool
    """Whether a change may reach a batch: false for a job that is silent, hangs, has ended or has never begun."""

    life: str
    """The state in words."""

    sign_age_ms: int | None
    """Time since the last sign of life, which a job gives also when it is idle."""

    asked_age_ms: int | None
    """Time since Spark last asked the job for a batch."""

    batch_age_ms: int | None
    """Time since the newest batch; null before the first."""

    direction: str | None
    batch: int
    """The newest batch that has reported; -1 before the first."""

    batch_time_ms: int | None
    elapsed_ms: int | None
    """Time between the newest batch and the one before it."""

    planned_epoch: int
    revision: str | None
    """Digest of the policies that the next batch is planned with."""

    store_revision: int | None
    """The store's revision that the next batch is planned with; null if the job follows no store."""

    unit: str
    """What its policies call units."""

    problem: str | None
    """Why the job cannot be read, or why the newest policies of its store are not in force; a tenant admin is told only
    that there is a reason."""

    exceptions: tuple[ExceptionInForce, ...]
    """The exceptions that the next batch is planned with, the 100 that end first; a tenant admin gets none."""

    recent: list[RecentBatch]
    scopes: list[ScopeNumbers]
    """The job, then at most 200 groups and 200 tenants that were active: first those whose messages have waited
    longest, then those that rejected most, then those nearest to their quota. A tenant admin gets none."""

    has_usage_table: bool
    """Whether the server reads the job's usage table: numbers over time then go back as far as it does."""

    time: TimeNumbers | None
    """Null if the policies have no quota on processing time."""

    destinations: tuple[DestinationStatus, ...]
    """A tenant admin gets none."""

    reservations: ReservationCounts | None
    """Null if no message left for an estimate, and for a tenant admin."""

    exchange: ExchangeStatus | None
    """Null if the job shares no quotas with other jobs, and for a tenant admin."""


class CallerAnswer(BaseModel):
    """The owner and the role of a request's token."""

    name: str
    token: str
    """The token's id, which is not secret."""

    role: Role
    tenant: str | None


class Status(BaseModel):
    """The policy store and all watched jobs."""

    store: str
    store_revision: int | None
    """`None` if the store cannot be read, or has lost its history."""

    store_problem: str | None
    """Why the store cannot be read, or what it has lost."""

    jobs: list[JobStatus]


@calls.at("GET /caller")
def get_caller(caller: AnyCaller) -> CallerAnswer:
    """Return the owner of the request's token, and its role."""
    role: Role = next(known for known in ROLES if known == caller.role)
    return CallerAnswer(name=caller.name, token=caller.token_id, role=role, tenant=caller.tenant)


@calls.at("GET /status")
def get_status(
    served: ApiContext, tenant: SeenTenant, scopes: Annotated[int, Query(ge=0, le=MOST_NAMED)] = MOST_NAMED
) -> Status:
    """Return the newest state of every watched job; a tenant admin gets no numbers of the job and its groups.

    At most `scopes` groups, and as many tenants, of each job come with their numbers.

    Jobs go on while their store cannot be read, so they are told of all the same.
    """
    is_wide = tenant is None
    store = served.service.store
    jobs = [_status(view, tenant, scopes) for view in served.watch.views()]
    revision, problem = None, None
    try:
        store.check_whole()
        revision = store.revision()
    except ThrottleError as error:
        problem = problem_in_words(str(error), is_wide=is_wide)
    return Status(store=store.location if is_wide else "", store_revision=revision, store_problem=problem, jobs=jobs)


@calls.at("GET /status/{job}/namespaces", errors=[404])
def get_namespaces(
    served: ApiContext, seen: SeenTenant, job: Segment, resource_group: GroupQuery = None, tenant: GroupQuery = None, *,
    throttled: bool = False, limit: Count = 50,
) -> NamespacePage:  # fmt: skip
    """Return the worst namespaces first, and what holds them back; a tenant admin sees those of its own tenant."""
    view = view_of(served.watch, job)
    if view.window is None or (seen is not None and tenant not in (None, seen)):
        return NamespacePage((), 0, 0, None)
    return namespaces_of(
        view.window, resource_group=resource_group, tenant=tenant if seen is None else seen, is_shown_all=seen is None,
        is_throttled=throttled, limit=limit, time=view.time,
    )  # fmt: skip


@calls.at("GET /explain/{namespace}", errors=[404])
def get_explanation(
    served: ApiContext, tenant: SeenTenant, namespace: Segment, job: JobQuery = None,
    direction: Literal["publish", "dispatch"] = "publish",
) -> Explanation:  # fmt: skip
    """Return the rule that applies to a namespace and why and, for a job, what its last batch did with the namespace.

    Of a tenant, return its quota and its group and, for a job, the worst of its namespaces that wait.

    For a job, its own direction counts; `direction` matters only without `job`. A tenant admin gets the balances and
    the backlogs of its own levels only.
    """
    check_tenant(tenant, namespace)
    is_wide = tenant is None
    if job is None:
        service = served.service
        return explain_policy(service.store, namespace, direction, is_wide=is_wide, now_ms=service.clock_ms())
    view = view_of(served.watch, job)
    try:
        return explain_job(view.location, namespace, is_wide=is_wide, life=view.liveness())
    except NotFoundError as error:
        if is_wide:
            raise
        # The error names the job's directory.
        raise NotFoundError("batch of the job", job, "; it has planned none yet") from error


_TEXT: Final = {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}, "description": "Prometheus' text format."}


@metrics_calls.at("GET /metrics", who=READS_ALL, response_class=Response, responses={200: _TEXT})
def get_metrics(served: ApiContext) -> Response:
    """Return the metrics for Prometheus, which sends its token if configured: `authorization: {credentials: …}`."""
    return Response(exposed(served.watch, served.service.store), media_type=CONTENT_TYPE)


def _status(view: JobView, tenant: str | None, scopes: int) -> JobStatus:
    is_wide = tenant is None
    followed, newest = view.followed, view.batches[-1] if view.batches else None
    recent = list(view.batches)[-RECENT_BATCHES:]
    problem = view.problem or (followed.problem if followed else None)
    life = view.liveness()
    return JobStatus(
        job=view.name,
        state=life.state,
        listening=life.is_listening,
        life=life_in_words(life, is_wide=is_wide),
        sign_age_ms=life.sign_age_ms,
        asked_age_ms=life.asked_age_ms,
        batch_age_ms=view.batch_age_ms(),
        direction=view.direction,
        batch=-1 if newest is None else newest.batch,
        batch_time_ms=None if newest is None else newest.now_ms,
        elapsed_ms=(newest.elapsed_ms or None) if newest else None,
        planned_epoch=view.planned_epoch,
        revision=followed.revision if followed else None,
        store_revision=followed.store_revision if followed else None,
        unit="units" if view.epoch_policy is None else view.epoch_policy.unit,
        problem=problem_in_words(problem, is_wide=is_wide),
        exceptions=followed.exceptions[:MOST_EXCEPTIONS] if followed and is_wide else (),
        recent=[RecentBatch(batch=kept.batch, epoch=kept.epoch, revision=kept.revision) for kept in recent],
        scopes=scope_numbers(view, view.totals.worst(scopes)) if is_wide else [],
        has_usage_table=view.usage is not None,
        destinations=destinations_of(view.epoch, view.epoch_policy) if is_wide else (),
        reservations=newest.reservations if newest and is_wide else None,
        exchange=exchange_status(view.exchange) if is_wide else None,
        time=None if view.time is None else time_numbers(view.time, tenant),
    )
