"""Simulated jobs under what administrators gave, and under what tenants' administrators made of it: none admits more.

    python -m tests.admin.loosened_jobs --changes 100000 --seed 1

Many small worlds, each with a tenant, its neighbour and groups of its own, share one job. Three times in a run, each
tenant's administrator writes and removes entries, as far as the store lets it; what is taken back is among that. Before
that, administrators change what they give. The same rows go through a job that keeps what administrators gave, and
through one that follows the changes. After every batch of both:

1. Where one name of the tenant's sends, and nobody else in its world, no more of its rows were admitted than without
   the changes, and no more of them were admitted or wait: no row waits that was rejected.
2. Where several names and the neighbour send, no more rows of the tenant as a whole were admitted, but for
   `MOST_ROUNDED` rows: whose turn it is in a batch changes with who takes part. It may be more if the tenant has names
   in two groups: these divide its own quota, and what one of them leaves, the other may use.
   But for as many, no more of the tenant's rows were admitted or wait, and no more of the neighbour's were rejected,
   unless administrators gave it both scopes that delay and scopes that reject: what other names leave in these decides
   which of them a row meets first.
3. Where the neighbour's group rejects, so that nothing waits for it, no fewer of the neighbour's rows were admitted,
   but for as many. A group that delays serves what a tenant holds back later, within the tenant's part of that moment.

All rows of a world have the same size and as many units: else a large row that is held back makes room for many small
ones. A row costs the same time in all worlds of a job, because the price of names that are new is the mean of all.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any, Final

from spark_throttle.errors import NotFoundError, NotPermittedError, PolicyError
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.model import Direction, PolicyDocument
from spark_throttle.policy.values import time_text
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, Kind
from spark_throttle.testing import SimulatedJob
from spark_throttle.testing.simulation.rows import Name

Values = dict[str, Any]

WORLDS: Final = 300
BATCHES: Final = 14
CHANGED_BEFORE: Final = (0, 5, 9)
"""The batches before which tenants' administrators change something."""

ATTEMPTS: Final = 6
"""How often each of them tries to change something then."""

MOST_ROUNDED: Final = 3
HOLDS: Final = (
    "messages_per_second", "bytes_per_second", "units_per_second", "request_percentage", "messages_per_hour",
    "bytes_per_day", "units_per_month",
)  # fmt: skip
TAILS: Final = ("/a", "/ab", "/b")
ENTRIES: Final = (*TAILS, "/a*", "/*b", "/*")
CHOICES: Final[dict[str, list[Any]]] = {
    "messages_per_second": [0, 1, 2, 5, 10], "bytes_per_second": [0, 20, 100, 400], "max_message_bytes": [10, 100],
    "units_per_second": [0, 9, 30, 200], "max_message_units": [2, 30], "units_per_month": [0, 40, 600],
    "request_percentage": [0, 10, 100], "burst_seconds": [1, 2, 5, 20], "weight": [2, 5],
    "on_excess": ["reject", "reject", "delay", "observe"], "messages_per_hour": [0, 5, 20, 60],
    "bytes_per_day": [0, 100, 1_000],
}  # fmt: skip
CLAIMS: Final[dict[str, list[Any]]] = {
    "guaranteed_messages_per_second": [0, 1, 2], "guaranteed_bytes_per_second": [0, 20, 100],
    "guaranteed_units_per_second": [0, 9, 30],
    "guaranteed_request_percentage": [0, 10, 100],
}  # fmt: skip
"""What entries of single names, tenants and groups may be guaranteed: all of it, as their groups limit anything."""

BY_COUNT: Final = [
    "2*delay*3000", "2*delay*9000", "8*delay*500", "4*reject*50", "2*reject*50", "2*delay*1500,4*reject*50",
    "0*delay*1",
]  # fmt: skip
STRINGS: Final[dict[Direction, dict[str, list[str]]]] = {
    "publish": {"write_throttling": BY_COUNT, "write_throttling_by_size": ["100*delay*2000", "200*reject*5"]},
    "dispatch": {"read_throttling": BY_COUNT},
}


MINUTE_MS: Final = 60_000
EDGE_MS: Final = (SimulatedJob({}).wall_ms // MINUTE_MS + 2) * MINUTE_MS
"""The full minute at which hours of schedules begin or end."""

BEGIN_MS: Final = EDGE_MS - 7_000
"""When the job begins."""

HOURS: Final = [
    "thu", "fri",
    *(f"{time_text(EDGE_MS - each)[11:16]}-{time_text(EDGE_MS - each + MINUTE_MS)[11:16]}" for each in (MINUTE_MS, 0)),
]  # fmt: skip
"""Hours that hold in the whole run, never, before the edge, and after it."""

ENDS_MS: Final = (2_500, 6_000, 10_000)
"""When exceptions end, after the job has begun."""

ANN: Final = Author("ann")
_KINDS: Final[tuple[Kind, ...]] = ("namespace", "namespace", "tenant", "resource_group")
_SECTIONS: Final[dict[Kind, str]] = {
    "namespace": "namespaces",
    "tenant": "tenants",
    "resource_group": "resource_groups",
}


class World:
    """A tenant and its neighbour in the same group: what administrators gave them, and what they send."""

    def __init__(self, seed: str, number: int, direction: Direction, defaults: Values) -> None:
        self.random = draw = random.Random(f"{seed}/{number}")
        self.direction: Direction = direction
        self.tenant, self.neighbour = f"t{number}", f"u{number}"
        self.groups = groups = (f"g{number}", f"h{number}")
        self.is_alone = draw.random() < 0.5
        self.size_bytes, self.units = draw.choice([1, 10, 50]), draw.choice([0, 3, 20])
        self.now_ms = BEGIN_MS
        """The wall clock of the jobs."""

        self.made: list[tuple[int, str, Values | None]] = []
        """The changes that were made: before which batch, of which entry, and what it says since then."""

        limit = {direction: {"messages_per_second": draw.choice([2, 5, 20]), **self._quota()}}
        self.defaults = defaults
        self.given: Values = {
            "resource_groups": {group: {**self._scope(), **self._divided()} for group in groups},
            "tenants": {
                self.tenant: {**(limit if draw.random() < 0.5 else self._scope()), "resource_group": groups[0]},
                self.neighbour: {**self._scope(), "resource_group": groups[0]},
            },
            "namespaces": {self.tenant + each: self._entry(each) for each in ENTRIES if draw.random() < 0.3},
        }
        self._guarantee()
        self.ever_given = [deepcopy(self.given)]
        """What administrators gave, from the first to the last."""

        names = [self.tenant + tail for tail in TAILS]
        others = [f"{self.neighbour}/x", f"{self.neighbour}/y"]
        sending = [draw.choice(names)] if self.is_alone else [*names, *others]
        self.sends = {name: self._rows() for name in sending}
        """How many rows each name sends before each batch."""

        self.names = [name for name in self.sends if name in names]
        self.others = [name for name in self.sends if name in others]

    def _guarantee(self) -> None:
        """Guarantee something to some that have a name of their own, where it can be kept."""
        tenants, names = self.given["tenants"], self.given["namespaces"]
        for entry in (tenants[self.tenant], *(names[name] for name in sorted(names) if "*" not in name)):
            if self.random.random() < 0.5:
                quota = entry.setdefault(self.direction, {})
                claims = {key: self.random.choice(values) for key, values in CLAIMS.items()}
                quota |= {
                    key: min(most, quota.get(key.removeprefix("guaranteed_"), most)) for key, most in claims.items()
                }
                if not self._is_kept():
                    for key in CLAIMS:
                        del quota[key]

    def _is_kept(self) -> bool:
        try:
            parse_document({**self.given, "defaults": self.defaults})
        except PolicyError:
            return False
        return True

    def _quota(self) -> Values:
        return {key: self.random.choice(values) for key, values in CHOICES.items() if self.random.random() < 0.35}

    def _scope(self) -> Values:
        quota: Values = {self.direction: self._quota()} if self.random.random() < 0.7 else {}
        return {**quota, **self._exception(0.25), **self._schedule(0.2)}

    def _exception(self, part: float) -> Values:
        """Draw an exception in a part of all cases."""
        ends_ms = [BEGIN_MS + each for each in ENDS_MS if BEGIN_MS + each > self.now_ms]
        if self.random.random() >= part or not ends_ms or not (quota := self._quota()):
            return {}
        until = time_text(self.random.choice(ends_ms))
        return {"exception": {"until": until, "reason": "drawn", self.direction: quota}}

    def _schedule(self, part: float) -> Values:
        """Draw a schedule in a part of all cases."""
        if self.random.random() >= part:
            return {}
        hours = self.random.choice([HOURS[:1], HOURS[1:2], HOURS[2:3], HOURS[3:], HOURS[2:]])
        quotas = {each: self._quota() for each in hours}
        return {"schedule": {each: {self.direction: quota} for each, quota in quotas.items() if quota}}

    def _divided(self) -> Values:
        return {"fair_between": "namespaces"} if self.random.random() < 0.2 else {}

    def _strings(self) -> Values:
        texts = STRINGS[self.direction].items()
        return {key: self.random.choice(each) for key, each in texts if self.random.random() < 0.3}

    def _group(self) -> Values:
        return {"resource_group": self.random.choice(self.groups)} if self.random.random() < 0.2 else {}

    def _entry(self, name: str) -> Values:
        return self._observing({**self._scope(), **self._strings(), **self._group()}, name)

    def _observing(self, values: Values, name: str) -> Values:
        """Let a glob at times only observe a part of its names; a single name has none."""
        quota = values.get(self.direction, {})
        if "*" not in name:
            quota.pop("observe_percent", None)
        elif quota and self.random.random() < 0.4:
            quota["observe_percent"] = self.random.choice([0, 30, 60, 100])
        return values

    def _rows(self) -> list[int]:
        draw = self.random
        if draw.random() < 0.5:
            return [draw.choice([0, 3, 10])] * BATCHES
        return [draw.choice([0, 0, 0, 5, 40]) for _ in range(BATCHES)]

    def give(self, services: Iterable[PolicyService]) -> None:
        """Let an administrator change what is given, in every store if the first of them takes it."""
        draw, kind, before = self.random, self.random.choice(_KINDS), deepcopy(self.given)
        entries, name = self.given[_SECTIONS[kind]], self.tenant
        if kind == "namespace":
            name += draw.choice(ENTRIES)
            entries[name] = self._entry(name)
        elif kind == "tenant":
            entries[name] = {**self._scope(), "resource_group": self.groups[0]}
        else:
            name = draw.choice(self.groups)
            entries[name] = {**self._scope(), **self._divided()}
        if not self._is_kept():  # somebody is guaranteed more than that
            self.given = before
            return
        try:
            for service in services:
                service.put(kind, name, entries[name], ANN)
        except PolicyError:  # as the tenant's administrator has divided what is guaranteed
            self.given = before
        else:
            self.ever_given.append(deepcopy(self.given))

    def change(self, service: PolicyService, batch: int) -> Iterator[str]:
        """Let the tenant's administrator change something, and yield what becomes of each attempt."""
        for _ in range(ATTEMPTS):
            name, bob = self.tenant + self.random.choice(ENTRIES), Author("bob", tenant=self.tenant)
            values = None if self.random.random() < 0.25 else self._written(name)
            yield "changes"
            try:
                if values is None:
                    is_made = service.delete("namespace", name, bob).is_changed
                else:
                    is_made = service.put("namespace", name, values, bob).is_changed
            except NotPermittedError as error:
                yield "refused an exception" if error.path == "exception" else "refused"
            except PolicyError:
                yield "past"
            except NotFoundError:
                yield "nothing to remove"
            else:
                yield "made" if is_made else "the same"
                for key in ("exception", "schedule"):
                    yield from [f"made with {key}"] if is_made and values and values.get(key) else []
                self.made += [(batch, name, values)] if is_made else []

    def _written(self, name: str) -> Values:
        """Draw what the administrator writes; most start from a rule that was given, so that some are allowed."""
        draw, entries = self.random, self.given["namespaces"]
        rules = [entries.get(name, {}), entries.get(f"{self.tenant}/*", {}), self.defaults]
        values: Values = deepcopy(draw.choice([each for rule in rules for each in self._at_all_times(rule)]))
        values |= self._strings() if draw.random() < 0.4 else {}
        values |= self._group()
        quota = values.setdefault(self.direction, {})
        for key, value in list(self._quota().items())[: draw.randrange(4)]:
            is_number = key != "on_excess" and draw.random() < 0.8
            quota[key] = min(value, quota.get(key, value)) if is_number else value
        for key, rates in CLAIMS.items():
            if key in quota or draw.random() < 0.02:
                quota[key] = min(draw.choice(rates), quota.get(key.removeprefix("guaranteed_"), max(rates)))
        if draw.random() < 0.4:
            quota["on_excess"] = "reject"
        for key in ("exception", "schedule"):
            if draw.random() < 0.2:
                values.pop(key, None)
        return {**self._observing(values, name), **self._exception(0.2), **self._schedule(0.2)}

    @property
    def is_group_rejecting(self) -> bool:
        """Whether the group of the neighbour rejects what exceeds its quota."""
        groups = [given["resource_groups"][self.groups[0]] for given in self.ever_given]
        return all(self._action(each) == "reject" for group in groups for each in self._at_all_times(group))

    @property
    def is_in_two_groups(self) -> bool:
        """Whether names of the tenant are in another group than the tenant."""
        entries = (entry for given in self.ever_given for entry in given["namespaces"].values())
        return any(entry.get("resource_group", self.groups[0]) != self.groups[0] for entry in entries)

    @property
    def is_mixed(self) -> bool:
        """Whether administrators gave the tenant both scopes that delay and scopes that reject."""
        rules = [rule for given in self.ever_given for rule in given["namespaces"].values()]
        strings = any("delay" in rule.get(key, "") for rule in rules for key in STRINGS[self.direction])
        return self._is_mixed(self.tenant, *rules, strings=strings)

    @property
    def is_neighbour_mixed(self) -> bool:
        """Whether administrators gave the neighbour both."""
        return self._is_mixed(self.neighbour)

    def _action(self, scope: Values) -> str | None:
        """Return what a scope does with rows beyond its rates and budgets; `None` if it has none."""
        quota = scope.get(self.direction, {})
        return quota.get("on_excess", "delay") if any(key in quota for key in HOLDS) else None

    def _at_all_times(self, scope: Values) -> list[Values]:
        """Return a scope as it is without its exception and its schedule, and while parts of them are in force."""
        own, other = (each.get(self.direction, {}) for each in (scope, scope.get("exception", {})))
        hours: list[Values] = [{}, *(each[self.direction] for each in scope.get("schedule", {}).values())]
        return [
            {**scope, self.direction: {**own, **each, **last}} for each in hours for last in (dict[str, Any](), other)
        ]

    def _is_mixed(self, tenant: str, *rules: Values, strings: bool = False) -> bool:
        shared = [
            scope
            for given in self.ever_given
            for scope in (*given["resource_groups"].values(), given["tenants"][tenant])
        ]
        scopes = [self.defaults, *rules, *shared]
        actions = {self._action(each) for scope in scopes for each in self._at_all_times(scope)}
        return "reject" in actions and (strings or "delay" in actions)


class Run:
    """A job, and what became of the rows of each namespace."""

    def __init__(self, document: PolicyDocument, direction: Direction, row_ns: int) -> None:
        self.job = SimulatedJob(
            document,
            direction=direction,
            cost_ns=lambda rows: _times(Counter(row.namespace for row in rows), row_ns),
        )
        self.job.pass_time(BEGIN_MS - self.job.wall_ms)
        self.offered: Counter[Name] = Counter()
        self.admitted: Counter[Name] = Counter()
        self.rejected: Counter[Name] = Counter()

    def batch(self, rows: list[tuple[Name, int | None, int]], after_ms: int) -> None:
        """Offer rows, and decide them."""
        job, admitted, rejected = self.job, len(self.job.admitted), len(self.job.rejected)
        job.offer(rows)
        self.offered.update(name for name, *_ in rows)
        job.trigger(after_ms)
        self.admitted.update(row.namespace for row in job.admitted[admitted:])
        self.rejected.update(each.row.namespace for each in job.rejected[rejected:])

    def outcome(self, names: Iterable[str]) -> dict[str, int]:
        """Return how many rows of some names were admitted, were rejected, and were not."""
        admitted, rejected, offered = (
            sum(counts[name] for name in names) for counts in (self.admitted, self.rejected, self.offered)
        )
        return {"admitted": admitted, "rejected": rejected, "not rejected": offered - rejected}


def _times(rows: Counter[Name], row_ns: int) -> dict[str, int]:
    return {str(name): n * row_ns for name, n in rows.items()}


def run_worlds(seed: str, worlds: int = WORLDS) -> Counter[str]:
    """Run the worlds of one job, check them after every batch, and return what was counted."""
    draw, counts = random.Random(seed), Counter[str]()
    direction: Direction = draw.choice(["publish", "publish", "dispatch"])
    defaults: Values = draw.choice([{}, {direction: {"messages_per_second": 5}}])
    drawn = [World(seed, number, direction, defaults) for number in range(worlds)]
    given: Values = {"defaults": defaults}
    for section in drawn[0].given:
        given[section] = {name: values for world in drawn for name, values in world.given[section].items()}
    clock_ms = [BEGIN_MS]
    kept, service = (
        PolicyService(MemoryStore(), clock_ms=lambda: clock_ms[0], pause=lambda _: None) for _ in range(2)
    )  # fmt: skip
    for each in (kept, service):
        each.apply(parse_document(given), ANN)
    row_ns = draw.choice([0, 10**7, 10**8])
    before, after = (Run(service.document(), direction, row_ns) for _ in range(2))
    for batch in range(BATCHES):
        clock_ms[0] = before.job.wall_ms
        for world in drawn:
            world.now_ms = clock_ms[0]
        if batch in CHANGED_BEFORE:
            for world in drawn if batch else ():
                if draw.random() < 0.3:
                    world.give([service, kept])
                    counts["given"] += 1
            counts.update(outcome for world in drawn for outcome in world.change(service, batch))
            before.job.set_policies(kept.document())
            after.job.set_policies(service.document())
        rows: list[tuple[Name, int | None, int]] = [
            (name, world.size_bytes, world.units)
            for world in drawn
            for name, n in world.sends.items()
            for _ in range(n[batch])
        ]
        after_ms = draw.choice([300, 1000, 1000, 2500])
        for run in (before, after):
            run.batch(rows, after_ms)
        for world in drawn:
            counts.update(checked(world, before, after))
    return counts


def checked(world: World, before: Run, after: Run) -> Iterator[str]:
    """Check the laws of a world after a batch, and yield which of them said something."""
    if not world.made:
        return
    was, becomes = (run.outcome(world.names) for run in (before, after))
    beyond: dict[str, int] = {}
    if world.is_alone or not world.is_in_two_groups:
        beyond["admitted"] = becomes["admitted"] - was["admitted"]
    if world.is_alone or not world.is_mixed:
        beyond["not rejected"] = becomes["not rejected"] - was["not rejected"]
    was, becomes = (run.outcome(world.others) for run in (before, after))
    if not world.is_neighbour_mixed:
        beyond["rejected of the neighbour"] = becomes["rejected"] - was["rejected"]
    if world.is_group_rejecting:
        beyond["taken from the neighbour"] = was["admitted"] - becomes["admitted"]
    for law, rows in beyond.items():
        yield f"checks: {law}"
        assert rows <= (0 if world.is_alone else MOST_ROUNDED), (law, rows, json.dumps(vars(world), default=str))
        if rows > 0:
            yield f"{law} by rounding: {rows}"


def run_jobs(changes: int, seed: int, worlds: int = WORLDS) -> Counter[str]:
    """Run jobs until at least so many changes were made, and return what was counted."""
    counts: Counter[str] = Counter()
    while counts["made"] < changes:
        counts += run_worlds(f"{seed}/{counts['jobs']}", worlds)
        counts["jobs"] += 1
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    logging.disable(logging.CRITICAL)  # batches that reject rows say so
    print(json.dumps({"seed": asked.seed, **run_jobs(asked.changes, asked.seed)}))  # noqa: T201
