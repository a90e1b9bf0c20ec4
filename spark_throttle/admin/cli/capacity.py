"""The command `capacity`: KIP-124's arithmetic at the command line, for a broker's threads or for a job's cluster."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spark_throttle.admin.cli.options import Control, OutputForm
from spark_throttle.admin.cli.output import Form, Output, shown, table_of
from spark_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_throttle.policy.capacity import Division
    from spark_throttle.status.time_status import PromisedTime

_DIVISION: Final = {
    "capacity_percent": "capacity",
    "tenants": "tenants",
    "fixed_percent": "fixed shares, together",
    "variable_tenants": "tenants with an equal share",
    "variable_percent": "equal share (request_percentage)",
    "promised_percent": "promised in all",
    "unpromised_percent": "left over",
}
"""The values of a division, with what a table says of each."""

Threads = Annotated[int | None, typer.Option(min=0, help="num.io.threads of a broker.")]
Network = Annotated[int | None, typer.Option(min=0, help="num.network.threads of a broker.")]
Cores = Annotated[int | None, typer.Option(min=0, help="Instead of threads: cores, each with a thread of each kind.")]


def capacity(
    tenants: Annotated[
        int | None, typer.Option(min=0, help="Number of tenants, those with a fixed share included.")
    ] = None,
    io_threads: Threads = None,
    network_threads: Network = None,
    cores: Cores = None,
    fixed: Annotated[list[str] | None, typer.Option(metavar="PERCENT", help="A fixed share; may be repeated.")] = None,
    control: Control = None,
    output: OutputForm = Form.TEXT,
) -> None:
    """Divide a broker's time among tenants, as KIP-124 counts it; or show what a job's quotas promise of its cores.

    With --control, the cores are those of the job's cluster when its run began, and the shares its policies' quotas.

    Quotas that promise more than there is are warned of.
    """
    from spark_throttle.policy.capacity import capacity_of_cores, capacity_of_threads, divide

    if control is not None and all(each is None for each in (tenants, io_threads, network_threads, cores, fixed)):
        _show_promises(control, output)
        return
    if tenants is None:
        raise ConfigurationError("give --tenants, or --control alone for the cores and the quotas of a job")
    if cores is not None and io_threads is None and network_threads is None:
        total = capacity_of_cores(cores)
    elif cores is None and io_threads is not None and network_threads is not None:
        total = capacity_of_threads(io_threads, network_threads)
    else:
        raise ConfigurationError("give either --cores, or both --io-threads and --network-threads")
    division = divide(total, tenants, [_percent(text) for text in fixed or []])
    values = {name: getattr(division, name) for name in _DIVISION}
    rows = [
        (said, "" if values[name] is None else f"{values[name]}{' %' if name.endswith('_percent') else ''}")
        for name, said in _DIVISION.items()
    ]
    Output(output).show(values, lambda: table_of([("", False), ("of one thread's time", True)], rows))


def _show_promises(control: str, output: Form) -> None:
    from spark_throttle.status.time_status import promised_time

    found = promised_time(control)
    warnings, division = list(found.warnings()), _division(found)
    values = {
        "cores": found.cores,
        "capacity_percent": found.capacity_percent,
        "levels": [
            {"level": each.level, "scopes": len(each.percents), "promised_percent": each.promised_percent}
            for each in found.levels
        ],
        "open_tenants": found.open_tenants,
        "open_tenant_percent": None if division is None else division.variable_percent,
        "warnings": warnings,
    }
    Output(output).show(values, lambda: _promises_table(found, division, warnings))


def _division(found: PromisedTime) -> Division | None:
    """Return how what the tenants' quotas leave would be divided; `None` if they leave nothing, or none is without."""
    from spark_throttle.policy.capacity import divide

    percents = [percent for _, percent in found.tenants.percents if percent > 0]
    if not found.open_tenants or sum(percents) >= found.capacity_percent:
        return None
    return divide(found.capacity_percent, len(percents) + found.open_tenants, percents)


def _promises_table(found: PromisedTime, division: Division | None, warnings: list[str]) -> Any:  # noqa: ANN401 - rich
    from rich.console import Group
    from rich.text import Text

    rows = [("cores", f"{found.cores}"), ("capacity", f"{found.capacity_percent} %")]
    for each in found.levels:
        if each.percents:
            who = "the job" if each.level == "job" else f"{len(each.percents)} x {each.level.replace('_', ' ')}"
            rows.append((f"promised: {who}", f"{each.promised_percent.normalize():f} %"))
    rows.append(("tenants without a quota on time", f"{found.open_tenants}"))
    if division is not None:
        rows.append(("equal share of the rest for each of them", f"{division.variable_percent} %"))
    table = table_of([("percent are of one core's time", False), ("", True)], rows)
    return Group(table, *(Text(f"warning: {shown(warning)}", style="bold yellow") for warning in warnings))


def _percent(text: str) -> Decimal:
    try:
        percent = Decimal(text.removesuffix("%").strip())
    except InvalidOperation:
        raise ConfigurationError(f"{text!r} is not a share; give percent, such as 200") from None
    if not percent.is_finite():
        raise ConfigurationError(f"{text!r} is not a share; give percent, such as 200")
    return percent
