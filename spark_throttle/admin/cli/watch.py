"""Commands that show what jobs do: explain, status.

A status is a table for a terminal, a line per look for a file or a pipe, and JSON for programs. A quota is per second,
so what passed is shown per second too, over the time since the batch before. Where that time is not known, as after a
job's first batch, the table counts by batch and says so.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from spark_throttle.admin.cli.audited import service_of
from spark_throttle.admin.cli.options import Control, HangingAfter, OutputForm, SilentAfter, Store
from spark_throttle.admin.cli.output import Form, Output, console, count, in_form, shown, size, table_of, time_of, wait
from spark_throttle.admin.refusals import Exit
from spark_throttle.errors import ConfigurationError, NotFoundError

if TYPE_CHECKING:
    from spark_throttle.control.notes import ExceptionInForce
    from spark_throttle.core.usage import ReservationCounts
    from spark_throttle.status.explanation import Counts, Explanation, LevelExplanation, Numbers, WaitingNamespace
    from spark_throttle.status.status import DestinationStatus, ScopeStatus, Status
    from spark_throttle.status.time_status import JobTime, ScopeTime


LEVELS: Final = ("job", "resource_group", "tenant", "namespace")
_COUNTS: Final = ("offered", "admitted", "rejected")
_COUNTED: Final = ("messages", "bytes", "units")
_EXCEPTIONS: Final = 10
"""The most exceptions that are shown."""

_NS_PER_MS: Final = 1_000_000


def worst(found: Status, levels: Iterable[str], limit: int) -> list[ScopeStatus]:
    """Return the first scopes of each level, the worst first (`status.ranking`)."""
    kept = []
    for level in levels:
        scopes = [scope for scope in found.scopes if scope.level == level]
        kept += [scopes[at] for at in _ranked(scopes, found.elapsed_ms or 0)[:limit]]
    return kept


def _ranked(scopes: Sequence[ScopeStatus], elapsed_ms: int) -> list[int]:
    import numpy as np

    from spark_throttle.status.ranking import ratio_of_quota, worst_first

    names = ("waiting_messages", "rejected_messages", "offered_messages")
    columns = (*names, *(f"admitted_{each}" for each in _COUNTED))
    rows = np.array([[getattr(scope, name) for name in columns] for scope in scopes], np.int64)
    rows = rows.reshape(-1, len(columns))
    quotas = [_numbers(scope, "{}_per_second") for scope in scopes]
    rates = np.array(quotas, np.float64).reshape(-1, len(_COUNTED))
    used = ratio_of_quota(rows[:, len(names) :], rates, elapsed_ms).max(axis=1, initial=-1.0)
    waiting, rejected, offered = rows[:, : len(names)].T
    oldest_ms = np.array([-1 if scope.oldest_waiting_ms is None else scope.oldest_waiting_ms for scope in scopes], int)
    order: list[int] = worst_first(
        oldest_ms=oldest_ms, rejected=rejected, used_ratio=used, waiting=waiting, offered=offered,
        held=np.array([scope.held_messages for scope in scopes], np.int64),
    ).tolist()  # fmt: skip
    return order


def status_values(found: Status, scopes: list[ScopeStatus]) -> dict[str, Any]:
    """Return a status for programs; a rate is null where it is not known."""
    life = found.life
    return {
        "state": "unknown" if life is None else life.state,
        "listening": life is None or life.is_listening,
        "life": "" if life is None else life.detail,
        "sign_age_ms": None if life is None else life.sign_age_ms,
        "asked_age_ms": None if life is None else life.asked_age_ms,
        "batch_age_ms": found.batch_age_ms,
        "elapsed_ms": found.elapsed_ms,
        "batch": found.batch_id, "batch_time_ms": found.batch_time_ms, "epoch": found.epoch,
        "revision": found.revision, "store_revision": found.store_revision, "problem": found.problem,
        "exceptions": [asdict(each) for each in found.exceptions],
        "destinations": [asdict(each) for each in found.destinations],
        "exchange": None if found.exchange is None else asdict(found.exchange),
        "time": None if found.time is None else asdict(found.time),
        "reservations": None if found.reservations is None else asdict(found.reservations),
        "scopes": [{**asdict(scope), **_rates(found, scope)} for scope in scopes],
    }  # fmt: skip


def _rates(found: Status, scope: ScopeStatus) -> dict[str, float | None]:
    names = [f"{word}_{each}" for word in _COUNTS for each in _COUNTED]
    return {f"{name}_per_second": found.per_second(getattr(scope, name)) for name in names}


def status_table(found: Status, scopes: list[ScopeStatus]) -> Any:  # noqa: ANN401 - what rich prints
    """Return a status for a terminal."""
    from rich.console import Group
    from rich.text import Text

    is_missed = _is_missed(found)
    missed = [f"no job is listening: {found.life.detail}"] if found.life is not None and is_missed else []
    above = [Text(shown(problem), style="bold red") for problem in (*missed, *_problems(found))]
    if found.batch_id < 0:
        alive = f"; {found.life.detail}" if found.life is not None and not is_missed else ""
        return Group(*above, Text(f"no batch has reported yet{shown(alive)}"))
    store = "" if found.store_revision is None else f", the next by store revision {found.store_revision}"
    title = f"batch {found.batch_id} at {time_of(found.batch_time_ms)}, epoch {found.epoch}{store}\n"
    title += _ages(found, has_life=not is_missed)
    title += "" if found.exchange is None else f"\n{shown(found.exchange.detail)}"
    title += "".join(f"\n{shown(said)}" for said in (*_exceptions(found), *map(_destination, found.destinations)))
    if found.time is not None:
        title += f"\n{_uncharged(found.time)}"
    if found.reservations is not None:
        title += f"\n{_reserved(found.reservations, found.batch_age_ms or 0)}"
    cells = [_cells(found, each) for each in scopes]
    heads = list(dict.fromkeys(head for each in cells for head in each))
    columns = [("level", False), ("scope", False), *((head, True) for head in heads)]
    rows = [
        (each.level.replace("_", " "), each.scope, *(texts.get(head, "") for head in heads))
        for each, texts in zip(scopes, cells, strict=True)
    ]
    none = [] if rows else [Text("no scope to show: tenants and groups are shown if the policies name them")]
    return Group(*above, table_of(columns, rows, title), *none)


def status_lines(found: Status, scopes: list[ScopeStatus], *, at_ms: int) -> Iterator[str]:
    """Yield a status as lines for a file, one for the job's life and one for each scope; all begin with the time."""
    at = time_of(at_ms)
    state = "unknown" if found.life is None else found.life.state
    listens = "no job is listening: " if _is_missed(found) else ""
    yield f"{at} {state}: {listens}{_ages(found) or 'no batch has reported yet'}"
    for problem in _problems(found):
        yield f"{at} {shown(problem)}"
    if found.exchange is not None:
        yield f"{at} {shown(found.exchange.detail)}"
    for said in (*_exceptions(found), *map(_destination, found.destinations)):
        yield f"{at} {shown(said)}"
    if found.time is not None:
        yield f"{at} {_uncharged(found.time)}"
    if found.reservations is not None:
        yield f"{at} {_reserved(found.reservations, found.batch_age_ms or 0)}"
    for each in scopes:
        name = each.scope if each.level == "job" else f"{each.level.replace('_', ' ')} {each.scope}"
        line = ", ".join(f"{head} {text}" for head, text in _cells(found, each).items() if text)
        yield f"{at} batch {found.batch_id}: {shown(name)}: {line}"


def _reserved(found: ReservationCounts, batch_age_ms: int) -> str:
    """Return what is reserved, and what became of it in the newest batch, in words.

    Examples
    --------
    >>> from spark_throttle.core.usage import ReservationCounts
    >>> _reserved(ReservationCounts(2, 3_000, ended_messages=1, settled_messages=4), 9_000)
    'the costs of 2 messages are not known yet, the oldest for 12 s; 4 were settled, 1 ended unsettled'
    """
    of_batch = (
        (found.settled_messages, "were settled"), (found.ended_messages, "ended unsettled"),
        (found.unknown_costs, "costs found no reservation"), (found.unusable_costs, "costs are unusable"),
    )  # fmt: skip
    said = ", ".join(f"{count} {what}" for count, what in of_batch if count)
    oldest = f", the oldest for {(found.oldest_ms + batch_age_ms) // 1000} s" if found.open_messages else ""
    return f"the costs of {found.open_messages} messages are not known yet{oldest}{f'; {said}' if said else ''}"


def _problems(found: Status) -> Iterator[str]:
    """Yield what is wrong with the job's policies and with its exchange."""
    if found.problem is not None:
        yield f"the newest policies are not in force: {found.problem}"
    if found.exchange is not None and found.exchange.problem is not None:
        yield f"the exchange: {found.exchange.problem}"


def _cells(found: Status, scope: ScopeStatus) -> dict[str, str]:
    """Return the numbers of a scope for people to read, by their heads."""
    suffix = "/s" if found.elapsed_ms else " at first"
    cells = {"quota/s": _quota(scope, found.unit)}
    if found.exchange is not None:
        share = scope.shared
        cells["share/s"] = "" if share is None else both(
            (share.share_messages_per_second, share.share_bytes_per_second, share.share_units_per_second), found.unit
        )  # fmt: skip
    cells |= {word + suffix: _passed(found, scope, word) for word in _COUNTS}
    cells |= {"waiting": _waiting(scope, found.unit), "oldest": wait(scope.oldest_waiting_ms)}
    cells["99 % within"] = wait(scope.waited_p99_ms or None)
    if scope.time is not None:
        cells |= {"core time": _core_time(scope.time), "throttled for": wait(scope.time.throttle_ms or None)}
    return cells


def _exceptions(found: Status) -> Iterator[str]:
    """Yield the exceptions in force, the first to end in front."""
    for each in found.exceptions[:_EXCEPTIONS]:
        yield _exception(each)
    if len(found.exceptions) > _EXCEPTIONS:
        yield f"and {len(found.exceptions) - _EXCEPTIONS} more exceptions; --output json has all"


def _exception(each: ExceptionInForce) -> str:
    from spark_throttle.policy.values import time_text

    return f"until {time_text(each.until_ms)}, {each.path} has an exception: {each.reason}"


def _destination(each: DestinationStatus) -> str:
    at = f"{count(each.messages_per_second)} of {count(each.ceiling_messages_per_second)} messages/s"
    state = f"unavailable for {wait(each.refused_for_ms)}" if each.is_unavailable else at
    return f"destination {each.resource_group}: {state}"


def _numbers(scope: ScopeStatus, name: str) -> tuple[Any, Any, Any]:
    """Return a number of a scope in messages, bytes and units."""
    messages, in_bytes, units = (getattr(scope, name.format(each)) for each in _COUNTED)
    return messages, in_bytes, units


def _quota(scope: ScopeStatus, unit: str) -> str:
    percent = None if scope.time is None else scope.time.request_percentage
    parts = [both(_numbers(scope, "{}_per_second"), unit)]
    parts += [] if percent is None else [f"{count(percent)} % of a core"]
    parts += (
        [f"guaranteed {both(scope.guaranteed, unit)}"] if any(each is not None for each in scope.guaranteed) else []
    )
    return " / ".join(part for part in parts if part) or "no limit"


def _core_time(time: ScopeTime) -> str:
    """Return what a scope used, in percent of one core where that is known."""
    return wait(time.used_ns // _NS_PER_MS) if time.used_percentage is None else f"{count(time.used_percentage)} %"


def _uncharged(time: JobTime) -> str:
    """Return the time that is charged to no scope, in percent of one core where that is known."""
    from spark_throttle.core.arithmetic.units import NS_PER_MS_OF_A_PERCENT  # loads pyarrow, which most commands do not

    parts = []
    for time_ns, word in ((time.exempt_ns, "exempt"), (time.unattributed_ns, "of no namespace")):
        percent = time_ns / (time.interval_ms * NS_PER_MS_OF_A_PERCENT) if time.interval_ms else None
        parts.append(f"{word} {wait(time_ns // _NS_PER_MS) if percent is None else count(percent) + ' %'}")
    return f"core time: {', '.join(parts)}"


def _is_missed(found: Status) -> bool:
    """Return whether the job is not heard, and did not end in good order."""
    return found.life is not None and not found.life.is_listening and found.life.state != "ended"


def _ages(found: Status, *, has_life: bool = True) -> str:
    parts = [found.life.detail] if has_life and found.life is not None else []
    if found.batch_age_ms is not None:
        parts.append(f"its last batch began {wait(found.batch_age_ms)} ago")
    if found.elapsed_ms:
        parts.append(f"{wait(found.elapsed_ms)} after the one before")
    return shown(", ".join(parts))


def _passed(found: Status, scope: ScopeStatus, word: str) -> str:
    messages, in_bytes, units = _numbers(scope, f"{word}_{{}}")
    if found.elapsed_ms:
        messages, in_bytes, units = (_rounded(found.per_second(each)) for each in (messages, in_bytes, units))
    return both((messages, in_bytes, units or None), found.unit) if messages or in_bytes or units else "0"


def _rounded(per_second: float | None) -> float | None:
    """Return a rate with as many places as people read; `None` stays `None`.

    Examples
    --------
    >>> _rounded(1612.792), _rounded(39.801), _rounded(0.01234)
    (1613, 39.8, 0.0123)
    """
    if per_second is None:
        return None
    return round(per_second) if per_second >= 100 else float(f"{per_second:.3g}")


def _waiting(scope: ScopeStatus, unit: str) -> str:
    messages, in_bytes, units = _numbers(scope, "waiting_{}")
    return both((messages, in_bytes, units or None), unit) if messages else "0"


def both(numbers: Numbers | None, unit: str) -> str:
    """Return numbers of messages, bytes and units for people to read; a part that is `None` is left out."""
    if numbers is None:
        return ""
    messages, in_bytes, units = numbers
    parts = count(messages), size(in_bytes), "" if units is None else f"{count(units)} {unit}"
    return " / ".join(part for part in parts if part)


def explain(
    namespace: Annotated[str, typer.Argument(metavar="NAME", help="A namespace, such as acme/orders, or a tenant.")],
    store: Store = "",
    control: Control = None,
    direction: Annotated[
        Literal["publish", "dispatch"], typer.Option(help="Which quotas to explain; a job has its own.")
    ] = "publish",
    output: OutputForm = Form.TEXT,
) -> None:
    """Show which rule applies to a namespace and why and, with --control, what a job's last batch did.

    Of a tenant, show its quota, its group and, with --control, which of its namespaces wait, and what holds each.
    """
    from spark_throttle.status.explain import explain_job, explain_policy

    if control is None:
        found = explain_policy(service_of(store).store, namespace, direction)
    else:
        found = explain_job(control, namespace)
    Output(output).show(found, lambda: _as_sheet(found))


def _as_sheet(found: Explanation) -> Any:  # noqa: ANN401 - what rich prints
    from rich.console import Group
    from rich.text import Text

    others = {"defaults": "the defaults", "tenant": "a tenant without an entry"}
    won = f"{found.rule} {found.matched}" if found.matched else others.get(found.rule, found.rule)
    head = Text(f"{shown(found.namespace)} ({found.direction}): {shown(won)}", style="bold")
    parts: list[Any] = [head, *(Text(f"  {shown(reason)}") for reason in found.reasons)]
    parts += [Text(f"  {shown(_exception(each))}", style="yellow") for each in found.exceptions]
    if found.levels:
        cells = [_level_cells(level, found) for level in found.levels]
        columns = [(head, head not in ("level", "scope", "excess")) for head in cells[0]]
        parts += [Text(), table_of(columns, [list(each.values()) for each in cells])]
    if found.last_batch is not None:
        last = found.last_batch
        said = f"batch {last.batch_id} at {time_of(last.batch_time_ms)}, epoch {last.epoch}: "
        numbers = (("offered", last.offered), ("admitted", last.admitted), ("rejected", last.rejected),
                   ("waiting", last.waiting))  # fmt: skip
        parts += [Text(), Text(said + ", ".join(f"{word} {_of_rows(counts, found.unit)}" for word, counts in numbers))]
        if last.waiting[0]:
            left = (wait(found.predicted_release_ms) or "never") + _held_by(found)
            parts.append(Text(f"time until the backlog is gone, if nothing more arrives: {left}", style="yellow"))
    if found.namespaces:
        told, count_in_all = len(found.namespaces), found.waiting_namespaces
        heads = ["waits", "group", "waiting", "rejected", "held by", "may leave in"]
        rows = [_waiting_cells(each, found.unit) for each in found.namespaces]
        parts += [Text(), table_of([(head, head in heads[2:4]) for head in heads], rows)]
        parts += [Text(f"and {count_in_all - told} more")] if count_in_all > told else []
    parts += [Text(f"note: {shown(note)}", style="yellow") for note in found.notes]
    return Group(*parts)


def _of_rows(counts: Counts | None, unit: str) -> str:
    """Return what rows are, without units where they have none."""
    if counts is None:
        return ""
    messages, in_bytes, units = counts
    return both((messages, in_bytes, units or None), unit)


def _waiting_cells(each: WaitingNamespace, unit: str) -> list[object]:
    level, scope = each.held_by
    held_by = {"namespace": "its own quota", "job": "the job"}.get(level, f"{level.replace('_', ' ')} {scope}")
    release = "at once" if each.release_ms == 0 else wait(each.release_ms) or "never"
    rejected = _of_rows(each.rejected, unit) if any(each.rejected) else ""
    return [each.namespace, each.resource_group or "", _of_rows(each.waiting, unit), rejected, held_by, release]


def _level_cells(level: LevelExplanation, found: Explanation) -> dict[str, object]:
    """Return the numbers of a level for people to read, by their heads, which all levels have."""
    is_timed = any(each.request_percentage is not None for each in found.levels)
    cells: dict[str, object] = {
        "level": level.level.replace("_", " "),
        "scope": level.scope,
        "messages/s": count(level.per_second[0]) or "no limit",
        "bytes/s": size(level.per_second[1]) or "no limit",
    }
    unit, none = found.unit, (None, None, None)
    if any(each.per_second[2] is not None for each in found.levels):
        cells[f"{unit}/s"] = count(level.per_second[2]) or "no limit"
    if any(each.share != none for each in found.levels):
        cells["share"] = both(level.share, unit)
    if any(each.guaranteed != none for each in found.levels):
        cells["guaranteed"] = both(level.guaranteed, unit)
        if any(each.guaranteed_in_force != none for each in found.levels):
            cells["in force"] = both(level.guaranteed_in_force, unit)
    largest = level.bounds.get("max_message_bytes"), level.bounds.get("max_message_units")
    cells |= {"burst": both(level.burst, unit), "max message": both((None, *largest), unit) or "no limit"}
    if is_timed:
        percent = level.request_percentage
        cells["core time"] = "no limit" if percent is None else f"{percent:g} %"
        if any(each.guaranteed_percentage is not None for each in found.levels):
            percent = level.guaranteed_percentage
            cells["guaranteed time"] = "" if percent is None else f"{percent:g} %"
    cells |= _spent_cells(level, found)
    cells |= {"weight": level.weight, "excess": level.on_excess}
    if found.last_batch is not None:
        if is_timed:
            left_ns = level.balance_time_ns
            sign = "-" if left_ns is not None and left_ns < 0 else ""
            cells["core time left"] = "" if left_ns is None else f"{sign}{wait(abs(left_ns) // _NS_PER_MS)}"
        is_waiting = level.waiting is not None and level.waiting[0] > 0
        held_for = "" if level.release_ms == 0 else wait(level.release_ms) or "for good"
        cells |= {"balance": both(level.balance, unit), "waiting": _of_rows(level.waiting, unit)}
        cells["held for"] = held_for if is_waiting else ""
    return cells


def _spent_cells(level: LevelExplanation, found: Explanation) -> dict[str, object]:
    """Return what is left of budgets, and what is reserved, if any level has any."""
    cells: dict[str, object] = {}
    if any(_budgets(each, found.unit) for each in found.levels):
        cells["budgets"] = _budgets(level, found.unit) or "none"
    if any(each.reserved_units for each in found.levels):
        cells["reserved"] = count(level.reserved_units)
    return cells


def _budgets(level: LevelExplanation, unit: str) -> str:
    """Return the budgets of a level, with what is left of them where that is known."""
    left, parts = {each.budget: each.left for each in level.budgets}, []
    for key, most in level.bounds.items():
        what, _, period = key.partition("_per_")
        if period:
            shown_as, named = (size, "") if what == "bytes" else (count, f" {unit if what == 'units' else what}")
            of = f"{shown_as(left[key])} left of " if key in left else ""
            parts.append(f"{of}{shown_as(most)}{named} a {period}".replace(" a hour", " an hour"))
    return ", ".join(parts)


def _held_by(found: Explanation) -> str:
    """Return which level's quota lets the backlog go last, as the end of a sentence; nothing if none holds it."""
    last = max(found.levels, key=lambda level: level.release_ms or 0, default=None)  # an exempt one has no level
    if last is None or not last.release_ms or last.release_ms != found.predicted_release_ms:
        return ""
    return shown(f", by the quota of {last.level.replace('_', ' ')} {last.scope}")


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
