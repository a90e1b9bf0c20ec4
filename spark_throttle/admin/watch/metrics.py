"""Metrics for Prometheus: of the store, of every job as a whole, and of its groups, tenants and worst namespaces.

A job that is known to be silent keeps its counters, as its totals still stand, and the metrics that say how long it has
been silent. It has no other gauge: an old value would look like a present one.

The number of label values is bounded: a million namespaces would be a million series, which Prometheus does not
survive. So a namespace has a series only while it is among the worst `TOP_NAMESPACES` of its job (`status.ranking`).
At most `MOST_NAMED` groups, and as many tenants, have series of their own, the worst; the rest of a level are summed
under ``_other``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from spark_throttle.admin.watch.batch_numbers import JOB, OTHER, WITHIN_SECONDS, times_of
from spark_throttle.admin.watch.job_numbers import (
    balances_of,
    namespaces_of,
    rates_of,
    shared_positions,
    used_ratios,
)
from spark_throttle.admin.watch.job_watch import JobView, JobWatch
from spark_throttle.core.batch.decisions import REASONS
from spark_throttle.core.quota import KNOWN
from spark_throttle.errors import ThrottleError
from spark_throttle.status.explanation import NO_NUMBERS, Numbers
from spark_throttle.status.status import destinations_of
from spark_throttle.status.time_status import ScopeTime
from spark_throttle.status.usage_table import AT, MEASURES, by_dimension
from spark_throttle.store.store import PolicyStore

TOP_NAMESPACES: Final = 50
NEAR_LIMIT_RATIO: Final = 0.8
"""A scope is near its limit if it used at least this part of a quota over the newest batches."""

_NS_PER_SECOND: Final = 1_000_000_000
_JOB: Final = "spark_job"
"""The label of a job: Prometheus gives `job` to what it scrapes, and would rename ours."""

_SCOPE_LABELS: Final = (_JOB, "level", "scope")


def counters(views: list[JobView]) -> Iterator[Metric]:
    """Yield the totals since the watch began."""
    for at, measure in enumerate(MEASURES):
        if counted := measure.metadata.get("counter"):
            yield _counter(measure.name, f"{counted}, since the server began to watch.", views, at, 1)
    yield from _time_counters(views)
    yield _waited(views)


def _counter(name: str, text: str, views: list[JobView], at: int, divisor: int) -> Metric:
    family = CounterMetricFamily(f"spark_throttle_{name}", text, labels=_SCOPE_LABELS)
    for view in views:
        for (level, scope), counts in view.totals.series():
            family.add_metric((view.name, level, scope), int(counts[at]) / divisor)
    return family


def _waited(views: list[JobView]) -> Metric:
    """Return how long the admitted messages had waited; 0 s are those that left in the batch in which they came."""
    text = "How long admitted messages had waited, since the server began to watch."
    family = HistogramMetricFamily("spark_throttle_waited_seconds", text, labels=_SCOPE_LABELS)
    for view in views:
        for (level, scope), counts in view.totals.series():
            admitted, (waited, *within) = int(counts[AT["admitted_messages"]]), counts[len(MEASURES) :].tolist()
            at_once = admitted - waited
            bounds = [(str(float(each)), at_once + left) for each, left in zip(WITHIN_SECONDS, within, strict=True)]
            buckets = [("0.0", at_once), *bounds, ("+Inf", admitted)]
            family.add_metric((view.name, level, scope), buckets, counts[AT["delayed_ms"]] / 1000)
    return family


def _time_counters(views: list[JobView]) -> Iterator[Metric]:
    """Yield the processing time of jobs whose policies have or had a quota on it."""
    text = "Processing time that was charged, since the server began to watch."
    used = CounterMetricFamily("spark_throttle_used_time_seconds", text, labels=_SCOPE_LABELS)
    others = {
        word: CounterMetricFamily(f"spark_throttle_{word}_time_seconds", f"Processing time {what}.", labels=(_JOB,))
        for word, what in (
            ("exempt", "of exempt namespaces, since the server began to watch"),
            ("unattributed", "that belongs to no namespace, since the server began to watch"),
        )
    }
    for view in views:
        totals = view.time_totals
        if not totals.used_ns:
            continue
        named = frozenset(view.totals.named)
        for (level, scope), used_ns in totals.used_ns.items():
            if scope == OTHER or (level, scope) in named:
                used.add_metric((view.name, level, scope), used_ns / _NS_PER_SECOND)
        others["exempt"].add_metric((view.name,), totals.exempt_ns / _NS_PER_SECOND)
        others["unattributed"].add_metric((view.name,), totals.unattributed_ns / _NS_PER_SECOND)
    yield from (used, *others.values())


_BALANCE: Final = "Tokens that the bucket held when the newest batch was planned; below 0 it is in debt."
_SHARE: Final = "The rate that the job may use: the quota, its share of it, or what a destination takes now."
_SCOPE_GAUGES: Final = {
    "backlog_messages": "Messages that wait.",
    "backlog_bytes": "Bytes that wait.",
    "backlog_units": "Units that wait, of what the policy names.",
    "held_messages": "Messages that wait for a quota of this scope.",
    "oldest_waiting_seconds": "How long the oldest waiting message had waited when the newest batch began.",
    "balance_messages": _BALANCE,
    "balance_bytes": _BALANCE,
    "balance_units": _BALANCE,
    "share_messages_per_second": _SHARE,
    "share_bytes_per_second": _SHARE,
    "share_units_per_second": _SHARE,
    "throttle_time_seconds": "How long until the scope's buckets leave debt; 0 out of debt.",
    "balance_time_seconds": "Processing time left of the scope's quota; below 0 it is in debt.",
    "request_percentage": "The scope's quota on processing time, in percent of one core.",
    "share_request_percentage": "The job's share of the quota on processing time.",
    "reserved_messages": "Messages that left and whose costs are not known yet.",
    "reserved_units": "What these were estimated to cost, in units.",
    "destination_unavailable": "1 if the destination refuses every call, and its breaker is open.",
}


def gauges(views: list[JobView]) -> Iterator[Metric]:
    """Yield what waits, what buckets hold, when they leave debt, and which scopes are near their limits."""
    families = _gauges("", _SCOPE_GAUGES, _SCOPE_LABELS)
    for view in views:
        if view.newest is None:
            continue
        balances, times = balances_of(view, _tenants(view)), times_of(view.time, view.totals.named)
        for key in view.totals.named:
            counts = view.newest.shared.get(key)
            waiting = (0,) * len(KNOWN) if counts is None else counts[by_dimension("waiting")].tolist()
            waits = view.newest.waits.get(key, {})
            held, rate = balances.get(key, (NO_NUMBERS, NO_NUMBERS))
            time = times.get(key)
            balance_ns = None if time is None else time.balance_ns
            values = (
                *waiting, waits.get("held_messages", 0), (waits.get("oldest_waiting_ms") or 0) / 1000, *held, *rate,
                _longest(throttle_time_seconds(held, rate), time),
                None if balance_ns is None else balance_ns / _NS_PER_SECOND,
                None if time is None else time.request_percentage, None if time is None else time.share_percentage,
                *(0 if counts is None else int(counts[AT[name]]) for name in ("reserved_messages", "reserved_units")),
            )  # fmt: skip
            _add(families, (view.name, *key), dict(zip(_SCOPE_GAUGES, values, strict=False)))
        for each in destinations_of(view.epoch, view.epoch_policy):
            labels = (view.name, "resource_group", each.resource_group)
            _add(families, labels, {"destination_unavailable": int(each.is_unavailable)})
    yield from (*families.values(), *_budgets(views), _waiting_scopes(views), *_near_limits(views))


_BUDGET_GAUGES: Final = {
    "budget_left": "Messages, bytes or units left of the budget after the newest batch.",
    "budget_lasts_seconds": "How long that lasts at the mean pace of the window so far, if it ends before the window.",
}


def _budgets(views: list[JobView]) -> Iterator[Metric]:
    """Yield what is left of budgets, and how long it lasts."""
    families = _gauges("", _BUDGET_GAUGES, (*_SCOPE_LABELS, "budget"))
    for view in views:
        for key in () if view.newest is None else view.totals.named:
            for each in view.newest.budgets.get(key, ()) if view.newest is not None else ():
                lasts = None if each.lasts_ms is None else each.lasts_ms / 1000
                labels = (view.name, *key, each.budget)
                _add(families, labels, {"budget_left": each.left, "budget_lasts_seconds": lasts})
    yield from families.values()


def _gauges(prefix: str, texts: Mapping[str, str], labels: Sequence[str]) -> dict[str, GaugeMetricFamily]:
    return {name: GaugeMetricFamily(f"spark_throttle_{prefix}{name}", texts[name], labels=labels) for name in texts}


def _add(
    families: Mapping[str, GaugeMetricFamily], labels: tuple[str, ...], values: Mapping[str, float | None]
) -> None:
    for name, value in values.items():
        if value is not None:
            families[name].add_metric(labels, value)


def _longest(seconds: float | None, time: ScopeTime | None) -> float | None:
    """Return the throttle time of a scope's buckets and of its quota on processing time, whichever is longer."""
    throttle_ms = None if time is None else time.throttle_ms
    if throttle_ms is None:
        return seconds
    return max(throttle_ms / 1000, 0.0 if seconds is None else seconds)


def _waiting_scopes(views: list[JobView]) -> Metric:
    """Return how many scopes of each level have a message that waits: of all, also of those without a series."""
    family = GaugeMetricFamily(
        "spark_throttle_waiting_scopes", "Number of scopes with a message that waits.", labels=(_JOB, "level")
    )
    for view in views:
        if view.newest is None:
            continue
        found = Counter(key[0] for key in view.newest.shared if view.newest.oldest_of(key) >= 0)
        found["namespace"] = int((view.newest.oldest_ms >= 0).sum())
        for level in ("tenant", "resource_group", "namespace"):
            family.add_metric((view.name, level), found[level])
    return family


def _near_limits(views: list[JobView]) -> Iterator[Metric]:
    near = GaugeMetricFamily(
        "spark_throttle_near_limit", f"1 if the scope used {NEAR_LIMIT_RATIO:g} of a quota over the newest batches.",
        labels=_SCOPE_LABELS,
    )  # fmt: skip
    number = GaugeMetricFamily(
        "spark_throttle_near_limit_namespaces",
        f"Number of namespaces that used {NEAR_LIMIT_RATIO:g} of their own quota over the newest batches.",
        labels=(_JOB,),
    )
    for view in views:
        if view.window is None or not view.window.elapsed_ms:
            continue
        is_of_epoch = view.epoch_policy is not None and view.epoch_policy.revision == view.window.policy.revision
        used = used_ratios(view.window, rates=rates_of(view) if is_of_epoch else None, time=view.time)
        number.add_metric((view.name,), int((used.own.max(axis=1, initial=-1) >= NEAR_LIMIT_RATIO).sum()))
        positions = shared_positions(view.window.policy, _tenants(view))
        for level, scope in view.totals.named:
            at = positions.get((level, scope))
            ratio = -1.0 if at is None else float(used.shared[at].max())
            if ratio >= 0:
                near.add_metric((view.name, level, scope), int(ratio >= NEAR_LIMIT_RATIO))
    yield from (near, number)


def _tenants(view: JobView) -> list[str]:
    return [scope for level, scope in view.totals.named if level == "tenant"]


def throttle_time_seconds(held: Numbers, rate: Numbers) -> float | None:
    """Return how long until buckets leave debt, infinity at a rate of 0; `None` without a limit."""
    times = [
        max(0.0, -tokens) / per_second if per_second else (np.inf if tokens < 0 else 0.0)
        for tokens, per_second in zip(held, rate, strict=True)
        if tokens is not None and per_second is not None
    ]
    return max(times, default=None)


_NAMESPACE_GAUGES: Final = {
    "offered_per_second": "Messages per second that arrived, over the newest batches.",
    "admitted_per_second": "Messages per second that were admitted, over the newest batches.",
    "rejected_per_second": "Messages per second that were rejected, over the newest batches.",
    "waiting_messages": "Messages that wait.",
}


def namespaces(views: list[JobView]) -> Iterator[Metric]:
    """Yield the gauges of the worst namespaces of each job."""
    families = _gauges("namespace_", _NAMESPACE_GAUGES, (_JOB, "namespace", "resource_group"))
    for view in views:
        if view.window is None:
            continue
        page = namespaces_of(view.window, resource_group=None, tenant=None, is_throttled=False, limit=TOP_NAMESPACES)
        for row in page.namespaces:
            values = {name: getattr(row, name) for name in families}
            _add(families, (view.name, row.namespace, row.resource_group or ""), values)
    yield from families.values()


logger = logging.getLogger(__name__)

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4


class JobCollector(Collector):
    """The metrics of all watched jobs, and of the store.

    Parameters
    ----------
    watch
        The watched jobs.
    store
        The store whose revision is shown next to those of the jobs.
    """

    def __init__(self, watch: JobWatch, store: PolicyStore) -> None:
        self._watch = watch
        self._store = store

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they are now."""
        yield from _store_metrics(self._store)
        views = self._watch.views()
        yield from _job_metrics(views)
        yield _rejections(views)
        yield from counters(views)
        listening = [view for view in views if view.liveness().is_listening]
        yield from gauges(listening)
        yield from namespaces(listening)


def exposed(watch: JobWatch, store: PolicyStore) -> bytes:
    """Return all metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(JobCollector(watch, store))
    return generate_latest(registry)


def _store_metrics(store: PolicyStore) -> Iterator[Metric]:
    up = GaugeMetricFamily("spark_throttle_store_up", "1 if the policy store can be read and has its history.")
    revision = GaugeMetricFamily("spark_throttle_store_revision", "Newest revision of the policy store.")
    try:
        store.check_whole()
        revision.add_metric((), store.revision())
    except ThrottleError as error:  # the jobs go on without the store: whoever watches them must hear of it
        logger.warning("the policy store cannot be read: %s", error)
        up.add_metric((), 0)
    else:
        up.add_metric((), 1)
    yield from (up, revision)


_JOB_GAUGES: Final = {
    "up": "1 if the job's control directory can be read, and the job is not known to be silent or to have ended.",
    "reporting": "1 if the job gives signs of life and Spark asks it for batches.",
    "sign_of_life_age_seconds": "Time since the job's last sign of life.",
    "batch_age_seconds": "Time since the newest batch.",
    "batch": "Newest batch that has reported.",
    "batch_timestamp_seconds": "Time of that batch.",
    "store_revision": "Store revision that the next batch is planned with.",
    "policy_stale": "1 if the store's newest policies are not in force.",
    "oldest_waiting_seconds": "How long the oldest waiting row has waited; 0 if none waits.",
    "queue_used_ratio": "The part of the queue's bounds that waiting rows take.",
    "oldest_reserved_seconds": "For how long the costs of the oldest message that left are not known; 0 if all are.",
    "leased": "1 if the job has agreed with the others on shares; 0 while it has only its floor.",
}


def _job_metrics(views: list[JobView]) -> Iterator[Metric]:
    families = _gauges("job_", _JOB_GAUGES, (_JOB,))
    for view in views:
        life, batch_age_ms = view.liveness(), view.batch_age_ms()
        values: dict[str, float | None] = {
            "up": int(view.problem is None and (life.is_listening or life.state == "hanging")),
            "reporting": None if life.state == "unknown" else int(life.state == "reporting"),
            "sign_of_life_age_seconds": None if life.sign_age_ms is None else life.sign_age_ms / 1000,
            "batch_age_seconds": None if batch_age_ms is None else batch_age_ms / 1000,
        }
        if life.is_listening and view.batches:
            values |= {"batch": view.batches[-1].batch, "batch_timestamp_seconds": view.batches[-1].now_ms / 1000}
        if life.is_listening and view.followed is not None:
            values |= {"policy_stale": int(view.followed.problem is not None)}
            values |= {"store_revision": view.followed.store_revision}
        if life.is_listening and view.newest and batch_age_ms is not None:
            waited_ms = view.newest.waits[JOB]["oldest_waiting_ms"]
            values |= {"oldest_waiting_seconds": 0 if waited_ms is None else (waited_ms + batch_age_ms) / 1000}
        if life.is_listening and view.newest and view.window is not None:
            bounds, waiting = view.window.policy.queue, view.newest.shared[JOB][by_dimension("waiting")].tolist()
            values |= {"queue_used_ratio": max(waiting[0] / bounds.messages, waiting[1] / bounds.bytes)}
        if life.is_listening and view.newest and view.newest.reservations is not None and batch_age_ms is not None:
            told = view.newest.reservations
            values |= {"oldest_reserved_seconds": (told.oldest_ms + batch_age_ms) / 1000 if told.open_messages else 0}
        if life.is_listening and view.exchange is not None:
            values |= {"leased": int(view.exchange.is_leased)}
        _add(families, (view.name,), values)
    yield from families.values()


def _rejections(views: list[JobView]) -> Metric:
    family = CounterMetricFamily(
        "spark_throttle_rejected_by_reason", "Messages that were rejected, since the server began to watch.",
        labels=(_JOB, "reason"),
    )  # fmt: skip
    for view in views:
        for reason, count in list(zip(REASONS, view.rejected_by_reason.tolist(), strict=False))[1:]:
            family.add_metric((view.name, reason), count)
    return family
