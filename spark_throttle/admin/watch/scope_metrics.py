"""Metrics of a job's scopes: the job itself, its groups and tenants, and its busiest namespaces.

The number of label values is bounded: a million namespaces would be a million series, which Prometheus does not
survive. So a namespace has a series only while it is among the worst `TOP_NAMESPACES` of its job (`status.ranking`).
At most `totals.MOST_NAMED` groups, and as many tenants, have series of their own, the worst; the rest of a level are
summed under ``_other``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from spark_throttle.admin.watch.balances import Pair, balances_of, rates_of, shared_positions
from spark_throttle.admin.watch.job_watch import JobView
from spark_throttle.admin.watch.namespace_numbers import namespaces_of, used_ratios
from spark_throttle.admin.watch.time_totals import times_of
from spark_throttle.admin.watch.totals import OTHER
from spark_throttle.status.destination_status import destinations_of
from spark_throttle.status.time_status import ScopeTime
from spark_throttle.status.usage_table import AT, MEASURES, by_dimension

TOP_NAMESPACES: Final = 50
NEAR_LIMIT_RATIO: Final = 0.8
"""A scope is near its limit if it used at least this part of a quota over the newest batches."""

_NS_PER_SECOND: Final = 1_000_000_000
_SCOPE_LABELS: Final = ("job", "level", "scope")


def counters(views: list[JobView]) -> Iterator[Metric]:
    """Yield the totals since the watch began."""
    for at, measure in enumerate(MEASURES):
        if measure.counter:
            yield _counter(measure.name, f"{measure.counter}, since the server began to watch.", views, at, 1)
    yield from _time_counters(views)
    text = "Time that admitted messages had waited, since the server began to watch."
    yield _counter("delayed_seconds", text, views, AT["delayed_ms"], 1000)


def _counter(name: str, text: str, views: list[JobView], at: int, divisor: int) -> Metric:
    family = CounterMetricFamily(f"spark_throttle_{name}", text, labels=_SCOPE_LABELS)
    for view in views:
        for (level, scope), counts in view.totals.series():
            family.add_metric((view.name, level, scope), int(counts[at]) / divisor)
    return family


def _time_counters(views: list[JobView]) -> Iterator[Metric]:
    """Yield the processing time of jobs whose policies have or had a quota on it."""
    text = "Processing time that was charged, since the server began to watch."
    used = CounterMetricFamily("spark_throttle_used_time_seconds", text, labels=_SCOPE_LABELS)
    others = {
        word: CounterMetricFamily(f"spark_throttle_{word}_time_seconds", f"Processing time {what}.", labels=("job",))
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


def gauges(views: list[JobView]) -> Iterator[Metric]:
    """Yield what waits, what buckets hold, when they leave debt, and which scopes are near their limits."""
    families = {
        name: GaugeMetricFamily(f"spark_throttle_{name}", text, labels=_SCOPE_LABELS)
        for unit in ("messages", "bytes")
        for name, text in (
            (f"backlog_{unit}", f"{unit.capitalize()} that wait."),
            (
                f"balance_{unit}",
                "Tokens that the bucket held when the newest batch was planned; below 0 it is in debt.",
            ),
            (
                f"share_{unit}_per_second",
                "The rate that the job may use: the quota, its share of it, or what a destination takes now.",
            ),
        )
    }
    throttle_time = GaugeMetricFamily(
        "spark_throttle_throttle_time_seconds", "How long until the scope's buckets leave debt; 0 out of debt.",
        labels=_SCOPE_LABELS,
    )  # fmt: skip
    left = GaugeMetricFamily(
        "spark_throttle_balance_time_seconds", "Processing time left of the scope's quota; below 0 it is in debt.",
        labels=_SCOPE_LABELS,
    )  # fmt: skip
    percent = GaugeMetricFamily(
        "spark_throttle_request_percentage", "The scope's quota on processing time, in percent of one core.",
        labels=_SCOPE_LABELS,
    )  # fmt: skip
    part = GaugeMetricFamily(
        "spark_throttle_share_request_percentage", "The job's share of the quota on processing time.",
        labels=_SCOPE_LABELS,
    )  # fmt: skip
    for view in views:
        if view.newest is None:
            continue
        balances, waiting = balances_of(view, _tenants(view)), by_dimension("waiting")
        times = times_of(view.time, view.totals.named)
        for level, scope in view.totals.named:
            labels = (view.name, level, scope)
            held, rate = balances.get((level, scope), ((None, None), (None, None)))
            counts = view.newest.shared.get((level, scope))
            for at, unit in enumerate(("messages", "bytes")):
                families[f"backlog_{unit}"].add_metric(labels, 0 if counts is None else int(counts[waiting][at]))
                _add(families[f"balance_{unit}"], labels, held[at])
                _add(families[f"share_{unit}_per_second"], labels, rate[at])
            time = times.get((level, scope))
            _add(throttle_time, labels, _longest(throttle_time_seconds(held, rate), time))
            _add(percent, labels, None if time is None else time.request_percentage)
            _add(part, labels, None if time is None else time.share_percentage)
            balance_ns = None if time is None else time.balance_ns
            _add(left, labels, None if balance_ns is None else balance_ns / _NS_PER_SECOND)
    yield from (*families.values(), throttle_time, left, percent, part, *_destinations(views), *_near_limits(views))


def _destinations(views: list[JobView]) -> Iterator[Metric]:
    text = "1 if the destination refuses every call, and its breaker is open."
    unavailable = GaugeMetricFamily("spark_throttle_destination_unavailable", text, labels=_SCOPE_LABELS)
    for view in views:
        for each in destinations_of(view.epoch, view.epoch_policy):
            labels = (view.name, "resource_group", each.resource_group)
            unavailable.add_metric(labels, int(each.is_unavailable))
    yield unavailable


def _longest(seconds: float | None, time: ScopeTime | None) -> float | None:
    """Return the throttle time of a scope's buckets and of its quota on processing time, whichever is longer."""
    throttle_ms = None if time is None else time.throttle_ms
    if throttle_ms is None:
        return seconds
    return max(throttle_ms / 1000, 0.0 if seconds is None else seconds)


def _near_limits(views: list[JobView]) -> Iterator[Metric]:
    near = GaugeMetricFamily(
        "spark_throttle_near_limit", f"1 if the scope used {NEAR_LIMIT_RATIO:g} of a quota over the newest batches.",
        labels=_SCOPE_LABELS,
    )  # fmt: skip
    number = GaugeMetricFamily(
        "spark_throttle_near_limit_namespaces",
        f"Number of namespaces that used {NEAR_LIMIT_RATIO:g} of their own quota over the newest batches.",
        labels=("job",),
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


def throttle_time_seconds(held: Pair, rate: Pair) -> float | None:
    """Return how long until buckets leave debt, infinity at a rate of 0; `None` without a limit."""
    times = [
        max(0.0, -tokens) / per_second if per_second else (np.inf if tokens < 0 else 0.0)
        for tokens, per_second in zip(held, rate, strict=True)
        if tokens is not None and per_second is not None
    ]
    return max(times, default=None)


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


def namespaces(views: list[JobView]) -> Iterator[Metric]:
    """Yield the gauges of the worst namespaces of each job."""
    labels = ("job", "namespace", "resource_group")
    families = {
        field: GaugeMetricFamily(f"spark_throttle_namespace_{field}", text, labels=labels)
        for field, text in (
            ("offered_per_second", "Messages per second that arrived, over the newest batches."),
            ("admitted_per_second", "Messages per second that were admitted, over the newest batches."),
            ("rejected_per_second", "Messages per second that were rejected, over the newest batches."),
            ("waiting_messages", "Messages that wait."),
        )
    }
    for view in views:
        if view.window is None:
            continue
        page = namespaces_of(view.window, resource_group=None, tenant=None, is_throttled=False, limit=TOP_NAMESPACES)
        for row in page.namespaces:
            for field, family in families.items():
                value = getattr(row, field)
                if value is not None:
                    family.add_metric((view.name, row.namespace, row.resource_group or ""), value)
    yield from families.values()
