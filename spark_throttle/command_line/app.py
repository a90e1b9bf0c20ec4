"""`spark-throttle`: policies, entries, explanations and status from a shell, and what is done to a checkpoint.

A command imports only what it needs, when it runs, so that it starts at once: only `drain` and `simulate`
start Spark. The exit codes are `admin.refusals.Exit`.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
from typing import Annotated, NoReturn

import typer

from spark_throttle.admin.cli import capacity, imports, policy, tokens, watch
from spark_throttle.admin.cli.entries import named_app, single_app
from spark_throttle.admin.cli.options import ReportingGroup
from spark_throttle.admin.cli.output import Form, Output
from spark_throttle.admin.cli.streams import UnwrittenAnswerError, guard_streams
from spark_throttle.admin.refusals import Exit
from spark_throttle.command_line import drain, serve, simulate
from spark_throttle.command_line.spark_session import hide_pandas

_EXITS = f"Exit codes: {'; '.join(f'{code:d} {code.said}' for code in Exit)}."

app = typer.Typer(
    name="spark-throttle", cls=ReportingGroup, no_args_is_help=True, pretty_exceptions_enable=False, epilog=_EXITS,
    help="Quotas of tenants that share a Spark job: set them, see their effects and the reasons.",
)  # fmt: skip
app.add_typer(policy.app, name="policy")
app.add_typer(named_app("resource_group", "resource group"), name="group")
app.add_typer(named_app("tenant", "tenant"), name="tenant")
app.add_typer(named_app("namespace", "namespace"), name="namespace")
app.add_typer(named_app("exempt", "exemption"), name="exempt")
app.add_typer(single_app("defaults", "the defaults"), name="defaults")
app.add_typer(single_app("job", "the job's own quotas"), name="job")
app.add_typer(single_app("queue", "the bounds of the queue"), name="queue")
app.add_typer(imports.app, name="import")
app.add_typer(tokens.app, name="token")
app.command()(watch.explain)
app.command()(watch.status)
app.command()(capacity.capacity)
app.command()(simulate.simulate)
app.command()(serve.serve)
app.command()(drain.drain)


def _say_version(is_asked: bool) -> None:  # noqa: FBT001 - called by typer
    if is_asked:
        typer.echo(f"spark-throttle {importlib.metadata.version('spark-throttle')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Show the version, and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def main() -> None:
    """Run the command line; the entry point `spark-throttle`."""
    hide_pandas()
    guard_streams()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except SystemExit as ended:
        if "pyarrow" in sys.modules and isinstance(ended.code, int):
            _end_before_arrow(ended.code)
        raise
    except UnwrittenAnswerError as error:  # of what is no command, such as --version
        sys.exit(int(Output(Form.TEXT).fail_to_write(error)))


def _end_before_arrow(code: int) -> NoReturn:
    """End the process without ending the interpreter.

    A hack: reading a Delta table leaves threads of Arrow that may still let go of a Python object. One that asks for
    the interpreter's lock while the interpreter ends is unwound by it through C++ code, which aborts the process (134).
    """
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)
