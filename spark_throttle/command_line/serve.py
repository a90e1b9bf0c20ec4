"""`spark-throttle serve`: the admin API and its page."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_throttle.admin.cli.audited import Audit
from spark_throttle.admin.cli.options import HangingAfter, SilentAfter, Store, wall_clock_ms
from spark_throttle.admin.cli.tokens import TokensFile
from spark_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_throttle.admin.sign_in import SignIn
    from spark_throttle.admin.watch.job_watch import JobWatch
    from spark_throttle.admin.watch.otlp import MetricsSender
    from spark_throttle.store.store import PolicyStore

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def serve(
    tokens: TokensFile,
    store: Store = "",
    is_created: Annotated[bool, typer.Option("--init", help="Create the store if it does not exist.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8182,
    job: Annotated[
        list[str] | None, typer.Option(metavar="NAME=PATH", help="A job to show and its control directory; repeatable.")
    ] = None,
    usage: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=PATH", help="The usage table of a job, for its numbers further back; repeatable."),
    ] = None,
    tls_certificate: Annotated[str | None, typer.Option(metavar="FILE", help="PEM file.")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="PEM file.")] = None,
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
            metavar="ADDRESS",
            help="A proxy, or a network of them, that ends TLS and whose X-Forwarded-For counts; repeatable.",
        ),
    ] = None,
    is_pushed: Annotated[
        bool, typer.Option("--otlp", help="Send the metrics over OTLP, to where OTEL_EXPORTER_OTLP_ENDPOINT says.")
    ] = False,
) -> None:
    """Serve the admin API and its page."""
    control = _by_name("--job", job or (), "/checkpoints/ingest/throttle")
    usage_tables = _by_name("--usage", usage or (), "/lake/usage")
    for name in usage_tables:
        if name not in control:
            raise ConfigurationError(f"--usage {name}: no --job has that name; give the job's, one of {list(control)}")
    if not store:
        raise ConfigurationError("no policy store is named; give --store, or set SPARK_THROTTLE_STORE")
    from spark_throttle.admin.api.app import make_app
    from spark_throttle.admin.api.server import (
        check_address,
        check_proxies,
        check_tls_files,
        connections_at_once,
        make_server,
    )
    from spark_throttle.admin.audit import AuditLog
    from spark_throttle.admin.tokens import TokenFile
    from spark_throttle.admin.watch.job_watch import JobWatch
    from spark_throttle.status.liveness import LifeBounds
    from spark_throttle.store.policy_location import open_store

    if (tls_certificate is None) != (tls_key is None):
        raise ConfigurationError("TLS needs both the certificate and its key; give the other one too")
    if tls_certificate is not None and tls_key is not None:
        check_tls_files(tls_certificate, tls_key)
    if tls_certificate is None and host not in _LOOPBACK and not proxy:
        raise ConfigurationError(
            f"tokens would be sent in the clear to {host}: give a TLS certificate and key, or listen on 127.0.0.1, or "
            f"name the proxy that ends TLS"
        )
    token_file = TokenFile(tokens, clock_ms=wall_clock_ms)
    sign_in = None if openid is None else _sign_in(openid)
    if not token_file.list() and sign_in is None:
        raise ConfigurationError(
            f"{tokens} holds no token, so nobody could call; create one with spark-throttle token create"
        )
    check_proxies(proxy or ())
    connections_at_once()  # too few files are refused before anything is made
    check_address(host, port)
    audit_log = AuditLog(audit or f"{tokens}.audit", clock_ms=wall_clock_ms)
    audit_log.check()
    opened = open_store(store, is_created=is_created)
    bounds = LifeBounds.of_seconds(silent_after, hanging_after)
    watch = JobWatch(control, bounds=bounds, usage_tables=usage_tables)
    app = make_app(
        opened, token_file, watch, clock_ms=wall_clock_ms, audit=audit_log, proxies=proxy or (), sign_in=sign_in,
        most_tenant_entries=most_tenant_entries, is_confirmed=is_confirmed,
        sender=_sender(watch, opened) if is_pushed else None,
    )  # fmt: skip
    make_server(app, host=host, port=port, tls_certificate=tls_certificate, tls_key=tls_key).run()


def _by_name(option: str, given: Sequence[str], example: str) -> dict[str, str]:
    """Return the paths that an option gives to jobs, by their names."""
    paths: dict[str, str] = {}
    for named in given:
        name, equals, path = named.partition("=")
        if not (name and equals and path):
            raise ConfigurationError(f"{option} {named}: write it as NAME=PATH, such as ingest={example}")
        if name in paths:
            raise ConfigurationError(
                f"{option} {name}: the name is given twice, for {paths[name]} and {path}; give each job its own name"
            )
        paths[name] = path
    return paths


def _sender(watch: JobWatch, store: PolicyStore) -> MetricsSender:
    """Return what sends the metrics over OTLP; its library is loaded only here."""
    from spark_throttle.admin.watch.metrics import JobCollector

    try:
        from spark_throttle.admin.watch.otlp import MetricsSender
    except ImportError as error:
        msg = f"metrics over OTLP need the package {error.name}: install spark-throttle[otlp]"
        raise ConfigurationError(msg) from error
    return MetricsSender(JobCollector(watch, store))


def _sign_in(path: str) -> SignIn:
    """Return the sign-in by a file of settings; its library is loaded only here."""
    try:
        from spark_throttle.admin.sign_in import SignIn
        from spark_throttle.admin.sign_in_settings import read_settings
    except ImportError as error:
        msg = f"sign-in by OpenID Connect needs the package {error.name}: install spark-throttle[admin]"
        raise ConfigurationError(msg) from error
    return SignIn(read_settings(path), clock_ms=wall_clock_ms, monotonic_ms=lambda: time.monotonic_ns() // 1_000_000)
