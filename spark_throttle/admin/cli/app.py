"""`spark-throttle`: policies, entries, explanations and status from a shell; no Spark and no JVM.

A command imports only what it needs, when it runs, so that it starts at once. The exit codes are `output.Exit`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import os
import sys
from typing import Annotated, NoReturn

import typer

from spark_throttle.admin.cli import capacity, imports, policy, tokens, watch
from spark_throttle.admin.cli.audited import Audit
from spark_throttle.admin.cli.entries import named_app, single_app
from spark_throttle.admin.cli.options import HangingAfter, ReportingGroup, SilentAfter, Store
from spark_throttle.admin.cli.output import Form, Output
from spark_throttle.admin.cli.streams import UnwrittenAnswerError, guard_streams
from spark_throttle.admin.cli.tokens import TokensFile
from spark_throttle.admin.default_port import DEFAULT_PORT
from spark_throttle.errors import ConfigurationError

_EXITS = """Exit codes: 0 done; 1 fault; 2 usage; 3 cannot be applied; 4 not found; 5 exists already; 6 in use; \
7 another change came first, nothing was changed; 8 the store, a file or the port is not available, nothing was \
changed; 9 it is unknown whether anything was changed; 10 a difference; 11 no job is listening; 12 the change costs \
protection and wants --yes, nothing was changed; 13 done, but the answer could not be written."""

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


@app.command()
def serve(
    tokens: TokensFile,
    store: Store = "",
    is_created: Annotated[bool, typer.Option("--init", help="Create the store if it does not exist.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = DEFAULT_PORT,
    job: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="A job to show and its control directory; repeatable.")
    ] = None,
    tls_certificate: Annotated[str | None, typer.Option(metavar="FILE", help="PEM file.")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="PEM file.")] = None,
    is_plain_allowed: Annotated[
        bool, typer.Option("--allow-plain-http", help="TLS ends at a proxy in front of the server.")
    ] = False,
    is_confirmed: Annotated[
        bool, typer.Option("--yes", help="Ask no caller for confirmation: for clients that cannot say yes=true.")
    ] = False,
    silent_after: SilentAfter = None,
    hanging_after: HangingAfter = None,
    audit: Audit = None,
    openid: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings of a sign-in by OpenID Connect, beside tokens.")
    ] = None,
    most_tenant_entries: Annotated[
        int, typer.Option(min=0, help="For how many single namespaces a tenant's administrator may make an entry.")
    ] = 1000,
    proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="A proxy, or a network of them, whose X-Forwarded-For counts; repeatable."
        ),
    ] = None,
) -> None:
    """Serve the admin API and its page."""
    control: dict[str, str] = {}
    for named in job or []:
        name, equals, path = named.partition("=")
        if not (name and equals and path):
            raise ConfigurationError(
                f"--job {named}: write it as NAME=PATH, such as ingest=/checkpoints/ingest/throttle"
            )
        if name in control:
            raise ConfigurationError(
                f"--job {name}: the name is given twice, for {control[name]} and {path}; give each job its own name"
            )
        control[name] = path
    if not store:
        raise ConfigurationError("no policy store is named; give --store, or set SPARK_THROTTLE_STORE")
    life_bounds = importlib.import_module("spark_throttle.status.liveness").LifeBounds
    importlib.import_module("spark_throttle.admin.api.app").serve(
        store, host=host, port=port, control=control, tokens=tokens, tls_certificate=tls_certificate, tls_key=tls_key,
        is_plain_allowed=is_plain_allowed, is_created=is_created, is_confirmed=is_confirmed,
        life_bounds=life_bounds.of_seconds(silent_after, hanging_after),
        audit=audit, proxies=proxy or (), openid=openid, most_tenant_entries=most_tenant_entries,
    )  # fmt: skip


class WithoutPandas:
    """A hack: Arrow imports pandas where it is installed, which takes half of a command's time to no purpose."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Answer Arrow's import of pandas as if it were not installed."""
        if name == "pandas":
            raise ModuleNotFoundError("the command line does without pandas", name=name)


def main() -> None:
    """Run the command line; the entry point `spark-throttle`."""
    sys.meta_path.insert(0, WithoutPandas)
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


if __name__ == "__main__":
    main()
