"""The control plane of a query, from the options of its control source."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_throttle.control.codec import parse_policies
from spark_throttle.control.compile import revision_of
from spark_throttle.control.exchange import open_exchange
from spark_throttle.control.exchange_options import ExchangeOptions
from spark_throttle.control.followed_store import FollowedStore
from spark_throttle.control.lease_keeper import Clocks, LeaseKeeper
from spark_throttle.control.manifest import Manifest, bind, next_incarnation
from spark_throttle.control.model import Direction
from spark_throttle.control.offset_log import read_offset_log
from spark_throttle.control.patience import PatientPolicies
from spark_throttle.control.plane import ControlPlane, PolicySource
from spark_throttle.control.run_fence import RunFence
from spark_throttle.control.share_status import write_observation
from spark_throttle.control.shared_quotas import SharedQuotas
from spark_throttle.control.sharing import Sharing
from spark_throttle.control.source import PolicyFile, PolicySnapshot
from spark_throttle.control.storage import Directory
from spark_throttle.spark.start_check import Sinks, check_start


@dataclass(frozen=True, slots=True)
class FixedPolicies:
    """Policies that were given as a document and do not change while the query runs."""

    snapshot: PolicySnapshot

    @classmethod
    def parse(cls, text: str) -> FixedPolicies:
        """Return the policies of a YAML or JSON text."""
        document = parse_policies(text)
        return cls(PolicySnapshot(document, revision_of(document), None))

    def current(self) -> PolicySnapshot:
        """Return them."""
        return self.snapshot


def open_plane(options: dict[str, str], clock_ms: Callable[[], int], *, may_begin: bool = True) -> ControlPlane:
    """Return the control plane of a query, with policies that it could read.

    Parameters
    ----------
    may_begin
        Whether the query may be a new one: no offset names an epoch yet.
    """
    # Spark's option names come back in lower case.
    shards = len(json.loads(options["shardkeys"]))
    direction: Direction = "dispatch" if options["direction"] == "dispatch" else "publish"
    directory = Directory(options["controlpath"])
    policies: PolicySource
    if "policystore" in options:
        policies = PatientPolicies(FollowedStore(options["policystore"]))
    elif "policyfile" in options:
        policies = PatientPolicies(PolicyFile(options["policyfile"]))
    else:
        policies = FixedPolicies.parse(options["policytext"])
    policies.current()
    sinks = Sinks.from_json(options["sinks"]) if "sinks" in options else None
    if sinks is not None and read_offset_log(Directory(sinks.checkpoint)).logged >= 0:
        may_begin = False
    manifest = bind(directory, shards=shards, direction=direction, may_begin=may_begin)
    if sinks is not None:
        manifest = check_start(directory, manifest, sinks)
    fence = RunFence(directory)
    fence.begin()
    exchange = options.get("exchange")
    shared = None if exchange is None else _shared_quotas(exchange, directory, manifest, direction, clock_ms)
    retained = int(options["batchesretained"])
    return ControlPlane(
        directory, policies, direction, shards, clock_ms, shared, batches_retained=retained, fence=fence
    )


def _shared_quotas(
    exchange: str, directory: Directory, manifest: Manifest, direction: Direction, clock_ms: Callable[[], int]
) -> SharedQuotas:
    options = ExchangeOptions.from_json(exchange)
    name = options.job or manifest.query[:8]
    sharing = Sharing(manifest.query, name, next_incarnation(directory), options.settings)
    keeper = LeaseKeeper(
        sharing,
        open_exchange(options.path),
        Clocks(_steady_clock_ms, clock_ms),
        on_visit=lambda observation: write_observation(directory, observation),
    )
    keeper.start()
    return SharedQuotas(keeper, direction)


def _steady_clock_ms() -> int:
    """Return a clock that is never set, and that goes on while the machine sleeps, where there is one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return (time.monotonic_ns() if clock is None else time.clock_gettime_ns(clock)) // 1_000_000
