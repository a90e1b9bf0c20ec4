"""What goes in and out of one job's sharing: what a visit to the exchange found, the next report, the rates to use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_throttle.core.quota import Int64s
from spark_throttle.sharing.peers import UnreadableRegister
from spark_throttle.sharing.report import ScopeRows, ShareReport


@dataclass(frozen=True, slots=True)
class Visit:
    """What a visit to the exchange found."""

    reports: Mapping[str, ShareReport]
    """Reports by register, including the job's own and those of its other runs."""

    unreadable: Mapping[str, UnreadableRegister] = field(default_factory=dict)
    """By register of another job: why it could not be read."""

    is_own_whole: bool = True
    """False if what this job published is there no more, or damaged, so that others cannot read it."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """A report, and how it differs from the one before."""

    report: ShareReport
    changed: ScopeRows
    removed: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The rates that a job may use now."""

    ids: Int64s
    rate_micro_per_ms: Int64s
    """Shape (n, 2); `UNLIMITED` where the scope has no limit."""

    is_leased: bool
    """False while only the floor may be used."""
