"""Commands that show what jobs do: explain, status."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spark_throttle.admin.cli.options import Control, OutputForm, Store, service_of
from spark_throttle.admin.cli.output import Form, Output, as_json, console, count, shown, size, table_of, wait
from spark_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from spark_throttle.status.explain import Explanation
    from spark_throttle.status.status import ScopeStatus, Status

_LEVELS = ("job", "resource_group", "tenant", "namespace")


def explain(
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="A namespace, such as acme/orders.")],
    store: Store = "",
    control: Control = None,
    direction: Annotated[
        Literal["publish", "dispatch"], typer.Option(help="Which quotas to explain; a job has its own.")
    ] = "publish",
    output: OutputForm = Form.TEXT,
) -> None:
    """Show which rule applies to a namespace and why and, with --control, what a job's last batch did."""
    from spark_throttle.status.explain import explain_job, explain_policy

    if control is None:
        found = explain_policy(service_of(store).store, namespace, direction)
    else:
        found = explain_job(control, namespace)
    Output(output).show(found, lambda: _as_sheet(found))


def _as_sheet(found: Explanation) -> Any:  # noqa: ANN401 - what rich prints
    from rich.console import Group
    from rich.text import Text

    won = {"defaults": "the defaults"}.get(found.rule, f"{found.rule} {found.matched}")
    head = Text(f"{shown(found.namespace)} ({found.direction}): {shown(won)}", style="bold")
    parts: list[Any] = [head, *(Text(f"  {shown(reason)}") for reason in found.reasons)]
    if found.levels:
        is_live = found.last_batch is not None
        columns = [("level", False), ("scope", False), ("messages/s", True), ("bytes/s", True), ("excess", False)]
        live = [("balance", True), ("debt", True), ("granted", True), ("waiting", True), ("may leave in", True)]
        rows = [
            [level.level.replace("_", " "), level.scope, count(level.per_second[0]) or "no limit",
             size(level.per_second[1]) or "no limit", level.on_excess,
             *([_both(level.balance), _both(level.debt), _both(level.granted), _both(level.waiting),
                _release(level.release_ms, level.waiting)] if is_live else [])]
            for level in found.levels
        ]  # fmt: skip
        parts += [Text(), table_of(columns + (live if is_live else []), rows)]
    if found.last_batch is not None:
        last = found.last_batch
        said = f"batch {last.batch_id} at {_time(last.batch_time_ms)}, epoch {last.epoch}, shard {last.shard}: "
        numbers = (("offered", last.offered), ("admitted", last.admitted), ("rejected", last.rejected),
                   ("waiting", last.waiting))  # fmt: skip
        parts += [Text(), Text(said + ", ".join(f"{word} {_both(pair)}" for word, pair in numbers))]
        if last.waiting[0]:
            left = wait(found.predicted_release_ms) or "never"
            parts.append(Text(f"time until the backlog is gone, if nothing more arrives: {left}", style="yellow"))
    parts += [Text(f"note: {shown(note)}", style="yellow") for note in found.notes]
    return Group(*parts)


def _both(pair: tuple[float | None, float | None] | None) -> str:
    if pair is None or pair == (None, None):
        return ""
    messages, in_bytes = pair
    return " / ".join(part for part in (count(messages), size(in_bytes)) if part)


def _release(release_ms: int | None, waiting: tuple[int, int] | None) -> str:
    if not waiting or not waiting[0]:
        return ""
    return "at once" if release_ms == 0 else wait(release_ms) or "never"


def status(
    control: Control = None,
    is_watched: Annotated[bool, typer.Option("--watch", "-w", help="Refresh it until interrupted.")] = False,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often, with --watch.")] = 1.0,
    limit: Annotated[int, typer.Option(min=0, help="The most scopes to show per level, busiest first.")] = 20,
    level: Annotated[list[str] | None, typer.Option(help="Only this level; may be repeated.")] = None,
    output: OutputForm = Form.TEXT,
) -> None:
    """Show what a job did in its last batch, by scope."""
    from spark_throttle.status.status import read_status

    if control is None:
        raise ConfigurationError("no job is named; give --control, or set SPARK_THROTTLE_CONTROL")
    unknown = sorted(set(level or ()) - set(_LEVELS))
    if unknown:
        raise ConfigurationError(f"{unknown[0]!r} is not a level; give one of {', '.join(_LEVELS)}")
    path, levels = control, tuple(level or _LEVELS)

    def look() -> tuple[Status, list[ScopeStatus]]:
        found = read_status(path)
        return found, _busiest(found, levels, limit)

    if not is_watched:
        found, scopes = look()
        Output(output).show(_status_values(found, scopes), lambda: _status_table(found, scopes))
        return
    pause = threading.Event()
    try:
        _watch(look, every, pause, output)
    except KeyboardInterrupt:
        pause.set()


def _watch(look: Any, every: float, pause: threading.Event, form: Form) -> None:  # noqa: ANN401 - a local function
    if form is Form.JSON:
        while True:
            typer.echo(as_json(_status_values(*look())))
            pause.wait(every)
    from rich.live import Live

    with Live(_status_table(*look()), console=console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        while not pause.wait(every):
            live.update(_status_table(*look()), refresh=True)


def _busiest(found: Status, levels: tuple[str, ...], limit: int) -> list[ScopeStatus]:
    """Return the scopes of each level with the most waiting messages, then the most offered messages."""
    kept = []
    for level in levels:
        scopes = [scope for scope in found.scopes if scope.level == level]
        kept += sorted(scopes, key=lambda s: (-s.waiting_messages, -s.offered_messages, s.scope))[:limit]
    return kept


def _status_values(found: Status, scopes: list[ScopeStatus]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "batch_id": found.batch_id, "batch_time_ms": found.batch_time_ms, "epoch": found.epoch,
        "revision": found.revision, "store_revision": found.store_revision, "problem": found.problem,
        "scopes": [asdict(scope) for scope in scopes],
    }  # fmt: skip


def _status_table(found: Status, scopes: list[ScopeStatus]) -> Any:  # noqa: ANN401 - what rich prints
    from rich.console import Group
    from rich.text import Text

    if found.batch_id < 0:
        return "no batch has reported yet"
    store = "" if found.store_revision is None else f", store revision {found.store_revision}"
    title = f"batch {found.batch_id} at {_time(found.batch_time_ms)}, epoch {found.epoch}{store}"
    columns = [("level", False), ("scope", False), ("quota/s", True), ("offered", True), ("admitted", True),
               ("rejected", True), ("waiting", True)]  # fmt: skip
    rows = [
        (
            each.level.replace("_", " "), each.scope, _both((each.messages_per_second, each.bytes_per_second)),
            count(each.offered_messages), count(each.admitted_messages), count(each.rejected_messages),
            _both((each.waiting_messages, each.waiting_bytes)) if each.waiting_messages else "0",
        )
        for each in scopes
    ]  # fmt: skip
    table = table_of(columns, rows, title)
    problem = [] if found.problem is None else [Text(f"problem: {shown(found.problem)}", style="bold red")]
    return Group(*problem, table)


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
