"""A change that is tried can be replayed on recorded traffic: what it would have done, beside the policies in force.

The traffic is that of the job's usage table, so every batch is an arrival, and its messages count by their mean size.
The replay begins with full buckets and nobody waiting (`what_if.replay`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final, TypeAlias

from fastapi import Depends, HTTPException, Query

from spark_throttle.admin.api.requests import DryRun
from spark_throttle.admin.watch.job_watch import JobView
from spark_throttle.errors import ConfigurationError, PolicyError
from spark_throttle.policy.compile import compile_from
from spark_throttle.policy.model import Direction
from spark_throttle.policy.values import MAX_NAME_BYTES
from spark_throttle.store.committer import CommitResult
from spark_throttle.store.entries import document_of, key_of
from spark_throttle.store.store import Entry, PolicyStore
from spark_throttle.what_if.outcome import WhatIf, what_if
from spark_throttle.what_if.traffic import INTERVALS_MS, Traffic

MOST_SECONDS: Final = 24 * 3600
MOST_INTERVALS: Final = 1_500
MOST_MESSAGES: Final = 50_000_000
MOST_SCOPES: Final = 200
"""Bounds on what one call replays, in some seconds, and on its answer."""


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The job whose traffic is replayed, and how much of it."""

    job: str
    seconds: int


def _tried(
    replay: Annotated[
        str | None,
        Query(max_length=MAX_NAME_BYTES, description="With `dry_run`: replay the recorded traffic of this job, too."),
    ] = None,
    seconds: Annotated[int, Query(ge=1, le=MOST_SECONDS, description="How much of it; at most a day.")] = 3600,
    dry_run: DryRun = False,  # noqa: FBT002 - a query parameter
) -> tuple[bool, ReplayRequest | None]:
    if replay is not None and not dry_run:
        raise PolicyError("replay", "a change is replayed where it is only tried; give ?dry_run=true too")
    return dry_run, None if replay is None else ReplayRequest(replay, seconds)


Tried: TypeAlias = Annotated[tuple[bool, ReplayRequest | None], Depends(_tried)]
"""Whether a change is only tried, and what is replayed under it."""


def replayed(view: JobView, store: PolicyStore, made: CommitResult, seconds: int, *, tenant: str | None) -> WhatIf:
    """Return what a change that was tried would have done to the newest traffic of a job: scopes that it concerns.

    Raises
    ------
    ConfigurationError
        If the server knows no usage table of the job, or that has too much or no traffic of the time.
    """
    if tenant is not None:
        raise HTTPException(403, "only an administrator replays the traffic of a job: it is also that of others")
    if view.usage is None:
        raise ConfigurationError(
            f"the server knows no usage table of {view.name}; start it with --usage {view.name}=<the table's path>"
        )
    if made.left_out:
        raise ConfigurationError(f"the change has {made.left_out} entries more than are replayed; change fewer at once")
    until_ms = view.clock.wall_ms() if view.newest is None else view.newest.now_ms
    interval_ms = next(each for each in INTERVALS_MS if seconds * 1000 <= each * MOST_INTERVALS)
    since_ms = until_ms - 1000 * seconds
    sums = view.usage.sums(since_ms=since_ms, until_ms=until_ms, interval_ms=interval_ms)
    less, more = view.usage.corrected_units(since_ms=since_ms, until_ms=until_ms)
    traffic = Traffic.of(sums, interval_ms=interval_ms)
    messages = int(traffic.messages.sum())
    if messages > MOST_MESSAGES:
        raise ConfigurationError(
            f"{view.name} was offered {messages:,} messages in that time, more than {MOST_MESSAGES:,} that are "
            "replayed at once; ask for less time, or run spark-throttle simulate"
        )
    direction: Direction = "dispatch" if view.direction == "dispatch" else "publish"
    before, after = (
        compile_from(document_of(entries), direction, traffic.first_ms, traffic.end_ms)
        for entries in (store.scan(), _changed(store, made))
    )
    found = what_if(traffic, after, before)
    concerned = [each for each in found.scopes if each.is_held or each.gained_messages]
    estimated = f"costs that came late (units are as estimated; {less:,} less and {more:,} more were told)"
    not_replayed = (*found.not_replayed, *((estimated,) if less or more else ()))
    return replace(found, scopes=tuple(concerned[:MOST_SCOPES]), not_replayed=not_replayed)


def _changed(store: PolicyStore, made: CommitResult) -> Iterator[Entry]:
    """Yield the store's entries as they would be after a change."""
    after = {key_of(each.path): each.after for each in made.made}
    yield from (entry for entry in store.scan() if entry.key not in after)
    yield from (Entry(*key, body, made.revision) for key, body in after.items() if body is not None)
