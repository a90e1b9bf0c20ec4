"""The command `capacity`: KIP-124's arithmetic at the command line."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from spark_throttle.admin.cli.options import OutputForm
from spark_throttle.admin.cli.output import Form, Output, table_of
from spark_throttle.errors import ConfigurationError

Threads = Annotated[int | None, typer.Option(min=0, help="num.io.threads of a broker.")]
Network = Annotated[int | None, typer.Option(min=0, help="num.network.threads of a broker.")]
Cores = Annotated[int | None, typer.Option(min=0, help="Instead of threads: cores, each with a thread of each kind.")]


def capacity(
    tenants: Annotated[int, typer.Option(min=0, help="Number of tenants, those with a fixed share included.")],
    io_threads: Threads = None,
    network_threads: Network = None,
    cores: Cores = None,
    fixed: Annotated[list[str] | None, typer.Option(metavar="PERCENT", help="A fixed share; may be repeated.")] = None,
    output: OutputForm = Form.TEXT,
) -> None:
    """Divide a broker's time among tenants, as KIP-124 counts it."""
    from spark_throttle.policy.capacity import capacity_of_cores, capacity_of_threads, divide

    if cores is not None and io_threads is None and network_threads is None:
        total = capacity_of_cores(cores)
    elif cores is None and io_threads is not None and network_threads is not None:
        total = capacity_of_threads(io_threads, network_threads)
    else:
        raise ConfigurationError("give either --cores, or both --io-threads and --network-threads")
    division = divide(total, tenants, [_percent(text) for text in fixed or []])
    share = division.variable_percent
    rows = [
        ("capacity", f"{division.capacity_percent} %"),
        ("tenants", f"{division.tenants}"),
        ("fixed shares, together", f"{division.fixed_percent} %"),
        ("tenants with an equal share", f"{division.variable_tenants}"),
        ("equal share (request_percentage)", "" if share is None else f"{share} %"),
        ("promised in all", f"{division.promised_percent} %"),
        ("left over", f"{division.unpromised_percent} %"),
    ]
    Output(output).show(
        {
            "capacity_percent": division.capacity_percent, "tenants": division.tenants,
            "fixed_percent": division.fixed_percent, "variable_tenants": division.variable_tenants,
            "variable_percent": share, "promised_percent": division.promised_percent,
            "unpromised_percent": division.unpromised_percent,
        },
        lambda: table_of([("", False), ("of one thread's time", True)], rows),
    )  # fmt: skip


def _percent(text: str) -> Decimal:
    try:
        percent = Decimal(text.removesuffix("%").strip())
    except InvalidOperation:
        raise ConfigurationError(f"{text!r} is not a share; give percent, such as 200") from None
    if not percent.is_finite():
        raise ConfigurationError(f"{text!r} is not a share; give percent, such as 200")
    return percent
