"""What a client of Spark Connect asks about a control directory that it need not see: a batch source with one row.

Spark calls `partitions` in a Python process beside its driver, on the server's side, where the control source runs too.
The answer travels as JSON, which says nothing but what it says: a client runs nothing that a server sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_throttle.errors import ThrottleError

if TYPE_CHECKING:
    from spark_throttle.status.explanation import Explanation
    from spark_throttle.status.status import Status

LOOK_FORMAT: Final = "throttle_look"

_STATUS, _EXPLANATION, _COUNTS = "status", "explanation", "counts"
_ANSWER, _PROBLEM = "answer", "problem"


@dataclass(frozen=True)
class AnswerPartition(InputPartition):
    """The answer to a question."""

    text: str


class ThrottleLookSource(DataSource):
    """The data source ``throttle_look``; used by `Throttle`, not by users."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return LOOK_FORMAT

    def schema(self) -> str:
        """Return the schema of the answer."""
        return "text string"

    def reader(self, schema: StructType) -> ThrottleLookReader:  # noqa: ARG002 - Spark's
        """Return the reader; called on the driver, once per question."""
        return ThrottleLookReader(dict(self.options))


class ThrottleLookReader(DataSourceReader):
    """The reader of one answer, which is found where the query is planned."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the answer; called on the driver."""
        return [AnswerPartition(answered(self._options))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Yield the answer; called on an executor."""
        assert isinstance(partition, AnswerPartition)  # noqa: S101 - `partitions` makes no other
        yield (partition.text,)


def answered(options: Mapping[str, str]) -> str:
    """Return the answer to a question as JSON, or what prevents it.

    Parameters
    ----------
    options
        Those of the source, whose names come back from Spark in lower case.
    """
    try:
        return json.dumps({_ANSWER: json.loads(_found(options))})
    except ThrottleError as error:
        return json.dumps({_PROBLEM: str(error)})


def _found(options: Mapping[str, str]) -> str | bytes:
    from spark_throttle.status.status import batch_counts

    question, control_path = options["question"], options["controlpath"]
    if question == _COUNTS:
        return json.dumps(batch_counts(control_path, int(options["batch"])))
    from pydantic import TypeAdapter

    if question == _STATUS:
        from spark_throttle.status.status import Status, read_status

        return TypeAdapter(Status).dump_json(read_status(control_path))
    from spark_throttle.status.explain import explain_job
    from spark_throttle.status.explanation import Explanation

    return TypeAdapter(Explanation).dump_json(explain_job(control_path, options["namespace"]))


def ask_status(spark: SparkSession, control_path: str) -> Status:
    """Return the status of a query, as the server reads it."""
    from pydantic import TypeAdapter

    from spark_throttle.status.status import Status

    return TypeAdapter(Status).validate_json(_asked(spark, control_path, _STATUS))


def ask_explanation(spark: SparkSession, control_path: str, namespace: str) -> Explanation:
    """Return why a namespace is held as it is, as the server reads it."""
    from pydantic import TypeAdapter

    from spark_throttle.status.explanation import Explanation

    return TypeAdapter(Explanation).validate_json(_asked(spark, control_path, _EXPLANATION, namespace=namespace))


def ask_counts(spark: SparkSession, control_path: str, batch: int) -> dict[str, int]:
    """Return what a batch moved in all, as the server reads it."""
    found = json.loads(_asked(spark, control_path, _COUNTS, batch=str(batch)))
    return {str(name): int(count) for name, count in found.items()}


def _asked(spark: SparkSession, control_path: str, question: str, **more: str) -> str:
    """Return an answer of the server as JSON.

    Raises
    ------
    ThrottleError
        If the server says what prevents it.
    """
    spark.dataSource.register(ThrottleLookSource)
    reader = spark.read.format(LOOK_FORMAT).options(question=question, controlPath=control_path, **more)
    told = json.loads(reader.load().collect()[0]["text"])
    if _PROBLEM in told:
        raise ThrottleError(str(told[_PROBLEM]))
    return json.dumps(told[_ANSWER])
