"""The options that commands share, and the store that they name."""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from spark_throttle.admin.cli.output import Form, Output
from spark_throttle.admin.cli.streams import UnwrittenAnswerError, swallow_answer
from spark_throttle.errors import ConfigurationError, ThrottleError


def system_user() -> tuple[str, int]:
    """Return the name and the number of the user; no variable of the environment changes them."""
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name, uid
    except KeyError:  # as in a container that runs under any number
        return "unnamed", uid


STORE_VARIABLE: Final = "SPARK_THROTTLE_STORE"
_COMMAND: Final = ContextVar("command", default="")
_FORM_KEY: Final = "spark_throttle.form"


class ReportingGroup(TyperGroup):
    """Commands whose errors become answers: a message on stderr, and an exit code that tells what to do."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - typer carries its own copy of click
        """Run a command."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except ThrottleError as error:
            raise typer.Exit(int(Output(ctx.meta.get(_FORM_KEY, Form.TEXT)).fail(error))) from None
        except UnwrittenAnswerError as error:
            raise typer.Exit(int(Output(ctx.meta.get(_FORM_KEY, Form.TEXT)).fail_to_write(error))) from None
        except BrokenPipeError:  # the reader of a pipe has seen enough
            swallow_answer()
            raise typer.Exit(0) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - as `invoke`
        """Find the command that the arguments name, and remember its words."""
        found = super().resolve_command(ctx, args)
        words, at = [str(found[0])], ctx
        while at.parent is not None:  # the last one is the program, however it was started
            words.insert(0, str(at.info_name))
            at = at.parent
        _COMMAND.set(" ".join(words))
        return found


def current_command() -> str:
    """Return the words of the command that runs, without its arguments, such as ``policy apply``."""
    return _COMMAND.get()


def _remembered(ctx: typer.Context, form: Form) -> Form:
    ctx.meta[_FORM_KEY] = form
    return form


Store = Annotated[
    str,
    typer.Option(
        "--store", "-s", envvar=STORE_VARIABLE, metavar="LOCATION",
        help="The policy store: delta:/path, delta:s3://bucket/path or file:/path.yaml.",
    ),
]  # fmt: skip
OutputForm = Annotated[
    Form,
    typer.Option(
        "--output", "-o", envvar="SPARK_THROTTLE_OUTPUT", is_eager=True, callback=_remembered,
        help="Tables for people; JSON or YAML for programs.",
    ),
]  # fmt: skip
Who = Annotated[str, typer.Option("--who", envvar="SPARK_THROTTLE_WHO", help="Who makes the change; by default you.")]
Why = Annotated[str, typer.Option("--why", "-m", help="Reason for the change, kept in the history.")]
Expected = Annotated[
    int | None,
    typer.Option(
        "--expected", metavar="REVISION", help="Change it only if it is at this revision; 0: if it does not exist."
    ),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes", "-y",
        help="Make the change although it leaves no limit, sets a quota to 0, lifts a limit of a scope in use, or "
        "takes names from a quota of 0.",
    ),
]  # fmt: skip
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would change, and what it would cost.")]
At = Annotated[int | None, typer.Option("--at", metavar="REVISION", help="Read this revision instead of the newest.")]
Control = Annotated[
    str | None,
    typer.Option(
        "--control", "-c", envvar="SPARK_THROTTLE_CONTROL", metavar="PATH",
        help="A job's control directory: <checkpoint>/throttle.",
    ),
]  # fmt: skip
SilentAfter = Annotated[
    float | None,
    typer.Option(
        "--silent-after", metavar="SECONDS",
        help="A job without a sign of life for so long is silent; by default three of its intervals, 30 s.",
    ),
]  # fmt: skip
HangingAfter = Annotated[
    float | None,
    typer.Option(
        "--hanging-after", metavar="SECONDS",
        help="A job that Spark asks for no batch for so long hangs, by default 600 s; give more than a batch takes.",
    ),
]  # fmt: skip


_PROSE: Final = ("exception.reason",)
"""Settings that are taken to the letter: as YAML, prose would lose what follows a ``#``."""


def values_of_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Return the plain values of settings such as ``publish.weight=3``; an empty value removes a setting.

    Examples
    --------
    >>> values_of_settings(["publish.messages_per_second=0.2", "resource_group=gold", "publish.weight="])
    {'publish': {'messages_per_second': Decimal('0.2'), 'weight': None}, 'resource_group': 'gold'}
    >>> values_of_settings(["exception.reason=ticket: #4711", "schedule.Sun, Sat="])
    {'exception': {'reason': 'ticket: #4711'}, 'schedule': {'sat,sun': None}}
    """
    from spark_throttle.policy.weekly_hours import WeeklyHours
    from spark_throttle.policy.yaml_text import read_yaml

    values: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ConfigurationError(f"{setting!r} is not a setting; write one such as publish.messages_per_second=500")
        parts = path.split(".")
        if parts[0] == "schedule" and len(parts) > 1:  # hours that are written in another way are the same
            parts[1] = str(WeeklyHours.parse(parts[1]))
        *scopes, key = parts
        here: Any = values
        for scope in scopes:
            here = here.setdefault(scope, {})
            if not isinstance(here, dict):
                break
        if not isinstance(here, dict) or key in here:
            raise ConfigurationError(f"{path} is set twice, the second time by {setting!r}; keep one of the settings")
        value = text if path in _PROSE else read_yaml(text)
        here[key] = value if text else None
    return values


def merged(old: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return plain values with some of them replaced; those whose setting is `None` are removed.

    Examples
    --------
    >>> merged({"publish": {"weight": 3, "on_excess": "reject"}}, {"publish": {"weight": None}})
    {'publish': {'on_excess': 'reject'}}
    """
    values = dict(old)
    for key, value in settings.items():
        if value is None:
            values.pop(key, None)
        elif isinstance(value, dict) and isinstance(values.get(key), dict):
            values[key] = merged(values[key], value)
        else:
            values[key] = value
    return {key: value for key, value in values.items() if value != {}}


def wall_clock_ms() -> int:
    """Return the time of the wall clock."""
    return time.time_ns() // 1_000_000  # noqa: TID251 - the time of a commit, for people
