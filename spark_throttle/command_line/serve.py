"""`spark-throttle serve`: the admin API and its page."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_throttle.admin.cli.audited import Audit
from spark_throttle.admin.cli.options import HangingAfter, SilentAfter, Store
from spark_throttle.admin.cli.tokens import TokensFile
from spark_throttle.admin.default_port import DEFAULT_PORT
from spark_throttle.errors import ConfigurationError


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
    from spark_throttle.admin.api import app
    from spark_throttle.status.liveness import LifeBounds

    app.serve(
        store, host=host, port=port, control=control, tokens=tokens, tls_certificate=tls_certificate, tls_key=tls_key,
        is_plain_allowed=is_plain_allowed, is_created=is_created, is_confirmed=is_confirmed,
        life_bounds=LifeBounds.of_seconds(silent_after, hanging_after),
        audit=audit, proxies=proxy or (), openid=openid, most_tenant_entries=most_tenant_entries,
    )  # fmt: skip
