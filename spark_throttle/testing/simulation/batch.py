"""The result of one batch of a simulated job, and the control source that planned it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from spark_throttle.control.plane import ControlPlane
from spark_throttle.policy.source import PolicySnapshot
from spark_throttle.spark.move.decider_batch import BatchOutcome
from spark_throttle.spark.sources.control_source import ThrottleControlReader
from spark_throttle.testing.simulation.exchange import Rates
from spark_throttle.testing.simulation.rows import RejectedRow, Row


@dataclass(frozen=True, slots=True)
class SimulatedBatch:
    """The result of one attempt at a batch."""

    number: int
    now_ms: int
    """The batch time, read from the wall clock."""

    steady_ms: int
    """True time since the job began."""

    revision: str
    """Revision of the policies that the batch applied."""

    epoch: int
    arrived: tuple[Row, ...]
    admitted: tuple[Row, ...]
    """The admitted rows, in the order in which they left."""

    rejected: tuple[RejectedRow, ...]
    usage: bytes = field(repr=False)
    """The decider's usage report; empty if the batch brought nothing."""

    digest: str
    """Digest of the rows that left and of the new state, byte for byte."""

    shares: Rates = field(default_factory=dict)
    """The job's share of every shared quota in this batch; empty if it shared none."""


def digest_of(outcome: BatchOutcome | None) -> str:
    """Return a digest of the rows that left, in their order, and of the new state, byte for byte.

    The bytes of the output frames are not compared, because a column may or may not declare that it has no nulls.
    """
    digest = hashlib.sha256()
    if outcome is not None:
        digest.update(outcome.state + outcome.usage)
        for tables in (outcome.admitted, outcome.rejected):
            digest.update(repr([row for table in tables for row in table.to_pylist()]).encode())
    return digest.hexdigest()


@dataclass(slots=True)
class FollowedPolicies:
    """The policies that the job follows."""

    snapshot: PolicySnapshot

    def current(self) -> PolicySnapshot:
        """Return the newest policies."""
        return self.snapshot


class SimulatedSource(ThrottleControlReader):
    """The control source of a job, with a control plane that is passed in."""

    def __init__(self, options: dict[str, str], plane: ControlPlane) -> None:
        super().__init__(options)
        self._plane = plane
