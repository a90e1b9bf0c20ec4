"""Queries that decide on references, over the events of a `Lake`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_throttle.spark import Throttle
from spark_throttle.spark.move import held_files
from spark_throttle.spark.move.decider import DigestDecider
from spark_throttle.spark.reference_pipeline import REFERENCES, way_of
from spark_throttle.spark.reference_stream import ReferenceStream
from tests.integration.streams import SCHEMA, Event, Lake, finish, policies, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pytest
    from pyspark.sql.streaming.query import StreamingQuery

BOUNDED = policies(
    namespaces={
        "good/a": publish(messages_per_second=40, burst_seconds=0.5),
        "bad/a": publish(messages_per_second=0, on_excess="reject"),
    }
)


def stream(lake: Lake, throttle: Throttle, *, most_files: int = 1) -> ReferenceStream:
    """Return the stream of the offered events, as `Lake.events` does."""
    (lake.root / "events").mkdir(exist_ok=True)
    reader = throttle.read_stream(lake.spark).schema(SCHEMA).option("maxFilesPerTrigger", most_files)
    return reader.parquet(lake.path("events"))


def run(lake: Lake, document: Any, *, way: str = REFERENCES, **settings: Any) -> StreamingQuery:
    """Run a query until it ends by itself, and keep its rows by batch; it must have gone this way."""
    throttle = lake.throttle(document, **settings)
    writer = throttle.write_stream(stream(lake, throttle)).option("checkpointLocation", lake.checkpoint)
    query = finish(writer.trigger(availableNow=True).foreachBatch(lake.keep).start())
    assert way_of(str(lake.control)) == way
    return query


def start(lake: Lake, throttle: Throttle, events: ReferenceStream) -> StreamingQuery:
    """Start a query over a stream that decides on references, and count its usage."""
    writer = throttle.write_stream(events).option("checkpointLocation", lake.checkpoint).usage(lake.path("usage"))
    return writer.trigger(availableNow=True).foreachBatch(lake.keep).start()


def pack_with(monkeypatch: pytest.MonkeyPatch, bounds: Mapping[str, int]) -> None:
    """Let the decider's process pack leftovers by other bounds than those of `held_files`."""

    def make(*arguments: Any, **named: Any) -> Callable[..., list[Any]]:
        decider = DigestDecider(*arguments, **named)

        def decide(*of: Any) -> list[Any]:
            kept = {name: getattr(held_files, name) for name in bounds}
            for name, bound in bounds.items():
                setattr(held_files, name, bound)
            try:
                return list(decider(*of))
            finally:
                for name, bound in kept.items():
                    setattr(held_files, name, bound)

        return decide

    monkeypatch.setattr("spark_throttle.spark.reference_pipeline.DigestDecider", make)


def rows(namespace: str, ids: Iterable[int]) -> list[Event]:
    return [(number, namespace, 10 + number) for number in ids]
