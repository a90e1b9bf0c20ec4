"""The choice between references and frames, for a query over a stream that `Throttle.read_stream` returned.

References are chosen where nothing stands against them. A checkpoint keeps the way with which it began: its offsets and
its waiting rows have the form of that way.
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

SOURCE_OPTION: Final = "throttle.source"
AUTO, REFERENCES, FRAMES = SOURCES = ("auto", "references", "frames")

AnyPipeline: TypeAlias = Pipeline | ReferencePipeline


@dataclass(frozen=True, slots=True)
class SourceChoice:
    """The pipeline of a query, and the reason for the choice."""

    pipeline: AnyPipeline
    why: str


def choose_source(
    pipeline: AnyPipeline, asked: str, control_path: str, partition_columns: Sequence[str], *, needs_rows: str | None
) -> SourceChoice:
    """Return the pipeline of a query.

    Parameters
    ----------
    needs_rows
        Why the query's writer takes rows in frames; `None` if it does not.

    Raises
    ------
    ConfigurationError
        If references were asked for, or the checkpoint began with them, and something stands against them; or if the
        checkpoint began the other way.
    """
    begun = _begun(control_path)
    if isinstance(pipeline, Pipeline):
        if begun == REFERENCES:
            raise ConfigurationError(
                "the checkpoint began with references, and events is a stream of spark.readStream; read it with "
                "throttle.read_stream(spark), or start with a new checkpoint"
            )
        if asked == REFERENCES:
            raise ConfigurationError(
                f"option {SOURCE_OPTION} is 'references', and events is a stream of spark.readStream; read it with "
                f"throttle.read_stream(spark)"
            )
        return SourceChoice(pipeline, "the stream is one of spark.readStream")
    problem = None if FRAMES in (asked, begun) else needs_rows or pipeline.problem(partition_columns)
    is_bound = asked == REFERENCES or (begun == REFERENCES and asked == AUTO)
    wanted = FRAMES if asked == FRAMES or (not is_bound and (problem is not None or begun == FRAMES)) else REFERENCES
    if begun is not None and begun != wanted:
        raise ConfigurationError(
            f"option {SOURCE_OPTION} is {wanted!r}, and the checkpoint began with {begun!r}; start with "
            f"option({SOURCE_OPTION!r}, {begun!r}), or with a new checkpoint"
        )
    if wanted == FRAMES:
        why = problem or (f"set by option {SOURCE_OPTION}" if asked == FRAMES else "the checkpoint began with frames")
        return SourceChoice(pipeline.in_frames(), why)
    if problem is not None:
        began = (
            "the checkpoint began with references" if asked == AUTO else f"option {SOURCE_OPTION} asks for references"
        )
        raise ConfigurationError(f"{began}, and {problem}; change that, or start with frames on a new checkpoint")
    return SourceChoice(pipeline, "its rows can be read again")


def _begun(control_path: str) -> str | None:
    """Return the way with which a checkpoint began; `None` if it is new, or if this process does not see it."""
    checkpoint = Directory(control_path.rpartition("/")[0])
    planned = read_offset_log(checkpoint).logged
    if planned < 0:
        return None
    return REFERENCES if any("extent" in each for each in source_offsets(checkpoint, planned)) else FRAMES
