"""A job notes what it knows of the quotas that it shares, in a block that `status` and the usage table read.

The job writes it into its own control directory, after every report and when a visit goes wrong, so that nobody who
looks has to wait for the exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_throttle.core.quota import Int64s
from spark_throttle.files.storage import Directory, read_block, write_block

_NAME: Final = "exchange.status"


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another job of the exchange."""

    name: str
    member: str
    report_age_ms: int
    """Time since its last report was first seen; for an unreadable register, since its problem was."""

    state: str
    """``live``, ``dead`` or ``unreadable``."""


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """All that a job knows of the quotas that it shares; scopes by position in `ids`, peers by position in `peers`."""

    ids: Int64s
    quota: Int64s
    """Shape (n, 2): micro-tokens per millisecond, `UNLIMITED` where there is no limit; so are the other rates."""

    share: Int64s
    used_by_all: Int64s
    peers: tuple[PeerStatus, ...]
    peer_scope: Int64s
    """The scope of each row that a peer reported."""

    peer: Int64s
    """The peer that reported each row."""

    peer_claim: Int64s
    peer_used: Int64s
    is_leased: bool
    lease_age_ms: int
    """Time since the last of the job's own reports that the others are known to have seen; -1 without a lease."""

    lease_left_ms: int
    as_of_ms: int = 0
    """When the job observed this, by its wall clock."""

    problem: str = ""
    """What is wrong with the exchange; empty if nothing is."""


def write_observation(directory: Directory, observation: Observation) -> None:
    """Write what the job knows now, over what it wrote before."""
    write_block(directory, _NAME, observation)


def forget_observation(directory: Directory) -> None:
    """Remove what was written by a job that no longer shares."""
    directory.delete(_NAME)


def read_observation(directory: Directory) -> Observation | None:
    """Return what the job last wrote; `None` where it shares nothing."""
    return read_block(directory, _NAME, Observation, "the status")
