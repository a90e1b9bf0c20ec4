"""Calls for the store's revisions: who changed what, when and why; how two revisions differ; roll back to one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from spark_throttle.admin.api.calls import ApiContext, Calls, ChangeOfStore, ChangeResponse
from spark_throttle.admin.api.requests import Limit, RevisionNumber
from spark_throttle.admin.caller import READS_ALL
from spark_throttle.admin.shown_policies import Plan, namespace_names
from spark_throttle.store.entries import Difference
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Revision

calls = Calls("revisions")


@calls.at("GET /history", who=READS_ALL, errors=[404])
def get_history(
    served: ApiContext,
    before: Annotated[int | None, Query(ge=1, le=2**62, description="Only revisions before this one.")] = None,
    limit: Limit = 20,
) -> list[Revision]:
    """Return the newest commits, newest first, with who made them and why."""
    return served.service.history(before=before, limit=limit)


@calls.at("GET /diff", who=READS_ALL, errors=[404])
def get_diff(
    served: ApiContext,
    before: RevisionNumber,
    after: RevisionNumber,
    offset: Annotated[RevisionNumber, Query(description="How many entries were on the pages before.")] = 0,
    limit: Limit = 100,
) -> list[Difference]:
    """Return a page of the entries that differ between two revisions, by kind and name."""
    return served.service.diff(before, after, offset=offset, limit=limit)


@calls.at("GET /rollback/{revision}", who=READS_ALL, errors=[404])
def plan_rollback(served: ApiContext, revision: RevisionNumber, limit: Limit = 100) -> Plan:
    """Return what a rollback to a revision would change, and what that would cost; nothing is changed."""
    planned = served.service.planned_rollback(revision, limit=limit)
    return Plan.of(planned, lambda: namespace_names(served.service.store, revision), most_losses=limit)


@calls.at("POST /rollback/{revision}", who=["admin"], errors=[404])
def roll_back(revision: RevisionNumber, change: ChangeOfStore) -> ChangeResponse:
    """Restore the policies of a revision, in one commit; the changes since then stay in the history."""
    return change.made(PolicyService.rollback, revision, is_entry=False)
