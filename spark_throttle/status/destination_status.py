"""The destinations of a job, as its newest epoch has them: how fast rows go there, and whether they are available."""

from __future__ import annotations

from dataclasses import dataclass

from spark_throttle.core.epoch import Epoch
from spark_throttle.core.quota import CompiledPolicy, Dimension
from spark_throttle.core.shares.destinations import group_names


@dataclass(frozen=True, slots=True)
class DestinationStatus:
    """One resource group that stands for a destination."""

    resource_group: str
    messages_per_second: float
    """The rate at which rows are admitted for it: up to an eighth more than is sent."""

    floor_messages_per_second: float
    ceiling_messages_per_second: float
    is_unavailable: bool
    """Whether its breaker is open."""

    refused_for_ms: int
    """For how long it has refused every call; 0 if it took one of the last batch."""


def destinations_of(epoch: Epoch | None, policy: CompiledPolicy | None) -> tuple[DestinationStatus, ...]:
    """Return the destinations of an epoch of `policy`; none if the policy has none."""
    if epoch is None or policy is None or policy.destinations is None or epoch.destinations is None:
        return ()
    rates, known = epoch.destinations, policy.destinations
    return tuple(
        DestinationStatus(
            name,
            int(rates.in_force_micro_per_ms[at]) / 1000,
            int(known.floor_micro_per_ms[at]) / 1000,
            int(policy.shared.rate_micro_per_ms[known.scope[at], Dimension.MESSAGES]) / 1000,
            bool(rates.is_open[at]),
            int(rates.refused_for_ms[at]),
        )
        for at, name in enumerate(group_names(policy))
    )
