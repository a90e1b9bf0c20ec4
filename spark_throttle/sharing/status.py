"""What a job knows of the quotas that it shares, as a block that `status` and the usage table read.

The job writes it into its own control directory, after every report and when a visit goes wrong, so that nobody who
looks has to wait for the exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.core.quota import Int64s
from spark_throttle.files.storage import Directory

STATUS_VERSION = 1
_NAME: Final = "exchange.status"
_STATES: Final = ("live", "dead", "unreadable")


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
    o = observation
    directory.write(_NAME, pack("shro", STATUS_VERSION, {
        "ids": o.ids, "quota": o.quota, "share": o.share, "used": o.used_by_all,
        "names": "\n".join(peer.name for peer in o.peers), "members": "\n".join(peer.member for peer in o.peers),
        "ages_ms": np.array([peer.report_age_ms for peer in o.peers], dtype=np.int64),
        "states": np.array([_STATES.index(peer.state) for peer in o.peers], dtype=np.int64),
        "peer_scope": o.peer_scope, "peer": o.peer, "peer_claim": o.peer_claim, "peer_used": o.peer_used,
        "is_leased": int(o.is_leased), "lease_age_ms": o.lease_age_ms, "lease_left_ms": o.lease_left_ms,
        "as_of_ms": o.as_of_ms, "problem": o.problem,
    }))  # fmt: skip


def forget_observation(directory: Directory) -> None:
    """Remove what was written by a job that no longer shares."""
    directory.delete(_NAME)


def read_observation(directory: Directory) -> Observation | None:
    """Return what the job last wrote; `None` where it shares nothing."""
    content = directory.read(_NAME)
    if content is None:
        return None
    f = unpack(content, "shro", STATUS_VERSION, f"the status {directory.shown(_NAME)}")
    columns = f.text("names").split("\n"), f.text("members").split("\n"), f.integers("ages_ms"), f.integers("states")
    peers = [
        PeerStatus(name, member, int(age), _STATES[state]) for name, member, age, state in zip(*columns, strict=False)
    ]
    return Observation(
        f.integers("ids"), f.pairs("quota"), f.pairs("share"), f.pairs("used"), tuple(peers), f.integers("peer_scope"),
        f.integers("peer"), f.pairs("peer_claim"), f.pairs("peer_used"), bool(f.integer("is_leased")),
        f.integer("lease_age_ms"), f.integer("lease_left_ms"), f.integer("as_of_ms"), f.text("problem"),
    )  # fmt: skip
