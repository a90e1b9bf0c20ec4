"""A query with nothing to do runs no batches, and costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.streams import Lake, policies, publish

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

SLOW = policies(job=publish(messages_per_second=20, burst_seconds=0.5))
SHUT_FOR_ONE = policies(tenants={"t": publish(messages_per_second=0)})


def planned(lake: Lake) -> int:
    """Return how many batches have been planned."""
    return sum(path.name.isdigit() for path in (lake.root / "checkpoint" / "offsets").iterdir())


def runs_no_batch(lake: Lake, query: StreamingQuery) -> bool:
    """Return whether a query plans nothing while its control source is asked some hundred times."""
    before = planned(lake)
    assert not query.awaitTermination(2)
    return planned(lake) == before


def test_query_with_nothing_to_do_runs_no_batch(lake: Lake) -> None:
    writer = lake.writer(lake.throttle(SLOW)).trigger(processingTime="0 seconds").format("noop")
    query = writer.start()
    query.processAllAvailable()
    assert runs_no_batch(lake, query)
    lake.offer((i, "t/n", 10) for i in range(25))
    query.processAllAvailable()
    assert runs_no_batch(lake, query) or runs_no_batch(lake, query), "the queue has drained, and ticks go on"
    lake.offer([(25, "t/n", 10)])
    query.processAllAvailable()
    assert planned(lake) >= 3
    assert runs_no_batch(lake, query)
    query.stop()


def test_rows_that_may_never_leave_make_no_ticks(lake: Lake) -> None:
    lake.offer((i, ("t/n", "u/n")[i % 2], 10) for i in range(20))
    writer = lake.writer(lake.throttle(SHUT_FOR_ONE)).trigger(processingTime="0 seconds").format("noop")
    throttle_query = writer.start()
    throttle_query.processAllAvailable()
    assert runs_no_batch(lake, throttle_query)
    throttle_query.stop()
