"""Each batch is a span of OpenTelemetry, from when Spark began it to its end.

A span has what the batch moved and how long each of Spark's phases took, from the batch's progress (`progress`). Which
tracer, sampler and exporter there is, the program says by OpenTelemetry's own means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from opentelemetry import trace

_NS_PER_MS = 1_000_000


def batch_spans(tracer: trace.Tracer | None = None) -> Callable[[Mapping[str, Any]], None]:
    """Return a function for `Throttle.listener` that makes a span of each batch.

    Parameters
    ----------
    tracer
        By default the tracer ``spark_throttle`` of the provider that the program has set.

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
    used = tracer or trace.get_tracer("spark_throttle")

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
