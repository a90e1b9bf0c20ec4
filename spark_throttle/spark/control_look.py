"""A query's control directory as its starter reads it: by itself, or through the server of Spark Connect.

A client of Spark Connect need not share a disk with its server, and what it finds at the same path on its own disk is
not the query's. So on Spark Connect the server is always asked, by a batch source with one row: Spark calls its
`partitions` in a Python process beside its driver, on the server's side, where the control source runs too. The answer
travels as JSON, which says nothing but what it says: a client runs nothing that a server sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_throttle.errors import ThrottleError
from spark_throttle.spark.start.executors import is_served
from spark_throttle.status.explain import explain_job
from spark_throttle.status.explanation import Explanation
from spark_throttle.status.status import Status, batch_counts, read_status

LOOK_FORMAT: Final = "throttle_look"

_STATUS, _EXPLANATION, _COUNTS = "status", "explanation", "counts"
_ANSWER, _PROBLEM = "answer", "problem"


@dataclass(frozen=True, slots=True)
class ControlLook:
    """A look at a control directory."""

    control_path: str
    asked: SparkSession | None = None
    """The session whose server is asked; `None` if this process reads the directory itself."""

    @classmethod
    def of(cls, spark: SparkSession, control_path: str) -> ControlLook:
        """Return the look of a session."""
        return cls(control_path, spark if is_served(spark) else None)

    def status(self) -> Status:
        """Return the numbers of the last batch."""
        if self.asked is None:
            return read_status(self.control_path)
        return TypeAdapter(Status).validate_json(_answer(self.asked, self.control_path, _STATUS))

    def explanation(self, namespace: str) -> Explanation:
        """Return why a namespace is held as it is."""
        if self.asked is None:
            return explain_job(self.control_path, namespace)
        answer = _answer(self.asked, self.control_path, _EXPLANATION, namespace=namespace)
        return TypeAdapter(Explanation).validate_json(answer)

    def counts(self, batch: int) -> dict[str, int]:
        """Return what a batch moved in all."""
        if self.asked is None:
            return batch_counts(self.control_path, batch)
        found = json.loads(_answer(self.asked, self.control_path, _COUNTS, batch=str(batch)))
        return {str(name): int(count) for name, count in found.items()}


def _answer(spark: SparkSession, control_path: str, question: str, **more: str) -> str:
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
    question, control_path = options["question"], options["controlpath"]
    if question == _COUNTS:
        return json.dumps(batch_counts(control_path, int(options["batch"])))
    if question == _STATUS:
        return TypeAdapter(Status).dump_json(read_status(control_path))
    return TypeAdapter(Explanation).dump_json(explain_job(control_path, options["namespace"]))
