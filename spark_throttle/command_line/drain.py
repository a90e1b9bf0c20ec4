"""`spark-throttle drain` writes out what waits in the checkpoint of a query that has stopped."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from spark_throttle.admin.cli.options import OutputForm
from spark_throttle.admin.cli.output import Form, in_form
from spark_throttle.command_line.spark_session import Conf, PropertiesFile, spark_session


class Written(StrEnum):
    """As what the rows that waited are written."""

    DELTA = "delta"
    PARQUET = "parquet"


Checkpoint = Annotated[str, typer.Option(metavar="LOCATION", help="The `checkpointLocation` of the query.")]
ControlPath = Annotated[str | None, typer.Option(metavar="PATH", help="The control path, if the query was given one.")]


def drain(
    checkpoint: Checkpoint,
    into: Annotated[str, typer.Option(metavar="LOCATION", help="A Delta table, or an empty folder.")],
    written_as: Annotated[Written, typer.Option("--format", help="As what the rows are written.")] = Written.DELTA,
    control_path: ControlPath = None,
    properties_file: PropertiesFile = None,
    conf: Conf = None,
    output: OutputForm = Form.TEXT,
) -> None:
    """Write the waiting rows of a stopped query to a table or a folder, each once, and close its checkpoint.

    The answer says where another query goes on. A drain that was killed is run again with the same arguments.
    """
    with spark_session(checkpoint, properties_file, conf or ()) as spark:
        from spark_throttle.spark import drain as drained

        done = drained(spark, checkpoint, into, format=written_as.value, control_path=control_path)
    # A position is a long line, to be pasted.
    typer.echo(str(done) if output is Form.TEXT else in_form(done, output), nl=output is Form.TEXT)
