"""The settings by which jobs share quotas: those that all jobs of an exchange have in common, and a job's own.

Users write times in seconds and parts as fractions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any, Final, Literal, get_args

from spark_throttle.errors import ConfigurationError, did_you_mean

SharePolicy = Literal["max_min", "proportional", "residual", "steal", "static"]
SHARE_POLICIES: Final = get_args(SharePolicy)

FORGET_LEASES = 100
"""The leases of silence after which a job loses its floor, and its register is removed."""

SHORTEST_INTERVAL_MS = 50
"""A job looks up to sixteen times in an interval: in a shorter one it would do nothing else."""

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
        if self.interval_ms < SHORTEST_INTERVAL_MS:
            raise ConfigurationError(
                f"exchange.interval is {self.interval_ms} ms; give at least {SHORTEST_INTERVAL_MS} ms: a job looks up "
                f"to sixteen times in it"
            )
        if self.lease_ms < 10 * self.interval_ms:
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


_MILLI = 1000


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """Where a job meets those that share its quotas, and how it shares.

    Examples
    --------
    >>> options = ExchangeOptions.parse({"path": "/lake/exchange", "interval": 2, "lease": 30, "report_change": 0.05})
    >>> options.settings.interval_ms, options.settings.report_change_percent, options.settings.policy
    (2000, 5, 'max_min')
    >>> ExchangeOptions.parse({"path": "/lake/exchange", "leese": 30})
    Traceback (most recent call last):
    spark_throttle.errors.ConfigurationError: exchange: unknown key leese; did you mean lease?
    """

    path: str
    job: str | None
    settings: ShareSettings

    @classmethod
    def parse(cls, given: str | Mapping[str, Any]) -> ExchangeOptions:
        """Return the options that a path gives, or a mapping with the keys of `conf/throttle.yaml`.

        Raises
        ------
        ConfigurationError
            If a key or its value is wrong; the message names the key.
        """
        given = {"path": given} if isinstance(given, str) else given
        if not isinstance(given, Mapping):
            raise ConfigurationError(f"exchange is {given!r}; give a path, or a mapping with the key path")
        known = ("path", "job", "interval", "lease", "report_change", "report_every", "floor", "policy")
        for key in given:
            if key not in known:
                raise ConfigurationError(f"exchange: unknown key {key}{did_you_mean(key, known)}")
        if not isinstance(given.get("path"), str) or not given["path"]:
            raise ConfigurationError("exchange.path is missing: give the directory or Delta table where the jobs meet")
        job = given.get("job")
        if job is not None and (not isinstance(job, str) or not job or "\n" in job):
            raise ConfigurationError(f"exchange.job is {job!r}; give a name of one line")
        defaults = ShareSettings()
        policy = given.get("policy", defaults.policy)
        if policy not in get_args(SharePolicy):
            raise ConfigurationError(f"exchange.policy is {policy!r}; give one of {', '.join(get_args(SharePolicy))}")
        settings = ShareSettings(
            interval_ms=_scaled(given, "interval", _MILLI, defaults.interval_ms),
            lease_ms=_scaled(given, "lease", _MILLI, defaults.lease_ms),
            report_change_percent=_scaled(given, "report_change", _PERCENT, defaults.report_change_percent),
            report_every=_scaled(given, "report_every", 1, defaults.report_every),
            floor_percent=_scaled(given, "floor", _PERCENT, defaults.floor_percent),
            policy=policy,
        )
        return cls(given["path"], job, settings)

    def to_json(self) -> str:
        """Return the options as one line, for an option of a data source."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ExchangeOptions:
        """Return what `to_json` wrote."""
        fields = json.loads(text)
        return cls(fields["path"], fields["job"], ShareSettings(**fields["settings"]))


_COUNTED: Final = {_MILLI: " of seconds", _PERCENT: ", such as 0.1", 1: ""}


def _scaled(given: Mapping[str, Any], key: str, scale: int, default: int) -> int:
    value = given.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ConfigurationError(f"exchange.{key} is {value!r}; give a number{_COUNTED[scale]}")
    scaled = Decimal(str(value)) * scale
    if scaled != int(scaled):
        raise ConfigurationError(f"exchange.{key} is {value}; give a multiple of {Decimal(1) / scale}")
    return int(scaled)
