"""Commands that show what jobs do: explain, status."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spark_throttle.admin.cli.audited import service_of
from spark_throttle.admin.cli.options import Control, HangingAfter, OutputForm, SilentAfter, Store
from spark_throttle.admin.cli.output import Exit, Form, Output, console, count, in_form, shown, size, table_of, wait
from spark_throttle.admin.cli.status_view import (
    LEVELS,
    both,
    status_lines,
    status_table,
    status_values,
    time_of,
    worst,
)
from spark_throttle.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from spark_throttle.status.explanation import Explanation
    from spark_throttle.status.status import ScopeStatus, Status


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
        is_timed = any(level.request_percentage is not None for level in found.levels)
        timed = [("core time", True)] if is_timed else []
        columns = [("level", False), ("scope", False), ("messages/s", True), ("bytes/s", True), ("burst", True),
                   ("largest", True), *timed, ("weight", True), ("excess", False)]  # fmt: skip
        paid = [("core time left", True)] if is_timed else []
        live = [*paid, ("balance", True), ("debt", True), ("waiting", True), ("may leave in", True)]
        rows = [
            [level.level.replace("_", " "), level.scope, count(level.per_second[0]) or "no limit",
             size(level.per_second[1]) or "no limit", both(level.burst), size(level.max_message_bytes) or "no limit",
             *([_percent(level.request_percentage)] if is_timed else []), level.weight, level.on_excess,
             *([_time_left(level.balance_time_ns)] if is_live and is_timed else []),
             *([both(level.balance), both(level.debt), both(level.waiting),
                _release(level.release_ms, level.waiting)] if is_live else [])]
            for level in found.levels
        ]  # fmt: skip
        parts += [Text(), table_of(columns + (live if is_live else []), rows)]
    if found.last_batch is not None:
        last = found.last_batch
        said = f"batch {last.batch_id} at {time_of(last.batch_time_ms)}, epoch {last.epoch}: "
        numbers = (("offered", last.offered), ("admitted", last.admitted), ("rejected", last.rejected),
                   ("waiting", last.waiting))  # fmt: skip
        parts += [Text(), Text(said + ", ".join(f"{word} {both(pair)}" for word, pair in numbers))]
        if last.waiting[0]:
            left = (wait(found.predicted_release_ms) or "never") + _held_by(found)
            parts.append(Text(f"time until the backlog is gone, if nothing more arrives: {left}", style="yellow"))
    parts += [Text(f"note: {shown(note)}", style="yellow") for note in found.notes]
    return Group(*parts)


def _held_by(found: Explanation) -> str:
    """Return which level's quota lets the backlog go last, as the end of a sentence; nothing if none holds it."""
    last = max(found.levels, key=lambda level: level.release_ms or 0, default=None)  # an exempt one has no level
    if last is None or not last.release_ms or last.release_ms != found.predicted_release_ms:
        return ""
    return shown(f", by the quota of {last.level.replace('_', ' ')} {last.scope}")


def _percent(request_percentage: float | None) -> str:
    return "no limit" if request_percentage is None else f"{request_percentage:g} %"


def _time_left(balance_ns: int | None) -> str:
    if balance_ns is None:
        return ""
    return f"{'-' if balance_ns < 0 else ''}{wait(abs(balance_ns) // 1_000_000)}"


def _release(release_ms: int | None, waiting: tuple[int, int] | None) -> str:
    if not waiting or not waiting[0]:
        return ""
    return "at once" if release_ms == 0 else wait(release_ms) or "never"


def status(
    control: Control = None,
    is_watched: Annotated[bool, typer.Option("--watch", "-w", help="Refresh it until interrupted.")] = False,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How often, with --watch.")] = 1.0,
    limit: Annotated[int, typer.Option(min=0, help="The most scopes to show per level, the worst first.")] = 20,
    level: Annotated[list[str] | None, typer.Option(help="Only this level; may be repeated.")] = None,
    silent_after: SilentAfter = None,
    hanging_after: HangingAfter = None,
    output: OutputForm = Form.TEXT,
) -> None:
    """Show whether a job lives, and what it did in its last batch, by scope.

    Exits with 4 if no job has begun in the control directory, and with 11 if no job is listening.

    With --watch, and without a terminal, each look writes a line for the job and for each scope.
    """
    from spark_throttle.checkpoint.manifest import read_manifest
    from spark_throttle.files.storage import Directory
    from spark_throttle.status.liveness import LifeBounds
    from spark_throttle.status.status import StatusReader

    if control is None:
        raise ConfigurationError("no job is named; give --control, or set SPARK_THROTTLE_CONTROL")
    unknown = sorted(set(level or ()) - set(LEVELS))
    if unknown:
        raise ConfigurationError(f"{unknown[0]!r} is not a level; give one of {', '.join(LEVELS)}")
    if read_manifest(Directory(control)) is None:
        raise NotFoundError("control directory", control, "; give <checkpoint>/throttle of a job that has been started")
    reader = StatusReader(control, bounds=LifeBounds.of_seconds(silent_after, hanging_after))

    def look() -> tuple[Status, list[ScopeStatus]]:
        found = reader.read()
        return found, worst(found, tuple(level or LEVELS), limit)

    if is_watched:
        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            _watch(look, every, output)
        return
    found, scopes = look()
    Output(output).show(status_values(found, scopes), lambda: status_table(found, scopes))
    if found.life is not None and not found.life.is_listening:
        raise typer.Exit(int(Exit.SILENT))


def _watch(look: Callable[[], tuple[Status, list[ScopeStatus]]], every: float, form: Form) -> None:
    """Show the status again and again until interrupted."""
    pause = threading.Event()
    if form is not Form.TEXT:
        while True:
            typer.echo(("---\n" if form is Form.YAML else "") + in_form(status_values(*look()), form), nl=False)
            pause.wait(every)
    if not sys.stdout.isatty():
        from spark_throttle.control.clock import Clock

        while True:
            typer.echo("\n".join(status_lines(*look(), at_ms=Clock.system().wall_ms())))
            pause.wait(every)
    from rich.live import Live

    with Live(status_table(*look()), console=console(), auto_refresh=False, vertical_overflow="ellipsis") as live:
        while not pause.wait(every):
            live.update(status_table(*look()), refresh=True)
