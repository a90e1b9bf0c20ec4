"""Commands that change something, and their audit log: of tokens always, and of policies if a log is named.

Whoever may write the store or the token file can also write them without these commands; the history of the store, not
this log, tells who committed a change.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from spark_throttle.admin.cli.options import (
    STORE_VARIABLE,
    DryRun,
    OutputForm,
    Store,
    Who,
    Why,
    Yes,
    current_command,
    system_user,
    wall_clock_ms,
)
from spark_throttle.admin.cli.output import REMEDIES, Form, Output, shown
from spark_throttle.admin.refusals import Outcome, refusal_of
from spark_throttle.errors import ConfigurationError, FileUnusableError, ThrottleError

if TYPE_CHECKING:
    from spark_throttle.admin.audit import AuditLog
    from spark_throttle.store.committer import CommitResult
    from spark_throttle.store.service import PolicyService
    from spark_throttle.store.store import Author, Change

AUDIT_VARIABLE: Final = "SPARK_THROTTLE_AUDIT"
_recorded: ContextVar[ThrottleError | None] = ContextVar("recorded", default=None)
"""The refusal that was recorded last."""

Audit = Annotated[
    str | None,
    typer.Option(
        "--audit", envvar=AUDIT_VARIABLE, metavar="FILE",
        help="The audit log, which is only appended to; by default <the file of tokens>.audit.",
    ),
]  # fmt: skip


def recorder_of_changes() -> CommandRecorder | None:
    """Return what records changes of policies; `None` if no log is named."""
    path = os.environ.get(AUDIT_VARIABLE)
    return CommandRecorder(_log(path)) if path else None


class CommandRecorder:
    """Records changes of policies by a command; a `ChangeRecorder`."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def begin(self) -> None:
        """Refuse a change that could not be recorded."""
        self._log.check()

    def end(self, author: Author, changes: Sequence[Change], outcome: CommitResult | ThrottleError) -> None:
        """Record the outcome of a change."""
        from spark_throttle.admin.audit import changes_of, values_of
        from spark_throttle.store.committer import MOST_MADE
        from spark_throttle.store.entries import path_of

        if isinstance(outcome, ThrottleError):
            asked = [
                {"path": path_of(each.kind, each.name), "after": values_of(each.body)} for each in changes[:MOST_MADE]
            ]
            _recorded.set(outcome)
            _append(self._log, outcome, author=author, changes=asked, changes_left_out=len(changes) - len(asked))
        elif outcome.is_changed:
            _append(
                self._log, "done", author=author, changes=changes_of(outcome.made), revision=outcome.revision,
                changes_left_out=outcome.left_out,
            )  # fmt: skip
        else:
            _append(self._log, "unchanged", author=author)


def service_of(location: str, *, is_created: bool = False) -> PolicyService:
    """Return the service over the store at the location that an option gave."""
    from spark_throttle.store.policy_location import open_store
    from spark_throttle.store.service import PolicyService

    if not location:
        raise ConfigurationError(f"no policy store is named; give --store, or set {STORE_VARIABLE}")
    return PolicyService(
        open_store(location, is_created=is_created), clock_ms=wall_clock_ms, recorder=recorder_of_changes()
    )


@dataclass(frozen=True, kw_only=True)
class ChangeOptions:
    """What every command that changes policies takes: where, by whom, why, and the form of the answer."""

    store: Store = ""
    who: Who = ""
    why: Why = ""
    yes: Yes = False
    is_dry: DryRun = False
    output: OutputForm = Form.TEXT

    def author(self, *, why: str = "") -> Author:
        """Return the author of the change: the one named, or the user of this process, who is kept in any case.

        The history keeps what it says, and has more readers than a token, so secrets are hidden.

        Parameters
        ----------
        why
            The reason if none was given.
        """
        from spark_throttle.admin.redaction import without_secrets
        from spark_throttle.store.store import Author

        name, uid = system_user()
        said = {"who": without_secrets(self.who or name), "why": without_secrets(self.why or why)}
        return Author(**said, door="cli", caller=f"{name} (uid {uid})", is_confirmed=self.yes)

    def service(self, *, is_created: bool = False) -> PolicyService:
        """Return the service over the store, which only tries changes if that was asked for."""
        service = service_of(self.store, is_created=is_created)
        return service.dry_run() if self.is_dry else service

    def show(self, made: CommitResult, what: str) -> None:
        """Show the outcome of the change, or what it would do."""
        if self.is_dry:
            from spark_throttle.admin.cli.planned import show_plan
            from spark_throttle.admin.shown_policies import Plan, names_after, planned_of

            plan = Plan.of(planned_of(made), lambda: names_after(service_of(self.store).store, made))
            show_plan(plan, self.output, notes=made.notes)
            return

        def text() -> str:
            said = f"{what}: revision {made.revision}" if made.is_changed else f"{what}: nothing to change"
            return "\n".join([shown(said), *(f"note: {shown(note)}" for note in made.notes)])

        Output(self.output).show({"revision": made.revision, "changed": made.is_changed, "notes": made.notes}, text)


def changing(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that changes policies, for typer: it takes the options of `ChangeOptions` beside its own.

    `command` is given them as its first argument. Every attempt has a line: also one that finds no store. A dry run
    has none.
    """

    @wraps(command)
    def recorded(**given: Any) -> None:  # noqa: ANN401 - as the command takes them
        options = ChangeOptions(**{each.name: given.pop(each.name) for each in fields(ChangeOptions)})
        path = os.environ.get(AUDIT_VARIABLE)
        try:
            command(options, **given)
        except ThrottleError as error:
            is_of_log = _recorded.get() is error or (isinstance(error, FileUnusableError) and error.path == path)
            if path and not options.is_dry and not is_of_log:
                _append(_log(path), error, author=options.author())
            raise

    own = [*signature(command, eval_str=True).parameters.values()][1:]
    shared = signature(ChangeOptions, eval_str=True).parameters.values()
    parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in (*own, *shared)]
    recorded.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # what typer makes options of
    return recorded


@contextmanager
def audited(tokens: str, audit: str | None) -> Iterator[list[str]]:
    """Record a change of the token file that the block makes, or the reason why it was not made.

    It yields the list of the words that say what the change is about.
    """
    about: list[str] = []
    log = _log(audit or f"{tokens}.audit", beside=Path(tokens))
    log.check()
    try:
        yield about
    except ThrottleError as error:
        _append(log, error, about=about)
        raise
    _append(log, "done", about=about)


def _append(
    log: AuditLog,
    result: Outcome | ThrottleError,
    *,
    author: Author | None = None,
    changes: list[dict[str, Any]] | None = None,
    changes_left_out: int = 0,
    revision: int | None = None,
    about: Sequence[str] = (),
) -> None:
    from spark_throttle.admin.audit import NOTHING_CHANGED, Event

    outcome: Outcome = refusal_of(result).outcome if isinstance(result, ThrottleError) else result
    detail = result.told(REMEDIES) if isinstance(result, ThrottleError) else ""
    name, uid = system_user()
    event = Event(
        door="cli", caller=f"{name} (uid {uid})", who=name if author is None else author.who,
        source=socket.gethostname(), action=" ".join([current_command(), *filter(None, about)]), outcome=outcome,
        detail=detail, why="" if author is None else author.why, revision=revision, changes=changes or [],
        changes_left_out=changes_left_out or None,
    )  # fmt: skip
    try:
        log.append(event)
    except FileUnusableError as error:
        if outcome in NOTHING_CHANGED:
            raise
        raise FileUnusableError(error.path, f"the change was made, and is not recorded: {error.problem}") from error


def _log(path: str, *, beside: Path | None = None) -> AuditLog:
    from spark_throttle.admin.audit import AuditLog

    return AuditLog(path, clock_ms=wall_clock_ms, beside=beside)
