"""How jobs share quotas: the settings that all jobs of an exchange have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from spark_throttle.errors import ConfigurationError

SharePolicy = Literal["max_min", "proportional", "residual", "steal", "static"]
SHARE_POLICIES: Final = get_args(SharePolicy)

FORGET_LEASES = 100
"""The leases of silence after which a job loses its floor, and its register is removed."""

_PERCENT = 100


@dataclass(frozen=True, slots=True)
class ShareTerms:
    """Those of a job's settings on which the others rely, as its reports say them."""

    lease_ms: int
    floor_percent: int
    policy_number: int
    """Place in `SHARE_POLICIES`; a later release may know more policies."""

    def __str__(self) -> str:
        policies = dict(enumerate(SHARE_POLICIES))
        policy = policies.get(self.policy_number, f"number {self.policy_number}")
        return f"lease {self.lease_ms / 1000:g} s, floor {self.floor_percent} %, policy {policy}"


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """The settings by which a job shares; all jobs of an exchange must be given the same."""

    interval_ms: int = 5_000
    """The length of a cycle, in which a job reports once, or more often while something changes."""

    lease_ms: int = 60_000
    """The time after a job's death within which its share, except its floor, is in use again."""

    report_change_percent: int = 10
    """The change, in percent, beyond which a demand or a usage is reported."""

    report_every: int = 12
    """Cycles after which either is reported in any case; a scope without demand for that long is given up."""

    floor_percent: int = 3
    """The part of a quota that is kept, in equal parts, for the jobs that share it, whatever they want."""

    policy: SharePolicy = "max_min"

    def __post_init__(self) -> None:
        if self.interval_ms < 1 or self.lease_ms < 10 * self.interval_ms:
            raise ConfigurationError(
                f"exchange.lease is {self.lease_ms} ms and exchange.interval {self.interval_ms} ms: within a lease a "
                f"dead job must be noticed and its share passed on: make the lease at least ten intervals"
            )
        if not 0 <= self.report_change_percent <= _PERCENT or self.report_every < 1:
            raise ConfigurationError(
                f"exchange.report_change is {self.report_change_percent} % and exchange.report_every "
                f"{self.report_every}: give a change of 0 to 100 % and at least 1 cycle"
            )
        if not 0 <= self.floor_percent <= _PERCENT:
            raise ConfigurationError(f"exchange.floor is {self.floor_percent} %: give 0 to 100 %")
        if self.policy not in SHARE_POLICIES:
            raise ConfigurationError(f"exchange.policy is {self.policy!r}; give one of {', '.join(SHARE_POLICIES)}")

    @property
    def terms(self) -> ShareTerms:
        """What the other jobs rely on."""
        return ShareTerms(self.lease_ms, self.floor_percent, SHARE_POLICIES.index(self.policy))

    def lasting(self, terms: ShareTerms) -> ShareSettings:
        """Return these settings with the longer of the two leases: a job of other terms may take as long to notice."""
        if terms.lease_ms <= self.lease_ms:
            return self
        return replace(self, lease_ms=terms.lease_ms)

    @property
    def hold_ms(self) -> int:
        """How long a job uses its share after the last of its reports that was seen."""
        return self.lease_ms // 2

    @property
    def margin_ms(self) -> int:
        """How far clocks, file systems and pauses may be out."""
        return self.lease_ms // 10

    @property
    def forget_ms(self) -> int:
        """How long a silent job keeps its floor."""
        return FORGET_LEASES * self.lease_ms

    @property
    def dead_after_ms(self) -> int:
        """The silence after which the others may take that a job has stopped using its share."""
        return self.hold_ms + self.margin_ms

    @property
    def gone_after_ms(self) -> int:
        """The silence after which the others may take that a job has stopped using its floor too."""
        return self.forget_ms + self.margin_ms
