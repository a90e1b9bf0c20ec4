"""How a job takes part in an exchange, as users write it: times in seconds, parts as fractions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, get_args

from spark_throttle.errors import ConfigurationError, did_you_mean
from spark_throttle.sharing.settings import SharePolicy, ShareSettings

_MILLI = 1000
_PERCENT = 100


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


def _scaled(given: Mapping[str, Any], key: str, scale: int, default: int) -> int:
    value = given.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise ConfigurationError(f"exchange.{key} is {value!r}; give a number")
    scaled = Decimal(str(value)) * scale
    if scaled != int(scaled):
        raise ConfigurationError(f"exchange.{key} is {value}; give a multiple of {Decimal(1) / scale}")
    return int(scaled)
