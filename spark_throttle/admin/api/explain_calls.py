"""The call that explains how a namespace is limited: by which rule, at which level, and until when."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from fastapi import APIRouter, Query

from spark_throttle.admin.api.answers import documented
from spark_throttle.admin.api.calls import AnyCaller, ApiContext, check_tenant, readable_tenant, view_of
from spark_throttle.admin.api.requests import Segment
from spark_throttle.errors import NotFoundError
from spark_throttle.policy.model import MAX_NAME_BYTES
from spark_throttle.status.explain import explain_job, explain_policy
from spark_throttle.status.explanation import Explanation

router = APIRouter(prefix="/admin/v2", tags=["jobs"])

JobQuery: TypeAlias = Annotated[
    str | None, Query(max_length=MAX_NAME_BYTES, description="A watched job; without it, only the store is consulted.")
]


@router.get("/explain/{namespace}", responses=documented(404))
def get_explanation(
    served: ApiContext,
    caller: AnyCaller,
    namespace: Segment,
    job: JobQuery = None,
    direction: Literal["publish", "dispatch"] = "publish",
) -> Explanation:
    """Return the rule that applies to a namespace and why and, for a job, what its last batch did with the namespace.

    For a job, its own direction counts; `direction` matters only without `job`. A tenant admin gets the balances and
    the backlogs of its own levels only.
    """
    check_tenant(caller, namespace)
    if job is None:
        return explain_policy(served.service.store, namespace, direction)
    view, is_wide = view_of(served.watch, job), readable_tenant(caller) is None
    try:
        return explain_job(view.location, namespace, is_wide=is_wide, life=view.liveness())
    except NotFoundError as error:
        if is_wide:
            raise
        # The error names the job's directory.
        raise NotFoundError("batch of the job", job, "; it has planned none yet") from error
