"""Policy documents: what each scope may use, as people write it.

A document is frozen and fully checked: an unknown key, a number out of bounds or an undefined resource
group is refused when it is read. An absent key sets no limit; 0 admits nothing. Numbers are exact: rates
and durations are `Decimal`. Names are kept in the order of their UTF-8 bytes, so that equal documents
have equal JSON. `codec` reads and writes documents; `compile` turns them into columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Final, Literal, Self, TypeAlias, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from spark_throttle.core.arithmetic.units import NS_PER_MS_OF_A_PERCENT, describe
from spark_throttle.core.names.globs import is_glob, is_of_tenant
from spark_throttle.core.quota import BUDGETS, MAX_BURST_TOKENS
from spark_throttle.policy.guarantees import broken_guarantees, has_guarantees
from spark_throttle.policy.values import (
    AgeSeconds,
    ByteBudget,
    BytesPerSecond,
    GroupName,
    MessageBudget,
    MessageBytes,
    MessagesPerSecond,
    Name,
    Named,
    OtherSeconds,
    Percentage,
    QueueBytes,
    Reason,
    Seconds,
    TenantName,
    ThrottlingString,
    TimeZone,
    Until,
    Version,
    as_list,
    check_present,
    empty_if_null,
    ms_of,
    refused,
    sorted_once,
)

Direction: TypeAlias = Literal["publish", "dispatch"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("publish", "dispatch")

RATES: Final = ("messages_per_second", "bytes_per_second", "request_percentage")
"""The keys of a quota that fill a bucket."""

GUARANTEES: Final = tuple(f"guaranteed_{key}" for key in RATES)
"""The keys of a quota that say what the scope gets before others borrow, in the order of `RATES`."""

MAX_WEIGHT: Final = 1000
MAX_QUEUE_MESSAGES: Final = 2**40

MAX_GLOBS: Final = 1000
"""Bound on the globs other than `tenant/*`: each is matched against every namespace of a batch."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


class _QuotaLimits(_Part):
    messages_per_second: MessagesPerSecond = None
    """Message quota, in steps of 0.001."""

    bytes_per_second: BytesPerSecond = None
    """Byte quota."""

    request_percentage: Percentage = None
    """Processing time, in percent of one core."""

    max_message_bytes: MessageBytes = None
    """A larger message is rejected, and charged nowhere."""

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

    guaranteed_messages_per_second: MessagesPerSecond = None
    """Messages that the scope gets before others borrow from it."""

    guaranteed_bytes_per_second: BytesPerSecond = None
    """Bytes that it gets before others do."""

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

HOLDS: Final = (*RATES, *(key for key, _, _ in BUDGETS))
"""Those that hold a row back until later, and not for its size."""

BOUNDS: Final = tuple(key for key in LIMITS if key not in HOLDS)
"""The others: whole numbers of 1 or more."""

OneQuota = Annotated[Quota, BeforeValidator(empty_if_null)]
QuotaOfNames = Annotated[NamespaceQuota, BeforeValidator(empty_if_null)]


class OtherQuota(_QuotaLimits):
    """The keys of a quota that an exception sets; a key that is absent stays as the entry has it."""

    burst_seconds: OtherSeconds = None
    weight: Annotated[int | None, BeforeValidator(check_present), Field(ge=1, le=MAX_WEIGHT)] = None
    on_excess: Annotated[Literal["delay", "reject", "observe"] | None, BeforeValidator(check_present)] = None


class ExceptionPolicy(_Part):
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
        if self.publish == self.dispatch == OtherQuota():
            raise refused("it sets no quota; give it one in publish or dispatch, such as messages_per_second")
        return self

    @cached_property
    def until_ms(self) -> int:
        """When it ends, in ms since 1970: at that time it is no longer in force."""
        return ms_of(self.until)


class ScopePolicy(_Part):
    """The quotas of the job: into the lake, and out of it."""

    publish: OneQuota = Quota()
    dispatch: OneQuota = Quota()

    exception: Annotated[ExceptionPolicy | None, BeforeValidator(check_present)] = None
    """Other quotas until a certain time."""

    @model_validator(mode="after")
    def _check_exception(self) -> Self:
        if self.exception is not None:
            try:
                _ = self.in_exception
            except ValidationError as error:
                raise refused(f"while its exception is in force: {error.errors()[0]['msg']}") from None
        return self

    @cached_property
    def in_exception(self) -> Self:
        """The policy while its exception is in force, with the quotas that then hold as its own."""
        parts = {direction: (getattr(self, direction), getattr(self.exception, direction)) for direction in DIRECTIONS}
        return self._replaced({direction: _merged(*each) for direction, each in parts.items()})

    @cached_property
    def without_exception(self) -> Self:
        """The policy when its exception has ended."""
        return self._replaced({})

    def at(self, now_ms: int) -> Self:
        """Return the policy at a moment, without an exception: while one is in force, its quotas are the policy's own.

        The same object is returned for all moments that do not differ.
        """
        if self.exception is None:
            return self
        return self.in_exception if now_ms < self.exception.until_ms else self.without_exception

    def _replaced(self, quotas: Mapping[str, Quota]) -> Self:
        own = {key: getattr(self, key) for key in self.model_fields_set if key != "exception"}
        return type(self).model_validate({**own, **quotas})


def _merged(quota: Quota, other: OtherQuota) -> Quota:
    parts: Iterable[Quota | OtherQuota] = (quota, other)
    return type(quota).model_validate({key: value for part in parts for key, value in part if value is not None})


class JobPolicy(ScopePolicy):
    """The quotas of the job, and the calendar of the whole policy."""

    time_zone: TimeZone = "UTC"
    """The zone in which hours, days and months begin for all budgets of the policy, such as `Europe/Berlin`."""


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
            raise refused("a floor of 0 would never find out that the destination is back; give more")
        return floor


class GroupPolicy(ScopePolicy):
    """The quotas of a resource group, which may stand for a destination."""

    fair_between: Literal["tenants", "namespaces"] = "tenants"
    """Who divides the group's quota: its tenants, and within each its namespaces; or all its namespaces alike."""

    destination: Annotated[DestinationPolicy | None, BeforeValidator(check_present)] = None
    """How the group's quota follows what its rows are sent to."""

    @model_validator(mode="after")
    def _check_ceiling(self) -> Self:
        if self.destination is not None:
            for direction in DIRECTIONS:
                rate, floor = getattr(self, direction).messages_per_second, self.destination.floor_messages_per_second
                if rate is not None and floor is not None and floor > rate:
                    raise refused(f"its floor_messages_per_second {floor} is above its {direction} quota of {rate}")
            if all(getattr(self, direction).messages_per_second in (None, 0) for direction in DIRECTIONS):
                raise refused("a destination needs a ceiling: give the resource group messages_per_second above 0")
        return self


class TenantPolicy(ScopePolicy):
    """The quotas of a tenant."""

    resource_group: GroupName = None
    """The group whose quotas it shares; that of a tenant is for those of its namespaces that name none."""


class NamespacePolicy(TenantPolicy):
    """The quotas and rules of a namespace, of a glob, or of every namespace that neither covers."""

    publish: QuotaOfNames = NamespaceQuota()
    dispatch: QuotaOfNames = NamespaceQuota()

    @cached_property
    def is_of_many(self) -> bool:
        """Whether a quota only observes a part of the names."""
        return self.publish.observe_percent + self.dispatch.observe_percent > 0

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
    for part in (NamespaceQuota, NamespacePolicy, GroupPolicy)
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

    exempt: Annotated[tuple[Name, ...], BeforeValidator(as_list), AfterValidator(sorted_once)] = ()
    """Names and globs of the namespaces that no quota limits and that are charged nowhere."""

    defaults: Annotated[NamespacePolicy, BeforeValidator(empty_if_null)] = NamespacePolicy()
    """What applies to each namespace that has no entry in `namespaces` and matches no glob there."""

    job: Annotated[JobPolicy, BeforeValidator(empty_if_null)] = JobPolicy()
    queue: Annotated[QueuePolicy, BeforeValidator(empty_if_null)] = QueuePolicy()

    @field_validator("namespaces", "exempt")
    @classmethod
    def _check_globs(cls, named: Collection[str]) -> Collection[str]:
        globs = sum(1 for name in named if is_glob(name) and not is_of_tenant(name))
        if globs > MAX_GLOBS:
            raise refused(f"{globs} globs other than tenant/* exceed the {MAX_GLOBS} allowed; name tenants instead")
        return named

    @field_validator("namespaces")
    @classmethod
    def _check_observed_parts(cls, named: Mapping[str, NamespacePolicy]) -> Mapping[str, NamespacePolicy]:
        for name, policy in named.items():
            if policy.is_of_many and not is_glob(name):
                raise refused(
                    f"{describe(name)} is one name, of which observe_percent means nothing; "
                    "give it to a glob or the defaults, or set on_excess: observe"
                )
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

    @model_validator(mode="after")
    def _check_guarantees(self) -> Self:
        if has_guarantees(self):
            ends_ms = sorted({each.until_ms for _, each in self.exceptions})
            for now_ms in [ends_ms[0] - 1, *ends_ms] if ends_ms else [0]:
                broken = next(broken_guarantees(self.at(now_ms)), None)
                if broken is not None:
                    path, problem = broken
                    when = "while exceptions are in force: " if ends_ms and now_ms < ends_ms[-1] else ""
                    context = {"path": path, "problem": when + problem}
                    raise PydanticCustomError("broken_guarantee", "a guarantee cannot be kept", context)
        return self

    @cached_property
    def exceptions(self) -> tuple[tuple[str, ExceptionPolicy], ...]:
        """The exceptions behind the paths of their entries, such as ``tenants.acme``; the first to end comes first."""
        named = {"resource_groups": self.resource_groups, "tenants": self.tenants, "namespaces": self.namespaces}
        found = [
            (f"{section}.{name}", policy.exception)
            for section, entries in named.items()
            for name, policy in entries.items()
            if policy.exception is not None
        ]
        singles = (("defaults", self.defaults), ("job", self.job))
        found += [(path, policy.exception) for path, policy in singles if policy.exception is not None]
        return tuple(sorted(found, key=lambda each: each[1].until_ms))

    def at(self, now_ms: int) -> PolicyDocument:
        """Return the document at a moment, without exceptions: the quotas of those in force are the entries' own.

        Examples
        --------
        >>> thrice = {"until": "2026-12-04T18:00:00Z", "reason": "a move", "publish": {"messages_per_second": 15}}
        >>> acme = {"publish": {"messages_per_second": 5}, "exception": thrice}
        >>> document = PolicyDocument.model_validate({"tenants": {"acme": acme}})
        >>> end_ms = document.exceptions[0][1].until_ms
        >>> [int(document.at(ms).tenants["acme"].publish.messages_per_second) for ms in (end_ms - 1, end_ms)]
        [15, 5]
        """
        if not self.exceptions:
            return self
        return PolicyDocument.model_construct(
            version=self.version,
            resource_groups={name: policy.at(now_ms) for name, policy in self.resource_groups.items()},
            tenants={name: policy.at(now_ms) for name, policy in self.tenants.items()},
            namespaces={name: policy.at(now_ms) for name, policy in self.namespaces.items()},
            exempt=self.exempt,
            defaults=self.defaults.at(now_ms),
            job=self.job.at(now_ms),
            queue=self.queue,
        )
