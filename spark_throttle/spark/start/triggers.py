"""The triggers of Spark under which a query can be throttled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from spark_throttle.errors import ConfigurationError, did_you_mean

_TRIGGERS: Final = ("processingTime", "once", "continuous", "availableNow", "realTime")


def check_trigger(trigger: Mapping[str, Any]) -> None:
    """Refuse a trigger that Spark does not have, or that runs no batches which a throttle could bound.

    Raises
    ------
    ConfigurationError
        If it is none of those, or several.
    """
    if len(trigger) != 1:
        raise ConfigurationError(f"trigger takes exactly one of {list(_TRIGGERS)}; got {sorted(trigger)}")
    (kind,) = trigger
    if kind not in _TRIGGERS:
        raise ConfigurationError(f"unknown trigger {kind!r}{did_you_mean(kind, _TRIGGERS)}")
    if kind in ("continuous", "realTime", "once"):
        raise ConfigurationError(
            f"trigger {kind!r} cannot be throttled (it runs no micro-batches, or one without limits): "
            f"use processingTime or availableNow"
        )
