"""Commands on single entries: groups, tenants, namespaces, exemptions, the defaults, the job and the queue."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from spark_throttle.admin.cli.audited import ChangeOptions, changing, service_of
from spark_throttle.admin.cli.options import (
    At,
    Expected,
    OutputForm,
    ReportingGroup,
    Store,
    merged,
    values_of_settings,
    wall_clock_ms,
)
from spark_throttle.admin.cli.output import Form, Output, shown, spelled, table_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_throttle.admin.shown_policies import Policy
    from spark_throttle.policy.quotas import ExceptionPolicy
    from spark_throttle.store.entries import StoredEntry
    from spark_throttle.store.store import Kind

Name = Annotated[str, typer.Argument(help="The name of the entry.")]
Settings = Annotated[list[str] | None, typer.Argument(metavar="[PATH=VALUE]...")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The resource group.")]

_PAGE = 100


_ELSEWHERE = "and dispatch. instead; exception.publish. and exception.dispatch. until a certain time"


def _with_keys_of(kind: Kind) -> type[TyperCommand]:
    """Return a command whose help names the settings of a kind; the model of policies is loaded only then."""

    class WithKeys(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - click's, of which typer has its own
            from spark_throttle.store.entries import paths_of

            paths = paths_of(kind)
            quotas = ", ".join(path for path in paths if path.startswith("publish."))
            elsewhere = ("publish.", "dispatch.", "exception.publish.", "exception.dispatch.")
            others = ", ".join(path for path in paths if not path.startswith(elsewhere))
            said = "; ".join(part for part in (quotas and f"{quotas} ({_ELSEWHERE})", others) if part)
            for parameter in self.params:
                if parameter.name == "settings":
                    parameter.help = (  # type: ignore[attr-defined] # typer's arguments have one
                        f"Its settings: {said}. An empty value, as in {paths[0]}=, removes a setting: a limit is "
                        f"lifted, and anything else has its default."
                    )
            super().format_help(ctx, formatter)

    return WithKeys


def _answer(stored: StoredEntry) -> Policy:
    from spark_throttle.admin.shown_policies import Policy

    return Policy.of(stored, wall_clock_ms())


def flat(values: dict[str, Any], prefix: str = "") -> list[str]:
    """Return settings as a command line has them, such as ``publish.weight=3``."""
    found = []
    for key, value in values.items():
        found += flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [f"{prefix}{key}={spelled(value)}"]
    return found


def named_app(kind: Kind, noun: str) -> typer.Typer:
    """Return the commands on a kind of entries that have names."""
    app = typer.Typer(cls=ReportingGroup, no_args_is_help=True, help=f"{noun.capitalize()}: create, change, list.")

    one = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
    if kind == "exempt":
        _add_exemption(app, one)
    else:
        _add_writing(app, kind, noun, one)

    @app.command("get", help=f"Show one {noun}.")
    def get(name: Name, store: Store = "", at: At = None, output: OutputForm = Form.TEXT) -> None:
        stored = service_of(store).get(kind, name, at=at)
        Output(output).show(_answer(stored), lambda: _sheet(stored))

    @app.command("delete", help=f"Delete {one}.")
    @changing
    def delete(options: ChangeOptions, name: Name, expected: Expected = None) -> None:
        made = options.service().delete(kind, name, options.author(), expected=expected)
        options.show(made, f"{noun} {name} deleted")

    listing = "List them by name, those with an exception in force first: a page as a table, all as JSON or YAML."

    @app.command("list", help=listing)
    def list_all(
        store: Store = "", after: Annotated[str, typer.Option(help="Begin after this name.")] = "",
        limit: Annotated[int | None, typer.Option(min=1, help="The most to list; in a table by default 100.")] = None,
        at: At = None,
        group: Annotated[str | None, typer.Option(help="Only those that name this resource group.")] = None,
        output: OutputForm = Form.TEXT,
    ) -> None:  # fmt: skip
        service = service_of(store)
        most = limit or (_PAGE if output is Form.TEXT else sys.maxsize)
        found = service.page(kind, after=after, limit=most, at=at, resource_group=group)
        first = [] if after or kind == "exempt" else service.excepted(kind, at=at, resource_group=group)
        names = {stored.name for stored in first}
        listed = [*first, *(stored for stored in found if stored.name not in names)]
        Output(output).show([_answer(stored) for stored in listed], lambda: _table(listed, service.clock_ms()))
        if output is Form.TEXT and len(found) == most:
            typer.echo(f"\nfor the next page: --after {shown(found[-1].name)!r}", err=True)

    if kind in ("tenant", "namespace"):
        _add_attachments(app, kind, noun)
    return app


def _table(listed: Sequence[StoredEntry], now_ms: int) -> Any:  # noqa: ANN401 - what rich prints
    from spark_throttle.store.given_exceptions import state_of

    rows = []
    for stored in listed:
        exception = getattr(stored.policy, "exception", None)
        values = {key: value for key, value in stored.values.items() if key != "exception"}
        said = "" if exception is None else said_of(exception, state_of(exception, now_ms))
        rows.append((stored.name, ", ".join(flat(values)), said, stored.revision))
    heads = [("name", False), ("settings", False), ("exception", False), ("revision", True)]
    has_any = any(said for _, _, said, _ in rows)
    kept = [at for at, (head, _) in enumerate(heads) if has_any or head != "exception"]
    return table_of([heads[at] for at in kept], [[row[at] for at in kept] for row in rows])


def said_of(exception: ExceptionPolicy, state: str) -> str:
    """Return an exception for people to read."""
    from spark_throttle.store.entries import values_of

    values = values_of(exception)
    sets = ", ".join(flat({key: part for key, part in values.items() if key in ("publish", "dispatch")}))
    word = "until" if state == "in_force" else "ended"
    return f"{word} {exception.until}: {sets} ({exception.reason})"


def _add_exemption(app: typer.Typer, one: str) -> None:
    @app.command("create", help=f"Create {one} that does not exist yet.")
    @changing
    def create(options: ChangeOptions, name: Name) -> None:
        options.show(options.service().create("exempt", name, {}, options.author()), f"exemption {name}")


def _add_writing(app: typer.Typer, kind: Kind, noun: str, one: str) -> None:
    @app.command("create", cls=_with_keys_of(kind), help=f"Create {one} that does not exist yet.")
    @changing
    def create(options: ChangeOptions, name: Name, settings: Settings = None) -> None:
        values = merged({}, values_of_settings(settings or []))
        options.show(options.service().create(kind, name, values, options.author()), f"{noun} {name}")

    about = f"Change settings of {one}; those that are not given stay as they are."

    @app.command("update", cls=_with_keys_of(kind), help=about)
    @changing
    def update(
        options: ChangeOptions,
        name: Name,
        settings: Settings = None,
        is_whole: Annotated[bool, typer.Option("--replace", help="Drop all settings that are not given.")] = False,
        expected: Expected = None,
    ) -> None:
        service, changes = options.service(), values_of_settings(settings or [])
        stored = service.get(kind, name)
        values = merged({} if is_whole else stored.values, changes)
        # The entry that the settings are merged into must not have changed when they are written.
        at = expected if expected is not None else None if is_whole else stored.version
        options.show(service.update(kind, name, values, options.author(), expected=at), f"{noun} {name}")


def _add_attachments(app: typer.Typer, kind: Kind, noun: str) -> None:
    @app.command("attach", help=f"Attach a {noun} to a resource group.")
    @changing
    def attach(
        options: ChangeOptions,
        name: Name,
        group: Group,
        is_moved: Annotated[bool, typer.Option("--move", help="Take it from another group if it is in one.")] = False,
        expected: Expected = None,
    ) -> None:
        made = options.service().attach(kind, name, group, options.author(), expected=expected, is_moved=is_moved)
        options.show(made, f"{noun} {name} attached to {group}")

    @app.command("detach", help=f"Detach a {noun} from its resource group.")
    @changing
    def detach(options: ChangeOptions, name: Name, expected: Expected = None) -> None:
        made = options.service().detach(kind, name, options.author(), expected=expected)
        options.show(made, f"{noun} {name} detached")


def single_app(kind: Kind, noun: str) -> typer.Typer:
    """Return the commands on a kind that has a single entry."""
    app = typer.Typer(cls=ReportingGroup, no_args_is_help=True, help=f"{noun[0].upper()}{noun[1:]}: get, update.")

    @app.command("get", help=f"Show {noun}.")
    def get(store: Store = "", at: At = None, output: OutputForm = Form.TEXT) -> None:
        stored = service_of(store).get(kind, at=at)
        Output(output).show(_answer(stored), lambda: _sheet(stored))

    about = f"Change {noun}; settings that are not given stay as they are."

    @app.command("update", cls=_with_keys_of(kind), help=about)
    @changing
    def update(options: ChangeOptions, settings: Settings = None, expected: Expected = None) -> None:
        service, changes = options.service(), values_of_settings(settings or [])
        stored = service.get(kind)
        at = stored.version if expected is None else expected
        options.show(service.put(kind, "", merged(stored.values, changes), options.author(), expected=at), kind)

    return app


def _sheet(stored: StoredEntry) -> Any:  # noqa: ANN401 - what rich prints
    from spark_throttle.store.given_exceptions import state_of

    rows = [tuple(line.split("=", 1)) for line in flat(stored.values)]
    head = f"{stored.kind.replace('_', ' ')} {shown(stored.name)}".strip()
    title = f"{head}, revision {stored.revision}" if stored.revision else f"{head}, by default"
    exception = getattr(stored.policy, "exception", None)
    if exception is not None and state_of(exception, wall_clock_ms()) == "ended":
        title += "; its exception has ended"
    return table_of([("key", False), ("value", False)], rows or [("no settings", "")], title)
