"""Progress of a query in the form of Spark's, with the user's rows.

Spark counts what passes between its operators: ``numInputRows`` counts control rows and the rows of the user's source,
each as often as Spark reads it, and ``numOutputRows`` counts frames, or nothing. Here both count the user's rows, from
the reports that the decider writes before their batch is committed; so they are the same when a batch runs again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from spark_throttle.spark.control_look import ControlLook

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

logger = logging.getLogger(__name__)

Publish: TypeAlias = Callable[[dict[str, Any]], object]

_RATES: Final = ("inputRowsPerSecond", "processedRowsPerSecond")
"""Spark's rates, both of the rows that arrived."""

_NS_PER_MS: Final = 1_000_000

_OWN_OFFSET: Final = {"epoch", "file"}
"""The members of an offset of the control source, by which it is known: Spark describes all Python sources alike."""


def with_user_rows(progress: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    """Return Spark's progress of a batch with the user's rows in place of Spark's.

    ``numInputRows`` is what arrived, ``sink.numOutputRows`` what was admitted, and both rates follow. A member
    ``throttle`` has all counts. Spark's own counts are in ``throttle.sparkNumInputRows``.

    Parameters
    ----------
    progress
        Spark's progress, as from its JSON.
    counts
        What the batch moved in all (`batch_counts`).

    Examples
    --------
    >>> counts = {"offered_messages": 8, "admitted_messages": 6}
    >>> found = with_user_rows({"batchId": 3, "numInputRows": 2, "inputRowsPerSecond": 4.0, "sink": {}}, counts)
    >>> found["numInputRows"], found["inputRowsPerSecond"], found["sink"]["numOutputRows"]
    (8, 16.0, 6)
    """
    spark_rows = int(progress.get("numInputRows", 0))
    told = {**progress, "numInputRows": counts["offered_messages"]}
    for rate in _RATES:
        value = progress.get(rate)
        if isinstance(value, (int, float)) and spark_rows:
            told[rate] = value / spark_rows * counts["offered_messages"]
    told["sources"] = [source for source in progress.get("sources", []) if not _is_own(source)]
    told["sink"] = {**progress.get("sink", {}), "numOutputRows": counts["admitted_messages"]}
    told["throttle"] = {**counts, "sparkNumInputRows": spark_rows}
    return told


def read_progress(progress_json: str, look: ControlLook) -> dict[str, Any]:
    """Return the progress of a batch, whose reports are in a control directory, with the user's rows."""
    progress = json.loads(progress_json)
    return with_user_rows(progress, look.counts(int(progress["batchId"])))


def log_progress(progress: dict[str, Any]) -> None:
    """Log a progress as a line of JSON."""
    logger.info("%s", json.dumps(progress))


def batch_spans(tracer: Tracer | None = None) -> Callable[[Mapping[str, Any]], None]:
    """Return a function for `Throttle.listener` that makes each batch a span of OpenTelemetry.

    A span begins and ends when Spark began and ended the batch. It has what the batch moved, and how long each of
    Spark's phases took. Which provider, sampler and exporter there is, the program says by OpenTelemetry's own means.

    Parameters
    ----------
    tracer
        By default the tracer ``spark_throttle`` of the provider that the program has set; it needs the extra `otlp`.

    Examples
    --------
    >>> from opentelemetry.sdk.trace import TracerProvider
    >>> from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    >>> from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    >>> provider, kept = TracerProvider(), InMemorySpanExporter()
    >>> provider.add_span_processor(SimpleSpanProcessor(kept))
    >>> progress = {"batchId": 3, "timestamp": "2026-11-30T09:00:00.000Z", "durationMs": {"triggerExecution": 250}}
    >>> batch_spans(provider.get_tracer("made up"))(progress | {"throttle": {"admitted_messages": 6}})
    >>> [span] = kept.get_finished_spans()
    >>> (span.end_time - span.start_time) // 1_000_000, span.attributes["spark_throttle.admitted_messages"]
    (250, 6)
    """
    if tracer is None:
        from opentelemetry.trace import get_tracer

        tracer = get_tracer("spark_throttle")
    used = tracer

    def make_span(progress: Mapping[str, Any]) -> None:
        took_ms: Mapping[str, int] = progress.get("durationMs", {})
        begun_ms = round(datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000)
        attributes = {f"spark.{name}": progress[name] for name in ("id", "runId", "name") if progress.get(name)}
        attributes |= {"spark.batchId": progress["batchId"]}
        attributes |= {f"spark.durationMs.{phase}": each_ms for phase, each_ms in took_ms.items()}
        attributes |= {f"spark_throttle.{name}": count for name, count in progress["throttle"].items()}
        span = used.start_span("batch", start_time=begun_ms * _NS_PER_MS, attributes=attributes)
        span.end((begun_ms + took_ms.get("triggerExecution", 0)) * _NS_PER_MS)

    return make_span


class ThrottleProgressListener(StreamingQueryListener):
    """A listener that publishes the progress of the queries of one throttle, with the user's rows.

    Spark calls it from a thread of its own, on the client's side with Spark Connect, after each batch. An error of
    `publish` is logged by Spark, and stops no query.
    """

    def __init__(self, looks: Mapping[str, ControlLook], publish: Publish) -> None:
        super().__init__()
        self._looks = looks
        self._publish = publish

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Publish the progress, if its query is the throttle's."""
        look = self._looks.get(str(event.progress.id))
        if look is not None:
            self._publish(read_progress(event.progress.json, look))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""


def _is_own(source: Mapping[str, Any]) -> bool:
    offset = source.get("endOffset")
    if isinstance(offset, str):  # Spark Connect gives offsets as text
        try:
            offset = json.loads(offset)
        except json.JSONDecodeError:
            return False
    return isinstance(offset, Mapping) and set(offset) == _OWN_OFFSET
