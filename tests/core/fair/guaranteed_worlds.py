"""Worlds in which scopes are guaranteed something, drawn from a seed, and who was served in them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from spark_throttle.core.batch.admission import AdmissionPlan, plan_admission
from spark_throttle.core.names.matching import MatchMemory
from spark_throttle.core.quota import CompiledPolicy, Verdict
from spark_throttle.core.state import DeciderState
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy
from tests.oracle.worlds import make_arrivals

Values = dict[str, Any]
START_MS = 1_760_000_000_000


@dataclass
class Job:
    """A job that decides batches under one policy, and what it admitted."""

    policy: CompiledPolicy
    now_ms: int = START_MS
    waiting: Counter[str] = field(default_factory=Counter)
    """The rows that wait, by namespace."""

    plan: AdmissionPlan | None = None

    @classmethod
    def of(cls, document: Values) -> Job:
        """Return a job under a document."""
        return cls(compile_policy(parse_document(document), "publish"))

    def __post_init__(self) -> None:
        self.state = DeciderState.initial(self.policy, now_ms=self.now_ms)
        self._memory = MatchMemory()

    def batch(self, rows: list[tuple[str, int]], after_ms: int) -> dict[str, tuple[int, int]]:
        """Decide a batch, and return the messages and bytes that were admitted, by namespace."""
        self.now_ms += after_ms
        names, queue = self.state.flows.names.to_pylist(), self.state.queue
        queued = [(names[at], size) for at, size in zip(queue.flow.tolist(), queue.size_bytes.tolist(), strict=True)]
        self.plan = plan_admission(
            self.state, make_arrivals(rows), self.policy, now_ms=self.now_ms, memory=self._memory
        )
        self.state = self.plan.state
        served: dict[str, tuple[int, int]] = {}
        self.waiting.clear()
        for (name, size), verdict in zip([*queued, *rows], self.plan.decisions.verdict.tolist(), strict=True):
            if verdict == Verdict.ADMIT:
                messages, in_bytes = served.get(name, (0, 0))
                served[name] = messages + 1, in_bytes + size
            elif verdict == Verdict.DELAY:
                self.waiting[name] += 1
        return served


RATES = "messages_per_second", "bytes_per_second"


@dataclass(frozen=True)
class DrawnWorld:
    """A policy whose guarantees can be kept, and the namespaces of it."""

    document: Values
    names: tuple[str, ...]
    guaranteed: dict[str, tuple[int | None, int | None]]
    """What each entry is guaranteed, in messages and bytes a second, by the path of its entry."""

    @classmethod
    def draw(cls, rng: random.Random, *, in_bytes: bool) -> DrawnWorld:
        """Draw a job over groups, tenants and namespaces, whose guarantees are parts of their parents'."""
        dimensions = RATES if in_bytes else RATES[:1]
        unit = (1, 60)
        have = {rate: rng.choice((40, 100, 300)) * unit[d] for d, rate in enumerate(dimensions)}
        document: Values = {
            "job": {"publish": {**have, "burst_seconds": 10}}, "resource_groups": {}, "tenants": {}, "namespaces": {},
        }  # fmt: skip
        guaranteed: dict[str, tuple[int | None, int | None]] = {}
        names: list[str] = []

        def entry(section: str, name: str, left: dict[str, int], **more: Any) -> dict[str, int]:
            """Write an entry that is guaranteed a part of what is left, and return what is left to its children."""
            share = rng.choice((0, 0, 0.1, 0.3, 0.6))
            found = {rate: int(most * share) for rate, most in left.items()} if share else {}
            claims = {f"guaranteed_{rate}": value for rate, value in found.items()}
            document[section][name] = {
                "publish": {"weight": rng.choice((1, 1, 2, 9)), "burst_seconds": 10, **claims}, **more
            }  # fmt: skip
            if not found:
                return left
            for rate, value in found.items():
                left[rate] -= value
            guaranteed[f"{section}.{name}"] = found[RATES[0]], found.get(RATES[1])
            return dict(found)

        for at in range(3):
            of_group = entry("resource_groups", f"g{at}", have) if at < 2 else have
            for tenant in (f"t{at}{each}" for each in range(rng.randint(1, 3))):
                member = {"resource_group": f"g{at}"} if at < 2 else {}
                of_tenant = entry("tenants", tenant, of_group, **member)
                for name in (f"{tenant}/{each}" for each in range(rng.randint(1, 3))):
                    entry("namespaces", name, of_tenant)
                    names.append(name)
        return cls(document, tuple(names), guaranteed)

    def names_of(self, path: str) -> list[str]:
        """Return the namespaces of an entry."""
        section, _, name = path.partition(".")
        if section == "namespaces":
            return [name]
        if section == "tenants":
            return [each for each in self.names if each.startswith(f"{name}/")]
        return [each for each in self.names if each[1] == name[1]]

    def inside(self, path: str) -> int:
        """Return how many scopes below an entry are guaranteed something."""
        below = set(self.names_of(path))
        return sum(1 for other in self.guaranteed if other != path and set(self.names_of(other)) <= below)
