"""Policy documents: what each scope may use, as people write it.

A document is frozen and fully checked: an unknown key, a number out of bounds or an undefined resource
group is refused when it is read. An absent key sets no limit; 0 admits nothing. Numbers are exact: rates
and durations are `Decimal`. Names are kept in the order of their UTF-8 bytes, so that equal documents
have equal JSON. `codec` reads and writes documents; `compile` turns them into columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property
from itertools import compress, product
from typing import Annotated, Final, Literal, Self, TypeAlias, get_args, get_origin

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from spark_throttle.core.arithmetic.units import describe
from spark_throttle.core.names.globs import is_glob, is_of_tenant
from spark_throttle.core.quota import NEVER_MS
from spark_throttle.policy.guarantees import broken_guarantees, has_guarantees
from spark_throttle.policy.quotas import (
    UNIT_KEYS,
    ExceptionPolicy,
    NamespaceQuota,
    OneQuota,
    PolicyPart,
    Quota,
    QuotaOfNames,
    ScheduledQuotas,
    merged,
)
from spark_throttle.policy.values import (
    AgeSeconds,
    GroupName,
    Hours,
    MessagesPerSecond,
    Name,
    Named,
    QueueBytes,
    Seconds,
    TenantName,
    ThrottlingString,
    TimeZone,
    UnitName,
    Version,
    apart,
    as_list,
    check_present,
    empty_if_null,
    refused,
    sorted_once,
)
from spark_throttle.policy.weekly_hours import LONGEST_CYCLE_MS, Phase, moments_ms, next_change_ms, phase_at, valid_at

Direction: TypeAlias = Literal["publish", "dispatch"]
DIRECTIONS: Final[tuple[Direction, ...]] = ("publish", "dispatch")

MAX_QUEUE_MESSAGES: Final = 2**40

MAX_GLOBS: Final = 1000
"""Bound on the globs other than `tenant/*`: each is matched against every namespace of a batch."""


class ScopePolicy(PolicyPart):
    """The quotas of the job: into the lake, and out of it."""

    publish: OneQuota = Quota()
    dispatch: OneQuota = Quota()

    exception: Annotated[ExceptionPolicy | None, BeforeValidator(check_present)] = None
    """Other quotas until a certain time."""

    schedule: Annotated[Named[Hours, ScheduledQuotas], BeforeValidator(apart)] = Field(default_factory=dict)
    """Other quotas at certain hours of the week, such as `mon-fri 08:00-18:00`, in the policy's `time_zone`."""

    @model_validator(mode="after")
    def _check_variants(self) -> Self:
        in_exception = (False,) if self.exception is None else (False, True)
        for hours, is_in_exception in product((None, *self.schedule), in_exception):
            try:
                self.variant(hours, is_in_exception=is_in_exception)
            except ValidationError as error:
                said = [] if hours is None else [f"at the hours {hours}"]
                said += ["while its exception is in force"] if is_in_exception else []
                raise refused(f"{', '.join(said)}: {error.errors()[0]['msg']}") from None
        return self

    def variant(self, hours: str | None, *, is_in_exception: bool) -> Self:
        """Return the policy without schedule and exception, with the quotas that are then in force as its own.

        Parameters
        ----------
        hours
            The hours of `schedule` that hold, if any do. An exception comes before what they set.
        """
        if self.exception is None and not self.schedule:
            return self
        key = hours, is_in_exception
        if key not in self._variants:
            parts: list[ScheduledQuotas | ExceptionPolicy] = [] if hours is None else [self.schedule[hours]]
            parts += [self.exception] if is_in_exception and self.exception is not None else []
            own = {key: getattr(self, key) for key in self.model_fields_set if key not in ("exception", "schedule")}
            if parts:
                own |= {
                    direction: merged(getattr(self, direction), [getattr(part, direction) for part in parts])
                    for direction in DIRECTIONS
                }
            self._variants[key] = type(self).model_validate(own)
        return self._variants[key]

    @cached_property
    def _variants(self) -> dict[tuple[str | None, bool], Self]:
        return {}

    @property
    def parts(self) -> tuple[tuple[str, ExceptionPolicy | ScheduledQuotas, Self], ...]:
        """What it says in place of its quotas: the key, what that sets, and the policy while it alone is in force."""
        found: list[tuple[str, ExceptionPolicy | ScheduledQuotas, Self]] = [
            (f"schedule.{hours}", part, self.variant(hours, is_in_exception=False))
            for hours, part in self.schedule.items()
        ]
        if self.exception is not None:
            found.append(("exception", self.exception, self.variant(None, is_in_exception=True)))
        return tuple(found)

    def hours_at(self, now_ms: int, zone: str) -> str | None:
        """Return the hours of the schedule that hold at a moment, in a time zone; `None` if none do."""
        return next(compress(self.schedule, valid_at(self.schedule, zone, now_ms)), None)

    def at(self, now_ms: int, zone: str = "UTC") -> Self:
        """Return the policy at a moment, without schedule and exception: the quotas then in force are its own.

        The same object is returned for all moments that do not differ.

        Parameters
        ----------
        zone
            The time zone in which the schedule is meant.
        """
        is_in_exception = self.exception is not None and now_ms < self.exception.until_ms
        return self.variant(self.hours_at(now_ms, zone), is_in_exception=is_in_exception)


class JobPolicy(ScopePolicy):
    """The quotas of the job; the calendar and the unit of the whole policy."""

    time_zone: TimeZone = "UTC"
    """The zone of the hours, days and months of all budgets, and of the hours of all schedules: `Europe/Berlin`."""

    reservation_seconds: Seconds = Field(default=Decimal(600), validate_default=True)
    """After how long a row whose cost nobody tells has cost its estimate."""

    unit: UnitName = "units"
    """What `units_per_second` and the other keys of units count, as people call it, such as `tokens`."""


class DestinationPolicy(PolicyPart):
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


class QueuePolicy(PolicyPart):
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


class PolicyDocument(PolicyPart):
    """A whole policy; an empty document limits nothing.

    Examples
    --------
    >>> document = PolicyDocument.model_validate({"tenants": {"acme": {"publish": {"messages_per_second": 0.2}}}})
    >>> document.tenants["acme"].publish.messages_per_second
    Decimal('0.2')
    """

    version: Version = 1
    resource_groups: Named[Name, GroupPolicy] = Field(default_factory=dict)
    tenants: Named[TenantName, TenantPolicy] = Field(default_factory=dict)

    namespaces: Named[Name, NamespacePolicy] = Field(default_factory=dict)
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
            first_ms = min(self.ends_ms, default=LONGEST_CYCLE_MS) - LONGEST_CYCLE_MS
            moments_ms = [*self.moments_ms(first_ms)]
            if self._first_broken(moments_ms) is not None:
                # Hours that change nothing are not told.
                moments_ms.sort(key=lambda at_ms: sum(self.phase(at_ms)[1]))
                found = self._first_broken(moments_ms)
                assert found is not None  # noqa: S101 - the same moments
                now_ms, path, problem = found
                hours = " and ".join(compress(self.scheduled_hours, self.phase(now_ms)[1]))
                said = [f"at the hours {hours}"] if hours else []
                said += ["while exceptions are in force"] if now_ms < max(self.ends_ms, default=now_ms) else []
                when = f"{', '.join(said)}: " if said else ""
                context = {"path": path, "problem": when + problem}
                raise PydanticCustomError("broken_guarantee", "a guarantee cannot be kept", context)
        return self

    def _first_broken(self, moments_ms: Iterable[int]) -> tuple[int, tuple[str, ...], str] | None:
        """Return the first moment at which a guarantee cannot be kept, where that is, and why; `None` if all are."""
        broken = ((now_ms, *each) for now_ms in moments_ms for each in broken_guarantees(self.at(now_ms)))
        return next(broken, None)

    @cached_property
    def exceptions(self) -> tuple[tuple[str, ExceptionPolicy], ...]:
        """The exceptions behind the paths of their entries, such as ``tenants.acme``; the first to end comes first."""
        found = [(path, policy.exception) for path, policy in self.scopes if policy.exception is not None]
        return tuple(sorted(found, key=lambda each: each[1].until_ms))

    @cached_property
    def ends_ms(self) -> tuple[int, ...]:
        """When `exceptions` end, in ms since 1970, ascending."""
        return tuple(each.until_ms for _, each in self.exceptions)

    @cached_property
    def scheduled_hours(self) -> tuple[str, ...]:
        """The hours that schedules name, each once."""
        return tuple(sorted({hours for _, policy in self.scopes for hours in policy.schedule}))

    @property
    def scopes(self) -> Iterator[tuple[str, ScopePolicy]]:
        """The policies of scopes behind the paths of their entries."""
        return ((".".join(path), policy) for path, policy in self._entries)

    @property
    def _entries(self) -> Iterator[tuple[tuple[str, ...], ScopePolicy]]:
        named = {"resource_groups": self.resource_groups, "tenants": self.tenants, "namespaces": self.namespaces}
        for section, entries in named.items():
            yield from (((section, name), policy) for name, policy in entries.items())
        yield from ((("defaults",), self.defaults), (("job",), self.job))

    def phase(self, now_ms: int) -> Phase:
        """Return how many exceptions have ended at a moment, and which of `scheduled_hours` hold.

        The document is the same (`at`) at all moments of a phase.
        """
        return phase_at(self.ends_ms, self.scheduled_hours, self.job.time_zone, now_ms)

    def next_phase_ms(self, now_ms: int) -> int:
        """Return when the next phase begins, in ms since 1970; `NEVER_MS` if none does."""
        ends = (end_ms for end_ms in self.ends_ms if end_ms > now_ms)
        return min(next(ends, NEVER_MS), next_change_ms(self.scheduled_hours, self.job.time_zone, now_ms))

    def moments_ms(self, from_ms: int) -> Iterator[int]:
        """Yield one moment of each phase from a time on, in ms since 1970, ascending."""
        return moments_ms(self.ends_ms, self.scheduled_hours, self.job.time_zone, from_ms)

    def first_of_units(self, direction: Direction) -> tuple[str, ...] | None:
        """Return the path of a key that counts units, in a direction and at any time; `None` if there is none.

        Examples
        --------
        >>> acme = {"publish": {"units_per_day": 5}}
        >>> PolicyDocument.model_validate({"tenants": {"acme": acme}}).first_of_units("publish")
        ('tenants', 'acme', 'publish', 'units_per_day')
        """
        distinct = {id(entry): (path, entry) for path, entry in reversed([*self._entries])}  # of a million names, few
        for path, entry in distinct.values():
            for where, part in (((), entry), *(((where,), part) for where, part, _ in entry.parts)):
                quota = getattr(part, direction)
                key = next((key for key in UNIT_KEYS if getattr(quota, key) is not None), None)
                if key is not None:
                    return *path, *where, direction, key
        return None

    def at(self, now_ms: int) -> PolicyDocument:
        """Return the document at a moment, without schedules and exceptions: the quotas in force are the entries' own.

        Examples
        --------
        >>> thrice = {"until": "2026-12-04T18:00:00Z", "reason": "a move", "publish": {"messages_per_second": 15}}
        >>> acme = {"publish": {"messages_per_second": 5}, "exception": thrice}
        >>> document = PolicyDocument.model_validate({"tenants": {"acme": acme}})
        >>> end_ms = document.exceptions[0][1].until_ms
        >>> [int(document.at(ms).tenants["acme"].publish.messages_per_second) for ms in (end_ms - 1, end_ms)]
        [15, 5]
        """
        if not self.exceptions and not self.scheduled_hours:
            return self
        zone = self.job.time_zone
        return PolicyDocument.model_construct(
            version=self.version,
            resource_groups={name: policy.at(now_ms, zone) for name, policy in self.resource_groups.items()},
            tenants={name: policy.at(now_ms, zone) for name, policy in self.tenants.items()},
            namespaces={name: policy.at(now_ms, zone) for name, policy in self.namespaces.items()},
            exempt=self.exempt,
            defaults=self.defaults.at(now_ms, zone),
            job=self.job.at(now_ms, zone),
            queue=self.queue,
        )
