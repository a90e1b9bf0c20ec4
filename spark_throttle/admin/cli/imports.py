"""Commands that turn other systems' quotas into a policy document."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_throttle.admin.cli.options import OutputForm, ReportingGroup
from spark_throttle.admin.cli.output import Form, in_form, shown, some
from spark_throttle.admin.cli.streams import read_stdin
from spark_throttle.admin.refusals import Exit
from spark_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_throttle.importers.origin import ImportResult

app = typer.Typer(
    cls=ReportingGroup, no_args_is_help=True,
    help="Other systems' quotas as a policy document on stdout; on stderr what was imported, and what was not "
    "(exit code 10) and why.",
)  # fmt: skip

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="The quotas as the system prints them, or as JSON; - for stdin.")
]


@app.command()
def pegasus(
    file: File,
    table: Annotated[str | None, typer.Option(help="The table, if the file does not name it.")] = None,
    output: OutputForm = Form.TEXT,
) -> None:
    """Read Pegasus' table environments (app-envs)."""
    from spark_throttle.importers.pegasus import import_pegasus

    _answer(import_pegasus(_text(file), table=table), output)


@app.command()
def kafka(file: File, output: OutputForm = Form.TEXT) -> None:
    """Read Kafka's client quotas, with their eight levels of precedence."""
    from spark_throttle.importers.kafka import import_kafka

    _answer(import_kafka(_text(file)), output)


@app.command()
def pulsar(
    file: File,
    group: Annotated[str | None, typer.Option(help="The group, if the file holds the rates of one.")] = None,
    output: OutputForm = Form.TEXT,
) -> None:
    """Read Pulsar's resource groups, and the tenants and namespaces attached to them."""
    from spark_throttle.importers.pulsar import import_pulsar

    _answer(import_pulsar(_text(file), group=group), output)


def _text(file: Path) -> str:
    try:
        if str(file) == "-":
            return io.TextIOWrapper(io.BytesIO(read_stdin()), encoding="utf-8").read()
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"cannot read {str(file)!r}: {error}; give a text file, or - for stdin") from error


def _summary(found: ImportResult) -> Iterator[str]:
    """Yield what was imported, then what was not and why."""
    from spark_throttle.core.names.globs import is_glob

    document = found.document
    globs = sum(map(is_glob, document.namespaces))
    parts = [
        some(number, noun)
        for noun, number in (
            ("resource group", len(document.resource_groups)), ("tenant", len(document.tenants)),
            ("namespace", len(document.namespaces) - globs), ("glob", globs),
        )
        if number
    ] + (["the defaults"] if "defaults" in document.model_fields_set else [])  # fmt: skip
    yield f"imported: {', '.join(parts) or 'nothing'}"
    if found.unexpressed:
        yield f"not imported, or not as it was ({some(len(found.unexpressed), 'point')}, exit code {Exit.DIFFERENT:d}):"
        yield from (f"  {shown(line)}" for line in found.unexpressed)


def _answer(found: ImportResult, form: Form) -> None:
    from spark_throttle.policy.codec import dump_policies
    from spark_throttle.policy.yaml_text import read_yaml

    text = dump_policies(found.document)
    if form is not Form.TEXT:
        typer.echo(in_form({"policy": read_yaml(text), "unexpressed": found.unexpressed}, form), nl=False)
    else:
        typer.echo(text, nl=False)
        typer.echo("\n".join(_summary(found)), err=True)
    if found.unexpressed:
        raise typer.Exit(int(Exit.DIFFERENT))
