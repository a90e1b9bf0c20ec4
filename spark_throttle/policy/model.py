"""Policy documents: what each scope may use, as people write it.

A document is frozen and fully checked: an unknown key, a number out of bounds or an undefined resource
group is refused when it is read. An absent key sets no limit; 0 admits nothing. Numbers are exact: rates
and durations are `Decimal`. Names are kept in the order of their UTF-8 bytes, so that equal documents
have equal JSON. `codec` reads and writes documents; `compile` turns them into columns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Final, Literal, Self, TypeAlias, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from spark_throttle.core.arithmetic.units import (
    NS_PER_MS_OF_A_PERCENT,
    describe,
    parse_duration_ms,
    parse_percentage,
    parse_rate,
    parse_size,
)
from spark_throttle.core.limits.pegasus import parse_throttling
from spark_throttle.core.names.globs import is_glob, is_of_tenant
from spark_throttle.core.names.visible_text import BIDIRECTIONAL
from spark_throttle.core.quota import MAX_BURST_TOKENS, MAX_SIZE_BYTES, Dimension
from spark_throttle.errors import PolicyError

Direction: TypeAlias = Literal["publish", "dispatch"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("publish", "dispatch")

RATES: Final = ("messages_per_second", "bytes_per_second", "request_percentage")
"""The keys of a quota that fill a bucket."""

MAX_NAME_BYTES: Final = 1024
MAX_WEIGHT: Final = 1000
MAX_QUEUE_MESSAGES: Final = 2**40

MAX_GLOBS: Final = 1000
"""Bound on the globs other than `tenant/*`: each is matched against every namespace of a batch."""

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


def _refused(problem: str) -> PydanticCustomError:
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


def _parse_request_percentage(value: object) -> Decimal:
    return Decimal(parse_percentage(value)) / NS_PER_MS_OF_A_PERCENT


def _parse_message_bytes(value: object) -> int:
    size_bytes = parse_size(value)
    if size_bytes == 0:
        raise PolicyError("", "0 lets no byte pass; to admit nothing, set bytes_per_second: 0")
    if size_bytes > MAX_SIZE_BYTES:
        raise PolicyError("", f"{describe(value)} is over {MAX_SIZE_BYTES} bytes, the largest size allowed; give less")
    return size_bytes


def _parse_seconds(value: object) -> Decimal:
    duration_ms = parse_duration_ms(value)
    if duration_ms == 0:
        raise PolicyError("", "0 is not a duration; give 1 ms or more")
    return Decimal(duration_ms) / 1000


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
        raise _refused("the name holds half of a surrogate pair, which UTF-8 cannot encode") from None
    if not name:
        raise _refused("a name is empty; give it at least one character")
    if length_bytes > MAX_NAME_BYTES:
        raise _refused(f"the name has {length_bytes} bytes of UTF-8; it may have at most {MAX_NAME_BYTES}")
    if len(name) > 1 and name.endswith("/"):
        stem = name.rstrip("/")
        msg = f"a name that ends with '/' is another than {describe(stem)}, and is easily taken for it; write that name"
        raise _refused(f"{msg}, or {describe(stem + '/*')} for all names below it")
    if any(segment in (".", "..") for segment in name.split("/")):
        raise _refused("the segments '.' and '..' are steps of a path to many tools; give another name, or a glob")
    hidden = BIDIRECTIONAL.search(name)
    if hidden is not None:
        code = f"U+{ord(hidden[0]):04X}"
        raise _refused(f"the bidirectional control {code} makes a name look like another; leave it out, or give a glob")
    return name


def _check_tenant_name(name: str) -> str:
    if "/" in name:
        tenant = name.partition("/")[0]
        msg = f"a tenant is the part of a namespace before its first '/', so this would match none; write {tenant!r}"
        raise _refused(msg)
    return name


def _empty_if_null(section: object) -> object:
    """Return an empty mapping for a section that holds only comments."""
    return {} if section is None else section


def _as_list(names: object) -> object:
    """Return a list as the tuple that a frozen document keeps; an empty one for a section that holds only comments."""
    if names is None:
        return ()
    if isinstance(names, str):
        raise _refused(f"{describe(names)} is one name; write a list: [{names}]")
    return tuple(names) if isinstance(names, list) else names


def _sorted_once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _check_present(name: object) -> object:
    if name is None:
        raise _refused("no value")
    return name


def _sorted_by_name(named: Mapping[str, T]) -> dict[str, T]:
    # Code points sort as their UTF-8 bytes do.
    return dict(sorted(named.items()))


_RATE: Final = WithJsonSchema({"type": "number", "minimum": 0, "maximum": MAX_BURST_TOKENS})
_PERCENTAGE: Final = WithJsonSchema({"type": "number", "minimum": 0})
_MESSAGE_BYTES: Final = WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_SIZE_BYTES})
_SECONDS: Final = WithJsonSchema({"type": "number", "minimum": 0.001})

# The outer validators refuse a key without a value: only an absent key means no limit.
MessagesPerSecond = Annotated[Decimal | None, BeforeValidator(_checked(_parse_messages_per_second)), _RATE]
BytesPerSecond = Annotated[Decimal | None, BeforeValidator(_checked(_parse_bytes_per_second)), _RATE]
Percentage = Annotated[Decimal | None, BeforeValidator(_checked(_parse_request_percentage)), _PERCENTAGE]
MessageBytes = Annotated[int | None, BeforeValidator(_checked(_parse_message_bytes)), _MESSAGE_BYTES]
Seconds = Annotated[Decimal, BeforeValidator(_checked(_parse_seconds)), _SECONDS]
AgeSeconds = Annotated[Decimal | None, BeforeValidator(_checked(_parse_seconds))]
QueueBytes = Annotated[int, BeforeValidator(_checked(_parse_queue_bytes))]
ThrottlingString = Annotated[str | None, BeforeValidator(_checked(_parse_throttling))]
Version = Annotated[Literal[1], BeforeValidator(_checked(_parse_version))]
Name = Annotated[str, AfterValidator(_check_name)]
TenantName = Annotated[Name, AfterValidator(_check_tenant_name)]
GroupName = Annotated[str | None, BeforeValidator(_check_present)]

K = TypeVar("K", bound=str)
Named = Annotated[
    Mapping[K, Annotated[T, BeforeValidator(_empty_if_null)]],
    BeforeValidator(_empty_if_null),
    AfterValidator(_sorted_by_name),
]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


class Quota(_Part):
    """What one scope may use in one direction."""

    messages_per_second: MessagesPerSecond = None
    """Message quota, in steps of 0.001."""

    bytes_per_second: BytesPerSecond = None
    """Byte quota."""

    request_percentage: Percentage = None
    """Processing time, in percent of one core."""

    max_message_bytes: MessageBytes = None
    """A larger message is rejected, and charged nowhere."""

    burst_seconds: Seconds = Field(default=Decimal(10), validate_default=True)
    """The bucket's size, in seconds of the quota."""

    weight: int = Field(default=1, ge=1, le=MAX_WEIGHT)
    """Proportional claim of a namespace within its tenant, of a tenant within its group, and of a group within the job;
    1 to 1000."""

    on_excess: Literal["delay", "reject", "observe"] = "delay"
    """`delay`: rows wait, in order. `reject`: rows go to the dead letters. `observe`: all rows are admitted, and what a
    limit would have held back is reported."""

    @field_validator("burst_seconds")
    @classmethod
    def _check_burst(cls, burst_seconds: Decimal, info: ValidationInfo) -> Decimal:
        for name in RATES:
            rate, most = info.data.get(name), MAX_BURST_TOKENS
            if name == "request_percentage":
                most = MAX_BURST_TOKENS * NS_PER_MS_OF_A_PERCENT // 1000
            if rate is not None and rate * burst_seconds > most:
                longest_ms = int(1000 * most / rate)
                msg = (
                    f"{burst_seconds} s of {name} {rate} is a burst over {most}; "
                    f"give burst_seconds at most {Decimal(longest_ms) / 1000}"
                )
                raise _refused(msg)
        return burst_seconds


LIMITS: Final = tuple(key for key, field in Quota.model_fields.items() if field.default is None)
"""The keys of a quota that hold rows back: without them, it limits nothing."""

BOUNDS: Final = tuple(key for key in LIMITS if key not in RATES)
"""Those that fill no bucket: whole numbers of 1 or more."""

OneQuota = Annotated[Quota, BeforeValidator(_empty_if_null)]


class ScopePolicy(_Part):
    """The quotas of the job: into the lake, and out of it."""

    publish: OneQuota = Quota()
    dispatch: OneQuota = Quota()


class DestinationPolicy(_Part):
    """How the quota of a resource group follows what its destination says; the quota in messages is the ceiling."""

    floor_messages_per_second: MessagesPerSecond = None
    """The lowest rate, above 0."""

    open_after_seconds: Seconds = Field(default=Decimal(5), validate_default=True)
    """How long every call must be refused before the destination counts as unavailable."""

    on_unavailable: Literal["wait", "dead_letters"] = "wait"
    """`wait`: rows wait. `dead_letters`: they are rejected as `destination_unavailable`."""

    @field_validator("floor_messages_per_second")
    @classmethod
    def _check_floor(cls, floor: Decimal | None) -> Decimal | None:
        if floor == 0:
            raise _refused("a floor of 0 would never find out that the destination is back; give more")
        return floor


class GroupPolicy(ScopePolicy):
    """The quotas of a resource group, which may stand for a destination."""

    fair_between: Literal["tenants", "namespaces"] = "tenants"
    """Who divides the group's quota: its tenants, and within each its namespaces; or all its namespaces alike."""

    destination: Annotated[DestinationPolicy | None, BeforeValidator(_check_present)] = None
    """How the group's quota follows what its rows are sent to."""

    @model_validator(mode="after")
    def _check_ceiling(self) -> Self:
        if self.destination is not None:
            for direction in DIRECTIONS:
                rate, floor = getattr(self, direction).messages_per_second, self.destination.floor_messages_per_second
                if rate is not None and floor is not None and floor > rate:
                    raise _refused(f"its floor_messages_per_second {floor} is above its {direction} quota of {rate}")
            if all(getattr(self, direction).messages_per_second in (None, 0) for direction in DIRECTIONS):
                raise _refused("a destination needs a ceiling: give the resource group messages_per_second above 0")
        return self


class TenantPolicy(ScopePolicy):
    """The quotas of a tenant."""

    resource_group: GroupName = None
    """The group whose quotas it shares; that of a tenant is for those of its namespaces that name none."""


class NamespacePolicy(TenantPolicy):
    """The quotas and rules of a namespace, of a glob, or of every namespace that neither covers."""

    locked: bool = False
    """Whether only an administrator may change or remove the entry, and not the tenant's own administrator."""

    write_throttling: ThrottlingString = None
    """Pegasus' throttling string for messages, in the publish direction."""

    write_throttling_by_size: ThrottlingString = None
    """Pegasus' throttling string for bytes, in the publish direction."""

    read_throttling: ThrottlingString = None
    """Pegasus' throttling string for messages, in the dispatch direction."""


SETTINGS: Final = {
    key: field
    for part in (Quota, NamespacePolicy, GroupPolicy)
    for key, field in part.model_fields.items()
    if ({bool, int} & {field.annotation, *get_args(field.annotation)} or get_origin(field.annotation) is Literal)
    and key not in ("weight", "on_excess", "locked")
}
"""The keys that are columns by their names, in `Limits.settings`: whole numbers, true or false, and words."""


class QueuePolicy(_Part):
    """How much may wait in the whole job, and for how long."""

    messages: int = Field(default=1_000_000, ge=1, le=MAX_QUEUE_MESSAGES)
    """Rows that may wait."""

    bytes: QueueBytes = 256 * 2**20
    """Bytes of the rows that may wait."""

    age_seconds: AgeSeconds = None
    """A row that has waited longer is rejected as `queue_age`."""

    on_overflow: Literal["reject", "fail"] = "reject"
    """`reject`: a row that does not fit is rejected as `queue_full`. `fail`: the query stops before any row is lost; a
    raised bound takes effect when it restarts."""


class PolicyDocument(_Part):
    """A whole policy; an empty document limits nothing.

    Examples
    --------
    >>> document = PolicyDocument.model_validate({"tenants": {"acme": {"publish": {"messages_per_second": 0.2}}}})
    >>> document.tenants["acme"].publish.messages_per_second
    Decimal('0.2')
    """

    version: Version = 1
    resource_groups: Named[Name, GroupPolicy] = {}
    tenants: Named[TenantName, TenantPolicy] = {}

    namespaces: Named[Name, NamespacePolicy] = {}
    """Entries by name, or by a glob such as `acme/*`, which applies to each namespace that has no entry and matches no
    more specific glob (`core.names.globs`)."""

    exempt: Annotated[tuple[Name, ...], BeforeValidator(_as_list), AfterValidator(_sorted_once)] = ()
    """Names and globs of the namespaces that no quota limits and that are charged nowhere."""

    defaults: Annotated[NamespacePolicy, BeforeValidator(_empty_if_null)] = NamespacePolicy()
    """What applies to each namespace that has no entry in `namespaces` and matches no glob there."""

    job: Annotated[ScopePolicy, BeforeValidator(_empty_if_null)] = ScopePolicy()
    queue: Annotated[QueuePolicy, BeforeValidator(_empty_if_null)] = QueuePolicy()

    @field_validator("namespaces", "exempt")
    @classmethod
    def _check_globs(cls, named: Collection[str]) -> Collection[str]:
        globs = sum(1 for name in named if is_glob(name) and not is_of_tenant(name))
        if globs > MAX_GLOBS:
            raise _refused(f"{globs} globs other than tenant/* exceed the {MAX_GLOBS} allowed; name tenants instead")
        return named

    @model_validator(mode="after")
    def _check_groups_exist(self) -> Self:
        members: list[tuple[tuple[str, ...], TenantPolicy]] = [
            *((("tenants", name), tenant) for name, tenant in self.tenants.items()),
            *((("namespaces", name), namespace) for name, namespace in self.namespaces.items()),
            (("defaults",), self.defaults),
        ]
        missing = [
            ((*path, "resource_group"), member.resource_group)
            for path, member in members
            if member.resource_group is not None and member.resource_group not in self.resource_groups
        ]
        if missing:
            context = {"missing": missing, "known": tuple(self.resource_groups)}
            raise PydanticCustomError("missing_groups", "a resource group is not defined", context)
        return self
