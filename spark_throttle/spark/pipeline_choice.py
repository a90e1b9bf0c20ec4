"""A query decides on references where its rows can be read again, and else on files that it stages them in.

References are for a stream of `Throttle.read_stream` whose expressions Spark can be asked again, and for every sink but
a Delta table, which takes staged files as they lie, and the paced sink, which may be given a row twice: its expressions
are computed once where it is staged. A checkpoint keeps the way with which it began, which its offsets have the form
of. Rows wait in the same way in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from spark_throttle.checkpoint.offset_log import read_offset_log, source_offsets
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.pipeline import Pipeline
from spark_throttle.spark.reference_pipeline import ReferencePipeline

REFERENCES: Final = "references"
STAGED: Final = "staged files"

AnyPipeline: TypeAlias = Pipeline | ReferencePipeline


@dataclass(frozen=True, slots=True)
class PipelineChoice:
    """The pipeline of a query, and the reason for the choice."""

    pipeline: AnyPipeline
    why: str


def choose_pipeline(
    pipeline: AnyPipeline, control_path: str, partition_columns: Sequence[str], against: str | None
) -> PipelineChoice:
    """Return the pipeline of a query.

    Parameters
    ----------
    against
        Why a new query is not to decide on references, if anything of its sink says so.

    Raises
    ------
    ConfigurationError
        If the checkpoint began with references, and something stands against them.
    """
    begun = way_of(control_path)
    if isinstance(pipeline, Pipeline):
        if begun == REFERENCES:
            raise ConfigurationError(
                "the checkpoint began with references, and events is a stream of spark.readStream; read it with "
                "throttle.read_stream(spark), or start with a new checkpoint"
            )
        return PipelineChoice(pipeline, "the stream is one of spark.readStream")
    if begun == STAGED:
        return PipelineChoice(pipeline.staged(), "the checkpoint began with staged files")
    problem = pipeline.problem(partition_columns)
    if begun == REFERENCES and problem is not None:
        raise ConfigurationError(
            f"the checkpoint began with references, and {problem}; change that, or start with a new checkpoint"
        )
    if begun is None:
        problem = problem or against
    if problem is not None:
        return PipelineChoice(pipeline.staged(), problem)
    return PipelineChoice(pipeline, "its rows can be read again")


def way_of(control_path: str) -> str | None:
    """Return the way with which a checkpoint began; `None` if it is new, or if this process does not see it."""
    checkpoint = Directory(control_path.rpartition("/")[0])
    planned = read_offset_log(checkpoint).logged
    if planned < 0:
        return None
    return REFERENCES if any("extent" in each for each in source_offsets(checkpoint, planned)) else STAGED
