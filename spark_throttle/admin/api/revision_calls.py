"""Calls for the store's revisions: who changed what, when and why; how two revisions differ; roll back to one."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from spark_throttle.admin.api.answers import documented
from spark_throttle.admin.api.calls import READERS, Admin, ApiContext, ChangeResponse, UnconditionalChange
from spark_throttle.admin.api.requests import Limit
from spark_throttle.admin.heirs import heirs_of, namespace_names
from spark_throttle.store import entries
from spark_throttle.store.store import Door, Kind

router = APIRouter(prefix="/admin/v2", tags=["revisions"])

_MOST: int = 2**62
RevisionNumber: TypeAlias = Annotated[int, Field(ge=0, le=_MOST)]


class RevisionEntry(BaseModel):
    """One commit."""

    revision: int
    at_ms: int
    """Time of the commit by its author's wall clock, since 1970."""

    who: str
    why: str
    changes: int
    """Number of entries that the commit wrote or removed."""

    door: Door | None
    """How the change came in; null for commits of releases that did not keep it."""

    caller: str | None
    """The token, the sign-in or the system's user that was authenticated, whatever `who` says."""


class Difference(BaseModel):
    """One entry that differs between two revisions; null where it does not exist."""

    kind: Kind
    name: str
    path: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class RollbackPlan(BaseModel):
    """What a rollback would do, if it were made now."""

    revision: int
    """The store's revision that it would change; `expected` makes sure of it."""

    changes: int
    """How many entries would change."""

    differences: list[Difference]
    """The first of them."""

    losses: list[str]
    """The worst of what it would cost; if there is any, the change must be confirmed (`yes`)."""

    all_losses: int
    """How many losses there are."""

    heirs: dict[str, list[str]]
    """Which rules take over the names of each namespace and glob among `differences` whose entry would be removed."""


@router.get("/history", dependencies=READERS, responses=documented(404))
def get_history(
    served: ApiContext,
    before: Annotated[int | None, Query(ge=1, le=_MOST, description="Only revisions before this one.")] = None,
    limit: Limit = 20,
) -> list[RevisionEntry]:
    """Return the newest commits, newest first, with who made them and why."""
    return [
        RevisionEntry(
            revision=r.revision, at_ms=r.at_ms, who=r.who, why=r.why, changes=r.changes, door=r.door, caller=r.caller
        )
        for r in served.service.history(before=before, limit=limit)
    ]


@router.get("/diff", dependencies=READERS, responses=documented(404))
def get_diff(
    served: ApiContext,
    before: Annotated[int, Query(ge=0, le=_MOST)],
    after: Annotated[int, Query(ge=0, le=_MOST)],
    offset: Annotated[int, Query(ge=0, le=_MOST, description="How many entries were on the pages before.")] = 0,
    limit: Limit = 100,
) -> list[Difference]:
    """Return a page of the entries that differ between two revisions, by kind and name."""
    return [_difference(each) for each in served.service.diff(before, after, offset=offset, limit=limit)]


@router.get("/rollback/{revision}", dependencies=READERS, responses=documented(404))
def plan_rollback(served: ApiContext, revision: RevisionNumber, limit: Limit = 100) -> RollbackPlan:
    """Return what a rollback to a revision would change, and what that would cost; nothing is changed."""
    planned = served.service.planned_rollback(revision, limit=limit)
    return RollbackPlan(
        revision=planned.revision,
        changes=planned.changes,
        differences=[_difference(each) for each in planned.differences],
        losses=[str(loss) for loss in planned.losses[:limit]],
        all_losses=len(planned.losses),
        heirs=heirs_of(planned, lambda: namespace_names(served.service.store, revision)),
    )


@router.post("/rollback/{revision}", responses=documented(404, 412, 428))
def roll_back(
    served: ApiContext,
    caller: Admin,
    revision: RevisionNumber,
    asked: UnconditionalChange,
    expected: Annotated[
        int | None, Query(ge=0, le=_MOST, description="Roll back only if the store is at this revision; else 412.")
    ] = None,
) -> ChangeResponse:
    """Restore the policies of a revision, in one commit; the changes since then stay in the history."""
    return asked.answer(served.service.rollback(revision, asked.author(caller), expected=expected), is_entry=False)


def _difference(each: entries.Difference) -> Difference:
    return Difference(kind=each.kind, name=each.name, path=each.path, before=each.before, after=each.after)
