"""What the value of a policy's key may be: each type reads what people write, or refuses it with a remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from itertools import combinations
from typing import Annotated, Final, Literal, TypeVar
from zoneinfo import available_timezones

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from spark_throttle.core.arithmetic.units import (
    NS_PER_MS_OF_A_PERCENT,
    describe,
    parse_budget,
    parse_duration_ms,
    parse_percentage,
    parse_rate,
    parse_size,
)
from spark_throttle.core.limits.pegasus import parse_throttling
from spark_throttle.core.names.visible_text import BIDIRECTIONAL, is_visible
from spark_throttle.core.quota import MAX_BUDGET_TOKENS, MAX_BURST_TOKENS, MAX_SIZE_BYTES, MAX_UNITS, Dimension
from spark_throttle.errors import PolicyError, did_you_mean
from spark_throttle.policy.wall_time import local_time, wall_ms_of
from spark_throttle.policy.weekly_hours import WeeklyHours

MAX_NAME_BYTES: Final = 1024

MAX_REASON: Final = 500
"""The most characters of the reason of an exception."""

T = TypeVar("T")


def _checked(parse: Callable[[object], T]) -> Callable[[object], T]:
    """Return `parse` with its `PolicyError` in the form that pydantic collects; valid results are cached."""
    remembered = lru_cache(maxsize=4096, typed=True)(parse)

    def check(value: object) -> T:
        try:
            # The cache is typed, or True would find the result of 1; a signalling NaN has no hash.
            if isinstance(value, str | int | float) or (isinstance(value, Decimal) and value.is_finite()):
                return remembered(value)
            return parse(value)
        except PolicyError as error:
            raise PydanticCustomError("policy", "{problem}", {"problem": error.problem}) from None

    return check


def refused(problem: str) -> PydanticCustomError:
    """Return the error that a validator raises, with its words."""
    return PydanticCustomError("policy", "{problem}", {"problem": problem})


def _parse_messages_per_second(value: object) -> Decimal:
    try:
        return Decimal(parse_rate(value, Dimension.MESSAGES)) / 1000
    except PolicyError:
        if not _is_in_bytes(value):
            raise
    problem = f"{describe(value)} is a number of bytes; give a number of messages without a unit, such as 500 or 0.2"
    raise PolicyError("", f"{problem}, or set bytes_per_second")


def _is_in_bytes(value: object) -> bool:
    try:
        parse_rate(value, Dimension.BYTES)
    except PolicyError:
        return False
    return True


def _parse_bytes_per_second(value: object) -> Decimal:
    return Decimal(parse_rate(value, Dimension.BYTES)) / 1000


def _parse_units_per_second(value: object) -> Decimal:
    return Decimal(parse_rate(value, Dimension.UNITS)) / 1000


def _parse_request_percentage(value: object) -> Decimal:
    return Decimal(parse_percentage(value)) / NS_PER_MS_OF_A_PERCENT


def _parse_message_bytes(value: object) -> int:
    size_bytes = parse_size(value)
    if size_bytes == 0:
        raise PolicyError("", "0 lets no byte pass; to admit nothing, set bytes_per_second: 0")
    if size_bytes > MAX_SIZE_BYTES:
        raise PolicyError("", f"{describe(value)} is over {MAX_SIZE_BYTES} bytes, the largest size allowed; give less")
    return size_bytes


def _parse_message_units(value: object) -> int:
    units = parse_budget(value, Dimension.UNITS)
    if units == 0:
        raise PolicyError("", "0 lets no unit pass; to admit nothing, set units_per_second: 0")
    if units > MAX_UNITS:
        raise PolicyError("", f"{describe(value)} is over {MAX_UNITS}, the most units of a message; give less")
    return units


def _parse_unit_name(value: object) -> str:
    text = value if isinstance(value, str) else ""
    if not _UNIT_NAME.fullmatch(text) or text in _OTHER_UNITS:
        problem = f"{describe(value)} does not name a unit; write one to three words of letters, such as tokens"
        raise PolicyError("", f"{problem}, and not {' or '.join(_OTHER_UNITS)}, which are counted too")
    return text


_UNIT_NAME: Final = re.compile(r"(?=.{1,40}$)[^\W\d_]+(?:[ -][^\W\d_]+){0,2}")
_OTHER_UNITS: Final = ("messages", "bytes", "time")


def _parse_bytes_of_a_budget(value: object) -> int:
    return parse_budget(value, Dimension.BYTES)


def _parse_units_of_a_budget(value: object) -> int:
    return parse_budget(value, Dimension.UNITS)


def _parse_time_zone(value: object) -> str:
    if not isinstance(value, str) or value not in _time_zones():
        known = did_you_mean(value, _time_zones()) if isinstance(value, str) else ""
        raise PolicyError(
            "", f"{describe(value)} is not a time zone{known or '; write one such as Europe/Berlin or UTC'}"
        )
    return value


@lru_cache(maxsize=1)
def _time_zones() -> frozenset[str]:
    """Return the names of the zones of the IANA database that this machine has."""
    # What a machine is set to is not a zone: it is another one elsewhere.
    return frozenset({"UTC", *available_timezones()} - {"localtime"})


def _parse_seconds(value: object) -> Decimal:
    duration_ms = parse_duration_ms(value)
    if duration_ms == 0:
        raise PolicyError("", "0 is not a duration; give 1 ms or more")
    return Decimal(duration_ms) / 1000


_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,3})?)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _parse_until(value: object) -> str:
    text = value if isinstance(value, str) else ""
    try:
        at = datetime.fromisoformat(text.upper()) if _TIME.fullmatch(text) else None
        # In UTC it may be before the year 1 or after 9999, which has no text.
        until = None if at is None else time_text(wall_ms_of(at))
    except (ValueError, OverflowError):
        until = None
    if until is None:
        problem = f"{describe(value)} is not a time with its zone, in whole milliseconds"
        raise PolicyError("", f"{problem}; write one such as 2026-12-04T18:00:00+01:00")
    return until


def ms_of(until: str) -> int:
    """Return a time, as `Until` has it, in ms since 1970."""
    return wall_ms_of(datetime.fromisoformat(until))


def time_text(at_ms: int) -> str:
    """Return a time as a policy has it.

    Examples
    --------
    >>> time_text(0), time_text(1_500)
    ('1970-01-01T00:00:00Z', '1970-01-01T00:00:01.500Z')
    """
    digits = "milliseconds" if at_ms % 1000 else "seconds"
    return local_time(UTC, at_ms).isoformat(timespec=digits).replace("+00:00", "Z")


def _parse_hours(value: object) -> str:
    return str(WeeklyHours.parse(value))


def _check_reason(reason: str) -> str:
    try:
        reason.encode()
    except UnicodeEncodeError:
        raise refused("the reason holds half of a surrogate pair, which UTF-8 cannot encode") from None
    if all(c.isspace() or not is_visible(c) for c in reason):
        raise refused("the reason has nothing that can be seen; say why the exception is given")
    if len(reason) > MAX_REASON:
        raise refused(f"the reason has {len(reason)} characters; it may have at most {MAX_REASON}")
    return reason


def _parse_queue_bytes(value: object) -> int:
    size_bytes = parse_size(value)
    if size_bytes == 0:
        raise PolicyError("", "0 lets nothing wait; to reject what exceeds a quota, set on_excess: reject in its scope")
    return size_bytes


def _parse_throttling(value: object) -> str:
    if not isinstance(value, str):
        raise PolicyError("", f"{describe(value)} is not a throttling string such as 2000*delay*100")
    parse_throttling(value)
    return value


def _parse_version(value: object) -> int:
    if value != 1 or type(value) is not int:
        raise PolicyError("", f"{describe(value)} is not a version that this release reads; write version: 1")
    return value


def _check_name(name: str) -> str:
    try:
        length_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise refused("the name holds half of a surrogate pair, which UTF-8 cannot encode") from None
    if not name:
        raise refused("a name is empty; give it at least one character")
    if length_bytes > MAX_NAME_BYTES:
        raise refused(f"the name has {length_bytes} bytes of UTF-8; it may have at most {MAX_NAME_BYTES}")
    if len(name) > 1 and name.endswith("/"):
        stem = name.rstrip("/")
        msg = f"a name that ends with '/' is another than {describe(stem)}, and is easily taken for it; write that name"
        raise refused(f"{msg}, or {describe(stem + '/*')} for all names below it")
    if any(segment in (".", "..") for segment in name.split("/")):
        raise refused("the segments '.' and '..' are steps of a path to many tools; give another name, or a glob")
    hidden = BIDIRECTIONAL.search(name)
    if hidden is not None:
        code = f"U+{ord(hidden[0]):04X}"
        raise refused(f"the bidirectional control {code} makes a name look like another; leave it out, or give a glob")
    return name


def _check_tenant_name(name: str) -> str:
    if "/" in name:
        tenant = name.partition("/")[0]
        msg = f"a tenant is the part of a namespace before its first '/', so this would match none; write {tenant!r}"
        raise refused(msg)
    return name


def empty_if_null(section: object) -> object:
    """Return an empty mapping for a section that holds only comments."""
    return {} if section is None else section


def as_list(names: object) -> object:
    """Return a list as the tuple that a frozen document keeps; an empty one for a section that holds only comments."""
    if names is None:
        return ()
    if isinstance(names, str):
        raise refused(f"{describe(names)} is one name; write a list: [{names}]")
    return tuple(names) if isinstance(names, list) else names


def apart(schedule: object) -> object:
    """Refuse a schedule of which two hours hold at the same time."""
    if isinstance(schedule, Mapping):
        try:
            minutes = {text: WeeklyHours.parse(text).minutes for text in schedule}
        except PolicyError:
            return schedule  # its own validator says so
        for one, other in combinations(minutes, 2):
            if minutes[one] & minutes[other]:
                raise refused(f"the hours {one} and {other} hold at the same time; give hours that do not overlap")
    return schedule


def sorted_once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return names in the order of their UTF-8 bytes, each once."""
    return tuple(sorted(set(names)))


def check_present(name: object) -> object:
    """Refuse a key without a value."""
    if name is None:
        raise refused("no value")
    return name


def _sorted_by_name(named: Mapping[str, T]) -> dict[str, T]:
    # Code points sort as their UTF-8 bytes do.
    return dict(sorted(named.items()))


_RATE: Final = WithJsonSchema({"type": "number", "minimum": 0, "maximum": MAX_BURST_TOKENS})
_PERCENTAGE: Final = WithJsonSchema({"type": "number", "minimum": 0})
_MESSAGE_BYTES: Final = WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_SIZE_BYTES})
_MESSAGE_UNITS: Final = WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_UNITS})
_BUDGET: Final = WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_BUDGET_TOKENS})
_SECONDS: Final = WithJsonSchema({"type": "number", "minimum": 0.001})

# The outer validators refuse a key without a value: only an absent key means no limit.
MessagesPerSecond = Annotated[Decimal | None, BeforeValidator(_checked(_parse_messages_per_second)), _RATE]
BytesPerSecond = Annotated[Decimal | None, BeforeValidator(_checked(_parse_bytes_per_second)), _RATE]
UnitsPerSecond = Annotated[Decimal | None, BeforeValidator(_checked(_parse_units_per_second)), _RATE]
Percentage = Annotated[Decimal | None, BeforeValidator(_checked(_parse_request_percentage)), _PERCENTAGE]
MessageBytes = Annotated[int | None, BeforeValidator(_checked(_parse_message_bytes)), _MESSAGE_BYTES]
MessageUnits = Annotated[int | None, BeforeValidator(_checked(_parse_message_units)), _MESSAGE_UNITS]
MessageBudget = Annotated[int | None, BeforeValidator(_checked(parse_budget)), _BUDGET]
ByteBudget = Annotated[int | None, BeforeValidator(_checked(_parse_bytes_of_a_budget)), _BUDGET]
UnitBudget = Annotated[int | None, BeforeValidator(_checked(_parse_units_of_a_budget)), _BUDGET]
UnitName = Annotated[str, BeforeValidator(_checked(_parse_unit_name))]
TimeZone = Annotated[str, BeforeValidator(_checked(_parse_time_zone))]
Seconds = Annotated[Decimal, BeforeValidator(_checked(_parse_seconds)), _SECONDS]
OtherSeconds = Annotated[Decimal | None, BeforeValidator(_checked(_parse_seconds)), _SECONDS]
AgeSeconds = Annotated[Decimal | None, BeforeValidator(_checked(_parse_seconds))]
QueueBytes = Annotated[int, BeforeValidator(_checked(_parse_queue_bytes))]
ThrottlingString = Annotated[str | None, BeforeValidator(_checked(_parse_throttling))]
Until = Annotated[str, BeforeValidator(_checked(_parse_until))]
Hours = Annotated[str, BeforeValidator(_checked(_parse_hours))]
Reason = Annotated[str, AfterValidator(_check_reason)]
Version = Annotated[Literal[1], BeforeValidator(_checked(_parse_version))]
Name = Annotated[str, AfterValidator(_check_name)]
TenantName = Annotated[Name, AfterValidator(_check_tenant_name)]
GroupName = Annotated[str | None, BeforeValidator(check_present)]

K = TypeVar("K", bound=str)
Named = Annotated[
    Mapping[K, Annotated[T, BeforeValidator(empty_if_null)]],
    BeforeValidator(empty_if_null),
    AfterValidator(_sorted_by_name),
]
