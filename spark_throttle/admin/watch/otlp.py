"""The server's metrics are sent to a collector of OpenTelemetry as Prometheus would scrape them.

They have the names, labels and bounds of `watch.metrics`. Each sending is one snapshot: counters and histograms are
cumulative since the server began, gauges are as they are now. The exporter is OpenTelemetry's own. It takes the
collector's headers, certificates and timeout from the standard variables (``OTEL_EXPORTER_OTLP_…``), and repeats what a
collector refuses for a while. A snapshot that it could not send is lost, and the next one says what is the case then.

The SDK's instruments are not used: none of them tells a histogram that was counted elsewhere.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

logger = logging.getLogger(__name__)

INTERVAL_MS: Final = 60_000
"""The interval of sendings where ``OTEL_METRIC_EXPORT_INTERVAL`` sets no other, as OpenTelemetry has it."""

_STOP_SECONDS: Final = 1.0
_SCOPE: Final = InstrumentationScope("spark_throttle")
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_UNKNOWN: Final[Any] = None
"""The least and the largest value of a histogram, which Prometheus does not keep, and OpenTelemetry need not have."""

_UNITS: Final = {"_seconds": "s", "_bytes": "By"}


def metrics_data(families: Iterable[Family], *, begun_ns: int, now_ns: int) -> MetricsData:
    """Return Prometheus' families as OpenTelemetry's metrics.

    Parameters
    ----------
    begun_ns, now_ns
        Since when counters count, and the time of the snapshot, in ns since 1970.
    """
    metrics = [_metric(family, (begun_ns, now_ns)) for family in families if family.samples]
    scope = ScopeMetrics(_SCOPE, metrics, "")
    return MetricsData([ResourceMetrics(Resource.create({"service.name": "spark-throttle"}), [scope], "")])


def _metric(family: Family, times_ns: tuple[int, int]) -> Metric:
    unit = next((unit for end, unit in _UNITS.items() if family.name.endswith(end)), None)
    data: Gauge | Sum | Histogram
    if family.type == "histogram":
        data = Histogram(list(_histograms(family, times_ns)), _CUMULATIVE)
    else:
        points = [NumberDataPoint(sample.labels, *times_ns, sample.value) for sample in family.samples]
        data = Sum(points, _CUMULATIVE, is_monotonic=True) if family.type == "counter" else Gauge(points)
    return Metric(family.name, family.documentation, unit, data)


def _histograms(family: Family, times_ns: tuple[int, int]) -> Iterator[HistogramDataPoint]:
    """Yield the histograms: Prometheus counts what is within each bound, OpenTelemetry what is between two."""
    found = defaultdict[frozenset[tuple[str, str]], list[Sample]](list)
    for sample in family.samples:
        found[frozenset((name, value) for name, value in sample.labels.items() if name != "le")].append(sample)
    for labels, samples in found.items():
        within = {float(sample.labels["le"]): int(sample.value) for sample in samples if "le" in sample.labels}
        (total,) = (sample.value for sample in samples if sample.name.endswith("_sum"))
        bounds = sorted(within)
        counts = np.diff([within[bound] for bound in bounds], prepend=0).tolist()
        yield HistogramDataPoint(
            dict(labels), *times_ns, count=within[bounds[-1]], sum=total, bucket_counts=counts,
            explicit_bounds=bounds[:-1], min=_UNKNOWN, max=_UNKNOWN,
        )  # fmt: skip


class MetricsSender:
    """Sends the metrics of a server from a thread of its own, until it is stopped.

    Parameters
    ----------
    collector
        What Prometheus would scrape.
    exporter
        Where to; by default over HTTP, to where OpenTelemetry's variables say.
    """

    def __init__(self, collector: Collector, exporter: MetricExporter | None = None) -> None:
        self._collector = collector
        self._exporter = exporter or OTLPMetricExporter()
        self._begun_ns = time.time_ns()  # noqa: TID251 - a snapshot says when it was taken
        self._seconds = int(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or INTERVAL_MS) / 1000
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)

    def start(self) -> None:
        """Begin to send, the first time after an interval."""
        self._thread.start()

    def stop(self) -> None:
        """Send once more, and end; a collector that does not answer is left behind."""
        self._stopped.set()
        self._thread.join(_STOP_SECONDS)
        self._exporter.shutdown()

    def send(self) -> None:
        """Send a snapshot."""
        now_ns = time.time_ns()  # noqa: TID251 - as above
        data = metrics_data(self._collector.collect(), begun_ns=self._begun_ns, now_ns=now_ns)
        if self._exporter.export(data) is not MetricExportResult.SUCCESS:
            logger.warning("the collector of OpenTelemetry took no metrics; they are sent again in %g s", self._seconds)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._try_to_send()
        self._try_to_send()

    def _try_to_send(self) -> None:
        try:
            self.send()
        except Exception:
            logger.exception("the metrics were not sent")
