"""A namespace is held by the rule that won; the rules that lost are told too, and what each level has left.

There are two sources, which the answer keeps apart: what the policies say (`explain_policy`), and what a running job
did with them in its last batch (`explain_job`, from the files in its control directory: the newest epoch and the last
reports). The balance of a namespace's own bucket is in the decider's state, which these files do not hold.

A name may be a tenant's (`tenant_explanation`): then all of its namespaces are explained together.

A predicted release assumes that nothing more arrives: it is the time until each level has earned, at the job's share of
its quota, the tokens that its whole backlog needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.checkpoint.manifest import read_manifest
from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import newest_epoch, policy_of_epoch
from spark_throttle.control.notes import NextPolicies, exceptions_in_force, read_next_policies
from spark_throttle.control.reports import newest_batch, report_of
from spark_throttle.core.batch.decisions import counted_as
from spark_throttle.core.names.globs import first_match, is_glob
from spark_throttle.core.names.matching import SHARED_LEVELS, Matches, match
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy, Dimension, Level
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import ConfigurationError, NotFoundError
from spark_throttle.files.storage import Directory
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import Direction, PolicyDocument
from spark_throttle.policy.values import MAX_NAME_BYTES
from spark_throttle.policy.wall_time import local_time, zone_named
from spark_throttle.policy.weekly_hours import next_change_ms
from spark_throttle.status.explanation import (
    NO_NUMBERS,
    OF_ONE_TENANT,
    Explanation,
    LevelExplanation,
    entries_of,
    exceptions_of,
    flows_of,
    is_shut,
    last_batch_of,
    level_of,
    namespace_of_tenant,
    observed_levels,
    standing_backlog,
)
from spark_throttle.status.liveness import Liveness, SignWatch, life_in_words, problem_in_words
from spark_throttle.status.status import DestinationStatus, destinations_of
from spark_throttle.status.tenant_explanation import WaitingPart, explained_tenant, is_tenant
from spark_throttle.store.entries import document_of
from spark_throttle.store.store import Entry, PolicyStore


def explain_policy(
    store: PolicyStore,
    namespace: str,
    direction: Direction,
    *,
    is_wide: bool = True,
    now_ms: int | None = None,
) -> Explanation:
    """Return what the policies of a store say about a name; all of the store is read, and little of it is kept.

    Parameters
    ----------
    is_wide
        Whether the reader may know of exceptions that are not its tenant's.
    now_ms
        The wall clock's time, by which exceptions end; by default this machine's.

    Examples
    --------
    >>> from spark_throttle.store.memory_store import MemoryStore
    >>> from spark_throttle.store.store import Author, Change
    >>> store = MemoryStore()
    >>> changes = [Change("namespace", "acme/*", "{}"), Change("tenant", "acme", "{}")]
    >>> store.commit(changes, expected_revision=0, author=Author("ann"), at_ms=0)
    1
    >>> for reason in explain_policy(store, "acme/x", "publish").reasons:
    ...     print(reason)
    exempt: no exemption matches it
    namespace: it has no entry of its own
    glob: acme/* is the most specific that matches it
    defaults: not consulted, a glob matches it
    resource group: neither the rule nor its tenant acme names one
    """
    _check_name(namespace)
    at = store.revision()
    tenant = namespace.partition("/")[0]
    document = document_of(_concerning(store.scan(at=at), namespace, tenant), what=store.location)
    now_ms = Clock.system().wall_ms() if now_ms is None else now_ms
    policy = replace(compile_policy(document.at(now_ms), direction), revision=str(at))
    if is_tenant(policy, namespace, None):
        found = explained_tenant(policy, namespace, direction, ())
    else:
        found = _explained(policy, namespace, direction)
    in_force = exceptions_in_force(document, now_ms)
    notes = [*_schedules(document, entries_of(found, is_wide=is_wide), now_ms)]
    notes += _of_a_group(policy, namespace) if is_wide else ()
    return replace(found, exceptions=exceptions_of(found, in_force, now_ms, is_wide=is_wide), notes=tuple(notes))


def _schedules(document: PolicyDocument, paths: Collection[str], now_ms: int) -> Iterator[str]:
    """Yield what the schedules of entries say of a moment."""
    zone = document.job.time_zone
    for path, policy in document.scopes:
        if policy.schedule and path in paths:
            hours = policy.hours_at(now_ms, zone)
            said = "none of its scheduled hours hold" if hours is None else f"its hours {hours} hold"
            next_ms = next_change_ms(policy.schedule, zone, now_ms)
            if next_ms < NEVER_MS:
                said += f" until {local_time(zone_named(zone), next_ms).isoformat()} ({zone})"
            yield f"{path}: {said}"


def _concerning(entries: Iterable[Entry], namespace: str, tenant: str) -> Iterable[Entry]:
    for entry in entries:
        names = {"tenant": tenant, "namespace": namespace, "exempt": namespace}.get(entry.kind)
        if names is None or entry.name == names or is_glob(entry.name):
            yield entry


def explain_job(
    control_path: str, namespace: str, *, is_wide: bool = True, life: Liveness | None = None
) -> Explanation:
    """Return what a job did with a namespace, or with those of a tenant, in its last batch, and by which rule.

    Parameters
    ----------
    control_path
        The job's control directory: ``<checkpoint>/throttle``.
    is_wide
        Whether the reader may see what belongs to no single tenant: balances and backlogs of the job and its groups,
        what can be reckoned from them, such as when they let rows go, and problems in their own words.
    life
        Whether the job lives, from one who watches it; by default its newest sign of life is read, once.

    Raises
    ------
    NotFoundError
        If no batch of a job was planned there.
    """
    _check_name(namespace)
    directory = Directory(control_path)
    manifest = read_manifest(directory)
    epoch = newest_epoch(directory)
    if manifest is None or epoch is None:
        hint = "; give <checkpoint>/throttle of a job that has been started"
        if manifest is not None:
            hint = " with a planned batch: the job has begun and planned none yet; try again later"
        raise NotFoundError("control directory", control_path, hint)
    direction: Direction = "dispatch" if manifest.direction == "dispatch" else "publish"
    policy = policy_of_epoch(directory, epoch.number, epoch.revision)
    batch = newest_batch(directory)
    last = report_of(directory, batch)
    of_last = match(pa.array([], pa.string()) if last is None else last.names, policy)
    waiting = None
    if is_tenant(policy, namespace, last):
        waiting = WaitingPart.of(policy, namespace, last, of_last)
        explained = explained_tenant(policy, namespace, direction, waiting.groups)
    else:
        explained = _explained(policy, namespace, direction)
    followed = read_next_policies(directory)
    if followed is not None:
        now_ms = Clock.system().wall_ms()
        in_force = exceptions_of(explained, followed.exceptions, now_ms, is_wide=is_wide)
        explained = replace(explained, exceptions=in_force)
    notes = _notes(followed, policy.revision, life or _life_now(directory), is_wide=is_wide)
    notes += (
        [*_of_a_group(policy, namespace), *_destinations(explained, destinations_of(epoch, policy))] if is_wide else []
    )
    if last is None:
        return replace(explained, notes=(*notes, "no batch has reported since the newest epoch was made"))
    asked = [*explained.levels, *(() if waiting is None else waiting.levels)]
    before = policy if last.revision == policy.revision else policy_of_epoch(directory, last.epoch, last.revision)
    is_settled = batch <= epoch.settled_batch
    observed = observed_levels(asked, policy, epoch, last, of_last, before=before, is_settled=is_settled)
    levels, own = observed[: len(explained.levels)], observed[len(explained.levels) :]
    seen = last_batch_of(batch, last, flows_of(last, namespace, is_tenant=waiting is not None))
    passed = levels if waiting is None else waiting.passed(levels)
    predicted_ms, reasons = _prediction(passed, has_backlog=seen.waiting[0] > 0, is_wide=is_wide)
    if seen.waiting[0]:
        told = [each for each in passed if is_wide or each.level in OF_ONE_TENANT]
        reasons = (*reasons, *standing_backlog(told, policy, last, of_last))
    if waiting is not None:
        held = tuple(waiting.told(last, own, levels, is_wide=is_wide))
        explained = replace(explained, namespaces=held, waiting_namespaces=waiting.count)
        own_ms = [each.release_ms for each in held]
        if predicted_ms is not None:
            predicted_ms = None if None in own_ms else max([predicted_ms, *(ms for ms in own_ms if ms is not None)])
    return replace(
        explained,
        levels=tuple(level if is_wide or level.level in OF_ONE_TENANT else _narrowed(level) for level in levels),
        last_batch=seen,
        predicted_release_ms=predicted_ms,
        notes=(*notes, *reasons, *(() if waiting is not None else _of_a_namespace(namespace, explained, last))),
    )


def _life_now(directory: Directory) -> Liveness:
    signs = SignWatch(directory, Clock.system())
    signs.look()
    return signs.liveness()


def _of_a_group(policy: CompiledPolicy, name: str) -> tuple[str, ...]:
    """Return a note if a resource group has a name that is explained as that of something else."""
    if name not in policy.group_names.to_pylist():
        return ()
    return ("a resource group has this name, too: its entry and its row in the status of the job tell of it",)


def _of_a_tenant(name: str, last: UsageReport) -> tuple[str, ...]:
    """Return a note if a name without a slash is the one of a tenant of the last batch."""
    found = None if "/" in name else namespace_of_tenant(name, last)
    return () if found is None else (f"explained as a namespace; the tenant of that name has {found}, for example",)


def _of_a_namespace(name: str, explained: Explanation, last: UsageReport) -> tuple[str, ...]:
    """Return what else there is to say of a namespace: what rejected it, and whether a tenant has its name."""
    flows = np.flatnonzero(flows_of(last, name))
    if last.held_by is None or not last.rejected[flows, Dimension.MESSAGES].any():
        return _of_a_tenant(name, last)
    at, dimension = last.held_by[flows[0]].tolist()
    levels = [each for each in explained.levels if at >= 0 and each.level == Level(at).name.lower()]
    counted = counted_as(dimension, explained.unit)
    said = (
        f"rejected by the quota of {each.level.replace('_', ' ')} {each.scope} in {counted}"
        for each in levels
        if each.on_excess == "reject"
    )
    return (*said, *_of_a_tenant(name, last))


def _prediction(
    levels: list[LevelExplanation], *, has_backlog: bool, is_wide: bool
) -> tuple[int | None, tuple[str, ...]]:
    """Return how long until a namespace's backlog will have left, and what else there is to say of it.

    The time until a shared level lets it go, times the level's rate, is the backlog of all who share it. Who may not
    see that backlog is told no such time.
    """
    if not has_backlog:
        return None, ()
    if any(is_shut(level) for level in levels):
        return None, ("a quota of 0 holds it: what waits never leaves by itself",)
    own_ms, shared_ms = (
        max((level.release_ms or 0 for level in levels if (level.level in OF_ONE_TENANT) is is_own), default=0)
        for is_own in (True, False)
    )
    if is_wide or own_ms >= shared_ms:
        return max(own_ms, shared_ms), ()
    return None, (_HELD_BY_SHARED,)


def _explained(policy: CompiledPolicy, namespace: str, direction: str) -> Explanation:
    names = pa.array([namespace])
    tenant = namespace.partition("/")[0]
    found = match(names, policy)
    rule, matched, reasons = _rule(policy, namespace, tenant, found)
    levels = [] if rule == "exempt" else _levels(policy, namespace, found)
    at_group = int(found.group[0])
    group = policy.group_names[at_group].as_py() if at_group >= 0 else None
    reasons += [_group_reason(policy, rule, tenant, group, found)]
    if found.is_observed[0]:
        percent = int(policy.namespace_limits.settings["observe_percent"][found.rule[0]])
        reasons.append(f"observed: the rule's quota only observes {percent} % of its names, and this is one of them")
    return Explanation(
        namespace, direction, rule, matched, tuple(reasons), group,
        tuple(levels), policy.revision, unit=policy.unit,
    )  # fmt: skip


def _rule(policy: CompiledPolicy, namespace: str, tenant: str, found: Matches) -> tuple[str, str, list[str]]:
    """Return the kind of rule that won, the rule's name, and a reason for each kind."""
    names, tenants = pa.array([namespace]), pa.array([tenant])
    if found.is_exempt[0]:
        at = int(first_match(names, tenants, policy.exempt_globs)[0])
        by = namespace if namespace in policy.exempt_names.to_pylist() else policy.exempt_globs[at].as_py()
        return "exempt", by, [f"exempt: {by} matches it, so no quota holds it and it is charged nowhere"]
    reasons = ["exempt: no exemption matches it"]
    position = int(found.rule[0])
    named = len(policy.namespace_names)
    if position < named:
        reasons += ["namespace: it has an entry of its own", "glob: not consulted, it has an entry"]
        return "namespace", namespace, [*reasons, "defaults: not consulted, it has an entry"]
    reasons.append("namespace: it has no entry of its own")
    if position < policy.default_rule:
        globs = policy.glob_patterns.to_pylist()
        first = globs[position - named]
        reasons.append(f"glob: {first} is the most specific that matches it")
        others = [glob for glob in globs[position - named + 1 :] if _falls(names, tenants, glob)]
        reasons += [f"glob: {glob} matches it too, but is less specific" for glob in others]
        return "glob", first, [*reasons, "defaults: not consulted, a glob matches it"]
    return "defaults", "", [*reasons, "glob: none matches it", "defaults: nothing else matches it"]


def _falls(names: pa.StringArray, tenants: pa.StringArray, glob: str) -> bool:
    return bool(first_match(names, tenants, pa.array([glob]))[0] == 0)


def _group_reason(policy: CompiledPolicy, rule: str, tenant: str, group: str | None, found: Matches) -> str:
    if rule == "exempt":
        return "resource group: not consulted, it is exempt"
    if group is None:
        at_fault = (
            f"neither the rule nor its tenant {tenant}"
            if rule != "defaults"
            else f"neither its tenant {tenant} nor the defaults"
        )
        return f"resource group: {at_fault} names one"
    at_tenant = int(found.tenant[0])
    through = int(policy.tenant_group[at_tenant]) if at_tenant >= 0 else -1
    is_tenants = through == int(found.group[0])
    if rule == "defaults":
        return f"resource group: {group}, named by {f'its tenant {tenant}' if is_tenants else 'the defaults'}"
    if is_tenants:
        return f"resource group: {group}, through its tenant {tenant}; it counts once, whoever else names it"
    return f"resource group: {group}, named by the rule itself; its tenant was not consulted"


def _levels(policy: CompiledPolicy, namespace: str, found: Matches) -> list[LevelExplanation]:
    own = found.own_limits(policy)
    levels = [level_of("namespace", namespace, policy, int(found.rule[0]), own=own)]
    names = ["job", *policy.tenant_names.to_pylist(), *policy.group_names.to_pylist()]
    for level, scope in zip(SHARED_LEVELS, found.shared_scope[0].tolist(), strict=True):
        if scope >= 0:
            group = int(found.group_scope[0])
            levels.append(level_of(level.name.lower(), names[scope], policy, scope, group_scope=group))
    return levels


_HELD_BY_SHARED: Final = "the group's or the job's quota holds it back: when it lets it go is not told"


def _narrowed(level: LevelExplanation) -> LevelExplanation:
    """Return a level that others share as one of them may see it."""
    return replace(
        level,
        share=NO_NUMBERS,
        guaranteed_in_force=NO_NUMBERS,
        balance=NO_NUMBERS,
        balance_time_ns=None,
        waiting=None,
        release_ms=None,
        budgets=(),
    )


def _notes(followed: NextPolicies | None, revision: str, life: Liveness, *, is_wide: bool) -> list[str]:
    notes = [] if life.is_listening else [f"no job is listening: {life_in_words(life, is_wide=is_wide)}"]
    if followed is None:
        return notes
    problem = problem_in_words(followed.problem, is_wide=is_wide)
    notes += [] if problem is None else [f"the newest policies are not in force: {problem}"]
    if followed.revision != revision and life.is_listening:
        notes.append(f"revision {followed.revision} takes effect with the next batch")
    return notes


def _destinations(explained: Explanation, destinations: Iterable[DestinationStatus]) -> list[str]:
    """Return what a destination does to the rows of a namespace."""
    notes = []
    for each in destinations:
        if not explained.levels or each.resource_group != explained.resource_group:
            continue
        if each.is_unavailable:
            notes.append(f"the destination {each.resource_group} has refused every call for "
                         f"{each.refused_for_ms / 1000:g} s")  # fmt: skip
        elif each.messages_per_second < each.ceiling_messages_per_second:
            notes.append(f"{each.messages_per_second:g} messages/s are admitted now for the destination "
                         f"{each.resource_group}")  # fmt: skip
    return notes


def _check_name(namespace: str) -> None:
    try:
        length_bytes = len(namespace.encode())
    except UnicodeEncodeError:
        raise ConfigurationError("the namespace holds half of a surrogate pair, which utf-8 cannot write") from None
    if not 0 < length_bytes <= MAX_NAME_BYTES:
        msg = f"the namespace has {length_bytes} bytes of utf-8; a row is admitted with 1 to {MAX_NAME_BYTES}"
        raise ConfigurationError(msg)
