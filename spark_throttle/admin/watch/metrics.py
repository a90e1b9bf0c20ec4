"""Metrics for Prometheus: of every job and its resource groups, and of its busiest namespaces.

The number of label values is bounded: a million namespaces would be a million series, which Prometheus does not
survive. So a namespace has a series only while it is among the `TOP_NAMESPACES` of its job by the sum of its waiting
and offered messages. At most `TOP_GROUPS` groups, the busiest, have series of their own; the rest are summed under
``_other``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from spark_throttle.admin.watch.job_watch import JobView, JobWatch
from spark_throttle.admin.watch.namespace_numbers import namespaces_of
from spark_throttle.core.lending.shares import under_share
from spark_throttle.core.quota import MICRO, Int64s
from spark_throttle.errors import StoreError
from spark_throttle.status.usage_table import AT, MEASURES, by_dimension
from spark_throttle.store.store import PolicyStore

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
TOP_NAMESPACES: Final = 50
TOP_GROUPS: Final = 200
OTHER: Final = "_other"

_SCOPE_LABELS: Final = ("job", "level", "scope")


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
        yield from _counters(views)
        listening = [view for view in views if view.liveness().is_listening]
        yield from _gauges(listening)
        yield from _namespaces(listening)


def exposed(watch: JobWatch, store: PolicyStore) -> bytes:
    """Return all metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(JobCollector(watch, store))
    return generate_latest(registry)


def _store_metrics(store: PolicyStore) -> Iterator[Metric]:
    up = GaugeMetricFamily("spark_throttle_store_up", "1 if the policy store can be read.")
    revision = GaugeMetricFamily("spark_throttle_store_revision", "Newest revision of the policy store.")
    try:
        revision.add_metric((), store.revision())
    except StoreError:
        up.add_metric((), 0)
    else:
        up.add_metric((), 1)
    yield from (up, revision)


def _job_metrics(views: list[JobView]) -> Iterator[Metric]:
    up = _of_job("up", "1 if the job's control directory can be read, and the job is not known to be silent.")
    reporting = _of_job("reporting", "1 if the job gives signs of life and Spark asks it for batches.")
    sign_age = _of_job("sign_of_life_age_seconds", "Time since the job's last sign of life.")
    batch_age = _of_job("batch_age_seconds", "Time since the newest batch.")
    batch = _of_job("batch", "Newest batch that has reported.")
    at = _of_job("batch_timestamp_seconds", "Time of that batch.")
    revision = _of_job("store_revision", "Store revision that the next batch is planned with.")
    stale = _of_job("policy_stale", "1 if the store's newest policies are not in force.")
    for view in views:
        labels, life, batch_age_ms = (view.name,), view.liveness(), view.batch_age_ms()
        up.add_metric(labels, int(view.problem is None and life.is_listening))
        if life.state != "unknown":
            reporting.add_metric(labels, int(life.state == "reporting"))
        if life.sign_age_ms is not None:
            sign_age.add_metric(labels, life.sign_age_ms / 1000)
        if batch_age_ms is not None:
            batch_age.add_metric(labels, batch_age_ms / 1000)
        if not life.is_listening:
            continue
        if view.batches:
            batch.add_metric(labels, view.batches[-1].batch)
            at.add_metric(labels, view.batches[-1].now_ms / 1000)
        if view.followed is not None:
            stale.add_metric(labels, int(view.followed.problem is not None))
            if view.followed.store_revision is not None:
                revision.add_metric(labels, view.followed.store_revision)
    yield from (up, reporting, sign_age, batch_age, batch, at, revision, stale)


def _of_job(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"spark_throttle_job_{name}", text, labels=("job",))


def _kept(view: JobView) -> dict[tuple[str, str], Int64s]:
    """Return the totals of the job and the busiest groups, and the sum of the other groups."""
    busiest = sorted(
        view.totals, key=lambda key: (key[0] != "job", -int(view.totals[key][AT["offered_messages"]]), key)
    )
    kept = {key: view.totals[key] for key in busiest[: TOP_GROUPS + 1]}
    rest = [view.totals[key] for key in busiest[TOP_GROUPS + 1 :]]
    return kept if not rest else {**kept, ("resource_group", OTHER): np.sum(rest, axis=0)}


def _counters(views: list[JobView]) -> Iterator[Metric]:
    totals = [(view.name, key, counts) for view in views for key, counts in _kept(view).items()]
    for at, measure in enumerate(MEASURES):
        if not measure.counter:
            continue
        text = f"{measure.counter}, since the server began to watch."
        family = CounterMetricFamily(f"spark_throttle_{measure.name}", text, labels=_SCOPE_LABELS)
        for job, (level, scope), counts in totals:
            family.add_metric((job, level, scope), int(counts[at]))
        yield family


def _gauges(views: list[JobView]) -> Iterator[Metric]:
    for at, unit in enumerate(("messages", "bytes")):
        waiting = GaugeMetricFamily(f"spark_throttle_backlog_{unit}", f"{unit.capitalize()} that wait.",
                                    labels=_SCOPE_LABELS)  # fmt: skip
        balance = GaugeMetricFamily(f"spark_throttle_balance_{unit}", "Tokens that the bucket held when the newest "
                                    "batch was planned; below 0 it is in debt.", labels=_SCOPE_LABELS)  # fmt: skip
        share = GaugeMetricFamily(f"spark_throttle_share_{unit}_per_second", "The job's share of the quota's rate.",
                                  labels=_SCOPE_LABELS)  # fmt: skip
        for view in views:
            if not view.batches:
                continue
            newest, balances = view.batches[-1], balances_of(view)
            for level, scope in _kept(view):
                if scope == OTHER:
                    continue
                labels = (view.name, level, scope)
                counts = newest.shared.get((level, scope))
                waiting.add_metric(labels, 0 if counts is None else int(counts[by_dimension("waiting")][at]))
                held, rate = balances.get((level, scope), ((None, None), (None, None)))
                if held[at] is not None:
                    balance.add_metric(labels, float(held[at] or 0))
                if rate[at] is not None:
                    share.add_metric(labels, float(rate[at] or 0))
        yield from (waiting, balance, share)


def balances_of(
    view: JobView,
) -> dict[tuple[str, str], tuple[tuple[float | None, float | None], tuple[float | None, float | None]]]:
    """Return the balances of the job's and the groups' buckets when the newest batch was planned, and their rates.

    Each is a pair, messages and bytes, in tokens and tokens per second; `None` where there is no limit.
    """
    epoch, policy = view.epoch, view.epoch_policy
    if epoch is None or policy is None:
        return {}
    first = len(policy.shared) - len(policy.group_names)
    at = [0, *range(first, len(policy.shared))]
    keys = [("job", "job"), *(("resource_group", name) for name in policy.group_names.to_pylist())]
    limited = policy.shared.is_limited[at].tolist()
    held = (epoch.buckets.balance_micro[at] / MICRO).tolist()
    rates = (under_share(policy, epoch.share_micro_per_ms).shared.rate_micro_per_ms[at] / 1000).tolist()
    found = {}
    for key, is_limited, tokens, rate in zip(keys, limited, held, rates, strict=True):
        m, b = is_limited
        found[key] = (
            (tokens[0] if m else None, tokens[1] if b else None),
            (rate[0] if m else None, rate[1] if b else None),
        )
    return found


def _namespaces(views: list[JobView]) -> Iterator[Metric]:
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
                family.add_metric((view.name, row.namespace, row.resource_group or ""), value)
    yield from families.values()
