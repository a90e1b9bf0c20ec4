"""The keys of a quota: what one scope may use in one direction, and what an entry says in its place at times.

An absent key sets no limit; 0 admits nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from spark_throttle.core.arithmetic.units import NS_PER_MS_OF_A_PERCENT
from spark_throttle.core.quota import BUDGETS, MAX_BURST_TOKENS
from spark_throttle.policy.values import (
    ByteBudget,
    BytesPerSecond,
    MessageBudget,
    MessageBytes,
    MessagesPerSecond,
    MessageUnits,
    OtherSeconds,
    Percentage,
    Reason,
    Seconds,
    UnitBudget,
    UnitsPerSecond,
    Until,
    check_present,
    empty_if_null,
    ms_of,
    refused,
)

RATES: Final = ("messages_per_second", "bytes_per_second", "units_per_second", "request_percentage")
"""The keys of a quota that fill a bucket, by `Dimension`."""

GUARANTEES: Final = tuple(f"guaranteed_{key}" for key in RATES)
"""The keys of a quota that say what the scope gets before others borrow, in the order of `RATES`."""

MAX_WEIGHT: Final = 1000

Part = TypeVar("Part", bound="ExceptionPolicy | ScheduledQuotas")


class PolicyPart(BaseModel):
    """A part of a policy document: frozen, and strict about what it says."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


class _QuotaLimits(PolicyPart):
    messages_per_second: MessagesPerSecond = None
    """Message quota, in steps of 0.001."""

    bytes_per_second: BytesPerSecond = None
    """Byte quota."""

    units_per_second: UnitsPerSecond = None
    """Quota in the units that rows state; the job's `unit` names them."""

    request_percentage: Percentage = None
    """Processing time, in percent of one core."""

    max_message_bytes: MessageBytes = None
    """A larger message is rejected, and charged nowhere."""

    max_message_units: MessageUnits = None
    """A message of more units is rejected, and charged nowhere."""

    messages_per_hour: MessageBudget = None
    """Messages in each hour of the calendar."""

    messages_per_day: MessageBudget = None
    """Messages in each day of the calendar."""

    messages_per_month: MessageBudget = None
    """Messages in each month of the calendar."""

    bytes_per_hour: ByteBudget = None
    """Bytes in each hour of the calendar."""

    bytes_per_day: ByteBudget = None
    """Bytes in each day of the calendar."""

    bytes_per_month: ByteBudget = None
    """Bytes in each month of the calendar."""

    units_per_hour: UnitBudget = None
    """Units in each hour of the calendar."""

    units_per_day: UnitBudget = None
    """Units in each day of the calendar."""

    units_per_month: UnitBudget = None
    """Units in each month of the calendar."""

    guaranteed_messages_per_second: MessagesPerSecond = None
    """Messages that the scope gets before others borrow from it."""

    guaranteed_bytes_per_second: BytesPerSecond = None
    """Bytes that it gets before others do."""

    guaranteed_units_per_second: UnitsPerSecond = None
    """Units that it gets before others do."""

    guaranteed_request_percentage: Percentage = None
    """Processing time that it gets before others do."""


class Quota(_QuotaLimits):
    """What one scope may use in one direction."""

    burst_seconds: Seconds = Field(default=Decimal(10), validate_default=True)
    """The bucket's size, in seconds of the quota; also how long what is guaranteed is kept for rows that wait."""

    weight: int = Field(default=1, ge=1, le=MAX_WEIGHT)
    """Proportional claim of a namespace within its tenant, of a tenant within its group, and of a group within the job;
    1 to 1000."""

    on_excess: Literal["delay", "reject", "observe"] = "delay"
    """`delay`: rows wait, in order. `reject`: rows go to the dead letters. `observe`: all rows are admitted, and what a
    limit would have held back is reported."""

    @field_validator("burst_seconds")
    @classmethod
    def _check_burst(cls, burst_seconds: Decimal, info: ValidationInfo) -> Decimal:
        for name in (*RATES, *GUARANTEES):
            rate, most = info.data.get(name), MAX_BURST_TOKENS
            if name.endswith("request_percentage"):
                most = MAX_BURST_TOKENS * NS_PER_MS_OF_A_PERCENT // 1000
            if rate is not None and rate * burst_seconds > most:
                longest_ms = int(1000 * most / rate)
                msg = (
                    f"{burst_seconds} s of {name} {rate} is a burst over {most}; "
                    f"give burst_seconds at most {Decimal(longest_ms) / 1000}"
                )
                raise refused(msg)
        return burst_seconds


class NamespaceQuota(Quota):
    """What each namespace of an entry may use in one direction."""

    observe_percent: int = Field(default=0, ge=0, le=100)
    """Of how many percent of the names of a glob or the defaults the quota only observes, as under `observe`."""


LIMITS: Final = tuple(
    key for key, field in Quota.model_fields.items() if field.default is None and key not in GUARANTEES
)
"""The keys of a quota that hold rows back: without them, it limits nothing."""

UNIT_KEYS: Final = tuple(key for key in _QuotaLimits.model_fields if "units" in key.split("_"))
"""The keys of a quota to which only rows with units can be held."""

HOLDS: Final = (*RATES, *(key for key, _, _ in BUDGETS))
"""Those that hold a row back until later, and not for its size."""

BOUNDS: Final = tuple(key for key in LIMITS if key not in HOLDS)
"""The others: whole numbers of 1 or more."""


def may_hold_by(quota: Quota, rate: str) -> bool:
    """Return whether a quota may hold rows back for what one of `RATES` counts: by that rate, or by a budget."""
    keys = (rate, *(key for key, dimension, _ in BUDGETS if RATES[dimension] == rate))
    return quota.on_excess != "observe" and any(getattr(quota, key) is not None for key in keys)


OneQuota = Annotated[Quota, BeforeValidator(empty_if_null)]
QuotaOfNames = Annotated[NamespaceQuota, BeforeValidator(empty_if_null)]


class OtherQuota(_QuotaLimits):
    """The keys of a quota that an exception sets; a key that is absent stays as the entry has it."""

    burst_seconds: OtherSeconds = None
    weight: Annotated[int | None, BeforeValidator(check_present), Field(ge=1, le=MAX_WEIGHT)] = None
    on_excess: Annotated[Literal["delay", "reject", "observe"] | None, BeforeValidator(check_present)] = None


def _check_sets_a_quota(part: Part) -> Part:
    if part.publish == part.dispatch == OtherQuota():
        raise refused("it sets no quota; give it one in publish or dispatch, such as messages_per_second")
    return part


class ExceptionPolicy(PolicyPart):
    """What an entry says in place of its own quotas, until a certain time."""

    until: Until
    """When it ends: a time with its zone, such as `2026-12-04T18:00:00+01:00`."""

    reason: Reason
    """Why it is given."""

    publish: Annotated[OtherQuota, BeforeValidator(empty_if_null)] = OtherQuota()
    """The keys of `publish` that it sets; the others stay as the entry has them."""

    dispatch: Annotated[OtherQuota, BeforeValidator(empty_if_null)] = OtherQuota()
    """The keys of `dispatch` that it sets."""

    @model_validator(mode="after")
    def _check_says_something(self) -> Self:
        return _check_sets_a_quota(self)

    @cached_property
    def until_ms(self) -> int:
        """When it ends, in ms since 1970: at that time it is no longer in force."""
        return ms_of(self.until)


class ScheduledQuotas(PolicyPart):
    """What an entry says in place of its own quotas, at certain hours of the week."""

    publish: Annotated[OtherQuota, BeforeValidator(empty_if_null)] = OtherQuota()
    """The keys of `publish` that it sets; the others stay as the entry has them."""

    dispatch: Annotated[OtherQuota, BeforeValidator(empty_if_null)] = OtherQuota()
    """The keys of `dispatch` that it sets."""

    @model_validator(mode="after")
    def _check_says_something(self) -> Self:
        return _check_sets_a_quota(self)


def merged(quota: Quota, others: Sequence[OtherQuota]) -> Quota:
    """Return a quota with what parts set in place of its own, the last of all."""
    parts: list[Quota | OtherQuota] = [quota, *others]
    return type(quota).model_validate({key: value for part in parts for key, value in part if value is not None})
