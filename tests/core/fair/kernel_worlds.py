"""Drawn histories of the fair tree as the decider plays them: policies, names, queues and all."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_throttle.core.fair.work import TOKEN_BITS, token_work
from spark_throttle.core.quota import CompiledPolicy, Dimension
from tests.core.fair.fluid import Path
from tests.core.fair.worlds import UNLIMITED, Bucket, World
from tests.oracle.decider import Decider
from tests.oracle.worlds import Limit, Namespace, Tenant, limit, make_limits, make_policy


def named(path: Path) -> str:
    """Return the namespace of a leaf: its tenant, then its group and itself, for a tenant has no group of its own."""
    group, tenant, name = path
    return f"{tenant}/{group}-{name}"


@dataclass
class DecidedWorld(World):
    """A world whose batches a decider decides, a second apart.

    A tenant has one weight, whatever groups its nodes are in, and the bytes of all scopes are in one proportion to
    their messages.
    """

    decider: Decider = field(init=False)
    known: dict[Path, int] = field(default_factory=dict)
    """How many rows of each namespace wait in the decider."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.share_weights()
        each = self.bytes_a_message
        if each and self.counts_messages:
            for bucket in self.buckets.values():
                messages = bucket.rate[0]
                assert messages is not None
                bucket.rate = (messages, messages * each)
                bucket.balance = [messages, messages * each]
        self.decider = Decider("kernel", self.policy())

    def share_weights(self) -> None:
        for path in [path for path in self.weights if len(path) == 2]:
            self.weights[path] = self.weights["g0", path[1]]

    def change(self, weights: dict[Path, int], rates: dict[object, tuple[int | None, int | None]]) -> None:
        super().change(weights, {})  # what a bucket keeps of its balance is another subject
        self.share_weights()
        self.decider.policy = self.policy()

    def limit_of(self, scope: object, weight: int = 1) -> Limit:
        bucket = self.buckets.get(scope, Bucket((None, None)))
        return limit(messages_per_second=bucket.rate[0], bytes_per_second=bucket.rate[1], weight=weight)

    def policy(self) -> CompiledPolicy:
        paths = sorted({path for path in (*self.weights, *self.buckets) if isinstance(path, tuple) and len(path) == 3})
        tenants = sorted({path[1] for path in self.weights if len(path) in {2, 3}})
        groups = sorted({path[0] for path in self.weights if path})
        namespaces = {
            named(path): Namespace(self.limit_of(path, self.weights[path]), path[0])
            for path in paths
            if path[0] != "tenant"
        }
        return make_policy(
            job=self.limit_of(()),
            tenants={
                name: Tenant(self.limit_of(("tenant", name), self.weights.get(("g0", name), 1))) for name in tenants
            },
            groups={name: self.limit_of((name,), self.weights[name,]) for name in groups},
            namespaces=namespaces | {f"*/{group}-*": Namespace(group=group) for group in groups},
        )

    def work_of_bytes(self, size: int) -> int:
        messages, size_bytes = next(iter(self.buckets.values())).rate
        if size_bytes is None:
            return UNLIMITED
        both = limit(messages_per_second=messages, bytes_per_second=size_bytes)
        return size * int(token_work(make_limits([both]).rate_micro_per_ms)[Dimension.BYTES, 0]) >> TOKEN_BITS

    def decide(self, own: dict[Path, int]) -> dict[Path, int]:
        """Return how many rows of each namespace go; the decider counts for itself what their own buckets let pass."""
        coming = [(named(path), size) for path in own for size in list(self.queues[path])[self.known.get(path, 0) :]]
        self.decider.batch(1_000 * self.batches, coming)
        served = self.decider.admitted()
        counts = {path: served[named(path)] for path in own}
        self.known = {path: len(self.queues[path]) - count for path, count in counts.items()}
        return counts
