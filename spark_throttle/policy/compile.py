"""From a policy document to columns: one direction, every name resolved to a position.

Positions follow the order of the names' UTF-8 bytes, so equal documents compile to equal columns on every
machine and at any time.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from decimal import Decimal
from typing import Any, Final, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.units import NS_PER_MS_OF_A_PERCENT
from spark_throttle.core.limits.pegasus import PegasusRule, parse_throttling
from spark_throttle.core.names.globs import is_glob, specificity
from spark_throttle.core.quota import (
    UNBOUNDED,
    UNLIMITED,
    CompiledPolicy,
    Destinations,
    Guarantees,
    Int64s,
    Level,
    Limits,
    OnExcess,
    Overflow,
    QueueBounds,
    WindowRules,
)
from spark_throttle.errors import ConfigurationError, did_you_mean
from spark_throttle.policy.guarantees import has_guarantees, home_of, node_of
from spark_throttle.policy.model import (
    DIRECTIONS,
    SETTINGS,
    Direction,
    NamespacePolicy,
    PolicyDocument,
    QueuePolicy,
    ScopePolicy,
)
from spark_throttle.policy.quotas import GUARANTEES, RATES, Quota, may_hold_by
from spark_throttle.policy.weekly_hours import Phase

_ON_EXCESS: Final = {name: int(OnExcess[name.upper()]) for name in ("delay", "reject", "observe")}
_EXEMPT: Final = NamespacePolicy()
_STEPS: Final = (1_000, 1_000, 1_000, NS_PER_MS_OF_A_PERCENT)
"""By `RATES`: the micro-tokens per millisecond in a token a second, and in a percent of a core."""

_DEFAULT_FLOOR_PARTS: Final = 100

_OVERFLOW: Final = {"reject": Overflow.REJECT, "fail": Overflow.FAIL}


def revision_of(document: PolicyDocument, direction: Direction | None = None) -> str:
    """Return 16 hexadecimal digits that name the content of `document`, or of one direction of it.

    Examples
    --------
    >>> revision_of(PolicyDocument()) == revision_of(PolicyDocument(tenants={}))
    True
    """
    digest = hashlib.sha256((direction or "").encode() + b"\n")
    text = document.model_dump_json(exclude_defaults=True)  # a key that nobody sets changes no revision
    # Who may change an entry decides about no row.
    digest.update(re.sub(r',"locked":true|"locked":true,?', "", text).encode())
    return digest.hexdigest()[:16]


def compile_policy(document: PolicyDocument, direction: Direction) -> CompiledPolicy:
    """Return one direction of `document` as columns; its exceptions count for nothing, so resolve them (`at`) before.

    Examples
    --------
    >>> document = PolicyDocument.model_validate({"tenants": {"acme": {"publish": {"messages_per_second": 5}}}})
    >>> compile_policy(document, "publish").shared.rate_micro_per_ms.tolist()
    [[-1, -1, -1, -1], [5000, -1, -1, -1]]
    """
    if direction not in DIRECTIONS:
        hint = did_you_mean(str(direction), DIRECTIONS)
        raise ConfigurationError(f"the direction {direction!r} is neither publish nor dispatch{hint}")
    tenants = list(document.tenants.values())
    named = [name for name in document.namespaces if not is_glob(name)]
    globs = sorted((name for name in document.namespaces if is_glob(name)), key=specificity)
    rules = [document.namespaces[name] for name in (*named, *globs)]
    namespaces = [*rules, *([_EXEMPT] if document.exempt else []), document.defaults]
    shared: list[ScopePolicy] = [document.job, *tenants, *document.resource_groups.values()]
    tenant_names = _names(document.tenants)
    group_names = _names(document.resource_groups)
    namespace_names = _names(named)
    tenant_group = _positions((tenant.resource_group for tenant in tenants), group_names)
    own_group = _positions((namespace.resource_group for namespace in namespaces), group_names)
    return CompiledPolicy(
        revision=revision_of(document, direction),
        shared=_limits(shared, direction),
        tenant_names=tenant_names,
        group_names=group_names,
        tenant_group=tenant_group,
        namespace_names=namespace_names,
        glob_patterns=_names(globs),
        exempt_names=_names(name for name in document.exempt if not is_glob(name)),
        exempt_globs=_names(sorted((name for name in document.exempt if is_glob(name)), key=specificity)),
        namespace_limits=_limits(namespaces, direction),
        namespace_windows=_windows(namespaces, direction),
        namespace_group=_resolved_groups(own_group, namespace_names, tenant_names, tenant_group),
        queue=queue_bounds(document.queue),
        destinations=_destinations(document, direction, 1 + len(tenants)),
        guarantees=_guarantees(document, direction, named),
        time_zone=document.job.time_zone,
        unit=document.job.unit,
        reservation_ms=_milli(document.job.reservation_seconds),
    )


def compile_from(
    document: PolicyDocument, direction: Direction, from_ms: int, until_ms: int
) -> list[tuple[int, CompiledPolicy]]:
    """Return one direction of `document` as columns from a moment on, and again whenever it changes before another.

    It changes where an exception ends, and where hours of a schedule begin or end.

    Examples
    --------
    >>> thrice = {"until": "1970-01-01T00:00:09Z", "reason": "a move", "publish": {"messages_per_second": 15}}
    >>> acme = {"publish": {"messages_per_second": 5}, "exception": thrice}
    >>> document = PolicyDocument.model_validate({"tenants": {"acme": acme}})
    >>> found = compile_from(document, "publish", 0, 60_000)
    >>> [(ms, each.shared.rate_micro_per_ms[1, 0].tolist()) for ms, each in found]
    [(0, 15000), (9000, 5000)]
    """
    found: list[tuple[int, CompiledPolicy]] = []
    compiled: dict[Phase, CompiledPolicy] = {}
    at_ms = from_ms
    while not found or at_ms < until_ms:
        phase = document.phase(at_ms)
        if phase not in compiled:
            compiled[phase] = compile_policy(document.at(at_ms), direction)
        found.append((at_ms, compiled[phase]))
        at_ms = document.next_phase_ms(at_ms)
    return found


def _destinations(document: PolicyDocument, direction: Direction, first_group: int) -> Destinations | None:
    """Return the destinations among the resource groups that have a ceiling in this direction."""
    found = []
    for position, group in enumerate(document.resource_groups.values()):
        ceiling = getattr(group, direction).messages_per_second
        if group.destination is not None and ceiling:
            floor = group.destination.floor_messages_per_second or ceiling / _DEFAULT_FLOOR_PARTS
            open_after_ms = _milli(group.destination.open_after_seconds)
            gives_up = int(group.destination.on_unavailable == "dead_letters")
            found.append((first_group + position, max(1, _milli(floor)), open_after_ms, gives_up))
    return Destinations(*np.array(found, dtype=np.int64).T) if found else None


def _guarantees(document: PolicyDocument, direction: Direction, named: Sequence[str]) -> Guarantees | None:
    """Return what scopes are guaranteed in this direction: tenants, then groups, then the namespaces that are named."""
    if not has_guarantees(document):
        return None
    shared = [document.job, *document.tenants.values(), *document.resource_groups.values()]
    tenants = {name: 1 + at for at, name in enumerate(document.tenants)}
    groups = {name: 1 + len(tenants) + at for at, name in enumerate(document.resource_groups)}
    scopes: list[tuple[Level, int, tuple[int, int, int], ScopePolicy]] = []
    for name, tenant in document.tenants.items():
        scopes.append((Level.TENANT, -1, (tenants[name], groups.get(home_of(name, document) or "", -1), 0), tenant))
    for name, group in document.resource_groups.items():
        scopes.append((Level.RESOURCE_GROUP, -1, (-1, groups[name], 0), group))
    for rule, name in enumerate(named):
        in_group, of_tenant = node_of(name, document)
        way = tenants.get(of_tenant, -1), groups.get(in_group or "", -1), 0
        scopes.append((Level.NAMESPACE, rule, way, document.namespaces[name]))
    found = []
    for level, rule, way, scope in scopes:
        quota: Quota = getattr(scope, direction)
        claims = [getattr(quota, key) for key in GUARANTEES]
        if any(claim is not None for claim in claims):
            above: list[Quota] = [getattr(shared[at], direction) for at in way[level:] if at >= 0]
            burst_ms = _milli(quota.burst_seconds)
            earning_ms = [
                min([burst_ms, *(_milli(each.burst_seconds) for each in above if getattr(each, key) is not None)])
                for key in RATES
            ]
            rates = [
                # What no scope above holds back takes nothing from anybody, whatever is said of it.
                _rate(claim, steps) if any(may_hold_by(each, key) for each in above) else UNLIMITED
                for key, claim, steps in zip(RATES, claims, _STEPS, strict=True)
            ]
            found.append((level, rule, way, rates, burst_ms, earning_ms))
    found = [each for each in found if max(each[3]) > UNLIMITED]
    if not found:
        return None
    return Guarantees(*(np.array(column, dtype=np.int64) for column in zip(*found, strict=True)))


def _rate(value: Decimal | None, steps: int) -> int:
    return UNLIMITED if value is None else int(value * steps)


def _names(named: Iterable[str]) -> pa.StringArray:
    return pa.array(list(named), pa.string())


def _positions(names: Iterable[str | None], known: pa.StringArray) -> Int64s:
    """Return the position of each name in `known`; -1 for none."""
    return _index(pa.array(list(names), pa.string()), known)


def _index(names: pa.StringArray, known: pa.StringArray) -> Int64s:
    found = pc.index_in(names, value_set=known).cast(pa.int64())
    return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _resolved_groups(
    own_group: Int64s, namespace_names: pa.StringArray, tenant_names: pa.StringArray, tenant_group: Int64s
) -> Int64s:
    """Return each rule's group; for a namespace that names none, its tenant's."""
    tenant_of = pc.replace_substring_regex(namespace_names, pattern="(?s)/.*", replacement="")
    tenant = _index(tenant_of, tenant_names)
    # Position -1 is the appended "no group", for namespaces whose tenant the policy does not name.
    inherited = np.append(tenant_group, np.int64(-1))[tenant]
    named = own_group[: len(namespace_names)]
    return np.concatenate([np.where(named >= 0, named, inherited), own_group[len(namespace_names) :]])


def _limits(scopes: Sequence[ScopePolicy], direction: Direction) -> Limits:
    # A million namespaces have few distinct policies, and those with the same policy share one object.
    distinct = {id(scope): scope for scope in scopes}
    positions = {key: position for position, key in enumerate(distinct)}
    quotas: list[Quota] = [getattr(scope, direction) for scope in distinct.values()]
    rates = np.array(
        [[_rate(getattr(q, key), steps) for key, steps in zip(RATES, _STEPS, strict=True)] for q in quotas],
        dtype=np.int64,
    )
    burst_ms = np.array([_milli(q.burst_seconds) for q in quotas], dtype=np.int64)
    limits = Limits(
        rate_micro_per_ms=rates,
        # A document's bound on bursts (MAX_BURST_TOKENS) keeps the product inside int64.
        burst_micro=np.where(rates == UNLIMITED, 0, rates) * burst_ms[:, None],
        on_excess=np.array([_ON_EXCESS[q.on_excess] for q in quotas], dtype=np.int64),
        weight=np.array([q.weight for q in quotas], dtype=np.int64),
        settings=_settings(quotas) | _settings(list(distinct.values())),
    )
    return limits.take(np.fromiter((positions[id(scope)] for scope in scopes), dtype=np.int64, count=len(scopes)))


def _settings(parts: Sequence[Quota | ScopePolicy]) -> dict[str, Int64s]:
    """Return the columns of the keys that any part sets; one that cannot have a key has its default."""
    columns = {}
    for key, field in SETTINGS.items():
        values = [vars(part).get(key, field.default) for part in parts]
        if any(value != field.default for value in values):
            columns[key] = np.array([setting_of(key, value) for value in values], dtype=np.int64)
    return columns


def setting_of(key: str, value: Any) -> int:  # noqa: ANN401 - of any key
    """Return a value of a key as `Limits.settings` has it.

    Examples
    --------
    >>> setting_of("fair_between", "namespaces"), setting_of("max_message_bytes", 7)
    (1, 7)
    """
    if isinstance(value, str):
        return get_args(SETTINGS[key].annotation).index(value)
    return UNBOUNDED if value is None else int(value)


def _milli(value: Decimal) -> int:
    return int(1000 * value)


def _windows(namespaces: Sequence[NamespacePolicy], direction: Direction) -> WindowRules:
    if direction == "publish":
        texts = [text for each in namespaces for text in (each.write_throttling, each.write_throttling_by_size)]
    else:
        texts = [text for each in namespaces for text in (each.read_throttling, None)]
    positions = {text: position for position, text in enumerate(dict.fromkeys(texts))}
    rules = [PegasusRule() if text is None else parse_throttling(text) for text in positions]
    rule_of = np.array([positions[text] for text in texts], dtype=np.int64).reshape(-1, 2)
    fields = np.array([astuple(rule) for rule in rules], dtype=np.int64)[rule_of]
    return WindowRules(*(np.ascontiguousarray(fields[:, :, field]) for field in range(4)))


def queue_bounds(queue: QueuePolicy) -> QueueBounds:
    """Return the bounds of the queue as integers."""
    age_ms = None if queue.age_seconds is None else _milli(queue.age_seconds)
    return QueueBounds(queue.messages, queue.bytes, age_ms, _OVERFLOW[queue.on_overflow])
