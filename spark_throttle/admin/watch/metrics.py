"""Metrics for Prometheus: of the store, and of every job as a whole; `scope_metrics` has those of its scopes.

A job that is known to be silent keeps its counters, as its totals still stand, and the metrics that say how long it has
been silent. It has no other gauge: an old value would look like a present one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from spark_throttle.admin.watch.job_watch import JobView, JobWatch
from spark_throttle.admin.watch.scope_metrics import counters, gauges, namespaces
from spark_throttle.core.batch.reasons import REASONS
from spark_throttle.errors import ThrottleError
from spark_throttle.store.store import PolicyStore

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
        yield _oldest_waiting(listening)
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


def _rejections(views: list[JobView]) -> Metric:
    family = CounterMetricFamily(
        "spark_throttle_rejected_by_reason", "Messages that were rejected, since the server began to watch.",
        labels=("job", "reason"),
    )  # fmt: skip
    for view in views:
        for reason, count in list(zip(REASONS, view.rejected_by_reason.tolist(), strict=False))[1:]:
            family.add_metric((view.name, reason), count)
    return family


def _oldest_waiting(views: list[JobView]) -> Metric:
    """Return the age of each job's oldest waiting row: 0 if none waits, no value if an older release does not say."""
    family = _of_job("oldest_waiting_seconds", "How long the oldest waiting row has waited; 0 if none waits.")
    for view in views:
        newest, batch_age_ms = view.newest, view.batch_age_ms()
        if newest is None or batch_age_ms is None or not len(newest.rejected_by_reason):
            continue
        waited_ms = 0 if newest.oldest_waiting_ms is None else newest.oldest_waiting_ms + batch_age_ms
        family.add_metric((view.name,), waited_ms / 1000)
    return family
