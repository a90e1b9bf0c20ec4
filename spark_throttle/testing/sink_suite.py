"""The contract of a transactional sink, as tests: derive a class from `SinkSuite` and give it your sink.

::

    class TestMySink(SinkSuite):
        @pytest.fixture
        def open_again(self, tmp_path):
            return lambda: MySink(tmp_path)

        @pytest.fixture
        def ids(self, tmp_path):
            return lambda: [row.id for row in read_my_sink(tmp_path)]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.errors import CheckpointMismatchError
from spark_throttle.spark.sinks.transactional import TransactionalSink, commit_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ONE, OTHER = "0123456789abcdef", "fedcba9876543210"


def mark_of(batch: int, identity: str = "a", query: str = ONE) -> str:
    """Return the text of a mark."""
    return BatchMark(query, batch, identity).to_text()


class SinkSuite:
    """The tests; rows have the columns ``id`` (a whole number) and ``namespace`` (a text).

    The fixture `open_again` returns a function that opens the same sink, which begins empty, as a new process would.
    The fixture `ids` returns one that reads the ids of its rows, and `spark` a session.
    """

    @pytest.fixture
    def sink(self, open_again: Callable[[], TransactionalSink]) -> TransactionalSink:
        """Return the sink under test."""
        return open_again()

    @pytest.fixture
    def rows(self, spark: SparkSession) -> Callable[..., DataFrame]:
        """Return a function that makes rows of ids, in two partitions."""

        def made(*ids: int) -> DataFrame:
            data = [(each, f"acme/{each % 2}") for each in ids]
            return spark.createDataFrame(data, "id bigint, namespace string").repartition(2)

        return made

    def test_new_sink_has_no_mark(self, sink: TransactionalSink) -> None:
        assert sink.newest_mark(ONE) is None

    def test_rows_and_mark_are_there_for_another_process(
        self, open_again: Callable[[], TransactionalSink], rows: Callable[..., DataFrame], ids: Callable[[], list[int]]
    ) -> None:
        open_again().commit(rows(1, 2, 3), ONE, mark_of(7))
        assert open_again().newest_mark(ONE) == mark_of(7)
        assert sorted(ids()) == [1, 2, 3]

    def test_newest_mark_is_that_of_the_last_commit(
        self, sink: TransactionalSink, rows: Callable[..., DataFrame], ids: Callable[[], list[int]]
    ) -> None:
        for batch in (8, 9, 10):
            sink.commit(rows(batch), ONE, mark_of(batch))
        assert sink.newest_mark(ONE) == mark_of(10)
        assert sorted(ids()) == [8, 9, 10]

    def test_queries_have_marks_of_their_own(self, sink: TransactionalSink, rows: Callable[..., DataFrame]) -> None:
        sink.commit(rows(1), ONE, mark_of(5))
        assert sink.newest_mark(OTHER) is None
        sink.commit(rows(2), OTHER, mark_of(0, query=OTHER))
        assert (sink.newest_mark(ONE), sink.newest_mark(OTHER)) == (mark_of(5), mark_of(0, query=OTHER))

    def test_commit_that_fails_leaves_neither_rows_nor_mark(
        self, sink: TransactionalSink, rows: Callable[..., DataFrame], ids: Callable[[], list[int]]
    ) -> None:
        sink.commit(rows(1), ONE, mark_of(0))
        broken = rows(2, 3, 4, 5).selectExpr("if(id = 4, raise_error('a task fails'), id) AS id", "namespace")
        with pytest.raises(Exception, match="a task fails"):  # a sink may wrap what Spark raises
            sink.commit(broken, ONE, mark_of(1))
        assert sink.newest_mark(ONE) == mark_of(0)
        assert ids() == [1]

    def test_batch_that_comes_again_is_taken_once(
        self, open_again: Callable[[], TransactionalSink], rows: Callable[..., DataFrame], ids: Callable[[], list[int]]
    ) -> None:
        for _ in range(2):
            commit_once(open_again(), "the sink", lambda: rows(1, 2), BatchMark(ONE, 3, "a"))
        commit_once(open_again(), "the sink", lambda: rows(3), BatchMark(ONE, 4, "b"))
        assert sorted(ids()) == [1, 2, 3]

    @pytest.mark.parametrize(("batch", "identity"), [(3, "b"), (2, "a")], ids=["another one", "an earlier one"])
    def test_other_batch_of_a_number_that_it_has_is_refused(
        self,
        sink: TransactionalSink,
        rows: Callable[..., DataFrame],
        ids: Callable[[], list[int]],
        batch: int,
        identity: str,
    ) -> None:
        commit_once(sink, "the sink", lambda: rows(1), BatchMark(ONE, 3, "a"))
        with pytest.raises(CheckpointMismatchError, match="already has"):
            commit_once(sink, "the sink", lambda: rows(2), BatchMark(ONE, batch, identity))
        assert ids() == [1]

    def test_batch_without_rows_leaves_its_mark(
        self, sink: TransactionalSink, rows: Callable[..., DataFrame], ids: Callable[[], list[int]]
    ) -> None:
        sink.commit(rows(1).where("id > 1"), ONE, mark_of(0))
        assert sink.newest_mark(ONE) == mark_of(0)
        assert ids() == []
