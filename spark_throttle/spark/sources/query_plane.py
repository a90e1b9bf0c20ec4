"""The construction of a query's control plane from the options of its control source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_throttle.checkpoint.manifest import (
    Manifest,
    bind,
    bound_manifest,
    next_incarnation,
    refuse_drained,
    refuse_unbound,
)
from spark_throttle.checkpoint.offset_log import read_offset_log
from spark_throttle.control.clock import Clock
from spark_throttle.control.notes import Pulse
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.run_fence import RunFence
from spark_throttle.control.shared_quotas import SharedQuotas
from spark_throttle.errors import TakenOverError
from spark_throttle.files.storage import Directory
from spark_throttle.policy.codec import parse_policies
from spark_throttle.policy.compile import revision_of
from spark_throttle.policy.model import Direction
from spark_throttle.policy.source import (
    PatientPolicies,
    PolicyFile,
    PolicyObject,
    PolicySnapshot,
    PolicySource,
    WithoutUnits,
)
from spark_throttle.sharing.exchange import open_exchange
from spark_throttle.sharing.lease_keeper import Clocks, LeaseKeeper
from spark_throttle.sharing.member import drawn_run, member_in
from spark_throttle.sharing.settings import ExchangeOptions
from spark_throttle.sharing.sharing import Sharing
from spark_throttle.sharing.status import forget_observation, write_observation
from spark_throttle.spark.start.start_check import Sinks, check_start
from spark_throttle.store.followed_store import FollowedStore
from spark_throttle.store.policy_location import PolicyLocation
from spark_throttle.store.policy_table import FollowedTable

_TABLE_WAIT_MS: Final = 10_000
"""The longest time that rows wait without a batch where policies are read with each batch."""


@dataclass(frozen=True, slots=True)
class FixedPolicies:
    """Policies given as a document, which do not change while the query runs."""

    snapshot: PolicySnapshot

    @classmethod
    def parse(cls, text: str) -> FixedPolicies:
        """Return the policies of a YAML or JSON text."""
        document = parse_policies(text)
        return cls(PolicySnapshot(document, revision_of(document), None))

    def current(self) -> PolicySnapshot:
        """Return the policies."""
        return self.snapshot


def open_plane(options: dict[str, str], clock: Clock, *, may_begin: bool = True) -> ControlPlane:
    """Return the control plane of a query, after its policies have been read and its sinks checked.

    Parameters
    ----------
    may_begin
        Whether the query may be new, because no offset names an epoch yet.
    """
    # Spark's option names come back in lower case.
    direction: Direction = "dispatch" if options["direction"] == "dispatch" else "publish"
    directory = Directory(options["controlpath"])
    location = PolicyLocation.from_options(options)
    policies = _followed(location, directory)
    if "statesunits" not in options:
        policies = WithoutUnits(policies, direction)
    policies.current()
    sinks = Sinks.from_json(options["sinks"]) if "sinks" in options else None
    if sinks is not None and read_offset_log(Directory(sinks.checkpoint)).logged >= 0:
        may_begin = False
    manifest = bind(directory, direction=direction, may_begin=may_begin)
    if sinks is not None:
        manifest = check_start(directory, manifest, sinks)
    exchange = options.get("exchange")
    keeper = None if exchange is None else _lease_keeper(exchange, directory, manifest, clock)
    if keeper is None:
        forget_observation(directory)

    def begin() -> None:
        _refuse_changed(directory, manifest)
        pulse.start()
        if keeper is not None:
            keeper.start()

    fence = RunFence(directory, begin, options.get("run"))
    pulse = Pulse(directory, fence, clock, cores=int(options["cores"]) if "cores" in options else None)
    shared = None if keeper is None else SharedQuotas(keeper, direction)
    retained = int(options["batchesretained"])
    return ControlPlane(
        directory, policies, direction, clock, shared, batches_retained=retained, fence=fence, pulse=pulse,
        are_policies_on_disk=location.is_on_disk, may_begin_anew="maybeginanew" in options,
        most_wait_ms=_TABLE_WAIT_MS if location.kind == "table" else None, takes_costs="takescosts" in options,
    )  # fmt: skip


def _refuse_changed(directory: Directory, bound: Manifest) -> None:
    """Refuse to begin on a checkpoint that a tool has closed or changed since this run was bound to it.

    Raises
    ------
    DrainedError
        If its waiting rows were written elsewhere.
    TakenOverError
        If it was changed otherwise.
    """
    refuse_drained(directory)
    found = bound_manifest(directory)
    refuse_unbound(found, direction=bound.direction)
    if found != bound:
        raise TakenOverError(directory.location)


def _followed(location: PolicyLocation, directory: Directory) -> PolicySource:
    match location.kind:
        case "document":
            return FixedPolicies.parse(location.place)
        case "file":
            return PatientPolicies(PolicyFile(location.place))
        case "object":
            return PatientPolicies(PolicyObject(location.place))
        case "store":
            return PatientPolicies(FollowedStore(location.place))
        case "table":
            assert location.rows is not None  # noqa: S101 - an option has them
            return FollowedTable(directory, location.rows)


def _lease_keeper(exchange: str, directory: Directory, manifest: Manifest, clock: Clock) -> LeaseKeeper:
    options = ExchangeOptions.from_json(exchange)
    name = options.job or manifest.query[:8]
    member, incarnation = member_in(directory), next_incarnation(directory)
    sharing = Sharing(member, name, incarnation, options.settings, drawn_run())
    return LeaseKeeper(
        sharing,
        open_exchange(options.path),
        Clocks(clock.steady_ms, clock.wall_ms),
        on_visit=lambda observation: write_observation(directory, observation),
    )
