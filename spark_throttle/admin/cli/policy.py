"""Commands on all policies at once: validate, apply, show, diff, exceptions, history, rollback."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spark_throttle.admin.cli.audited import ChangeOptions, changing, recorder_of_changes, service_of
from spark_throttle.admin.cli.entries import flat
from spark_throttle.admin.cli.options import At, Expected, OutputForm, ReportingGroup, Store, wall_clock_ms
from spark_throttle.admin.cli.output import Form, Output, in_form, shown, some, table_of, time_of
from spark_throttle.admin.cli.planned import as_diff, show_plan
from spark_throttle.admin.cli.streams import read_stdin
from spark_throttle.admin.refusals import Exit
from spark_throttle.errors import ConfigurationError, ConflictError, StoreUnavailableError, UnconfirmedError
from spark_throttle.remedies import Remedy

if TYPE_CHECKING:
    from spark_throttle.admin.shown_policies import ShownRevision
    from spark_throttle.policy.model import PolicyDocument
    from spark_throttle.store.checks.protection import PlannedChange
    from spark_throttle.store.service import PolicyService
    from spark_throttle.store.store import Author

app = typer.Typer(
    cls=ReportingGroup, no_args_is_help=True, help="All policies at once: validate, apply, diff, roll back."
)

_STDIN: Final = "-"

PolicyFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A policy document in YAML or JSON: a path, a URI such as s3://…, a store, or - for stdin.",
    ),
]
RevisionNumber = Annotated[int, typer.Argument(metavar="REVISION", help="A revision of the store.")]


@app.command()
def validate(file: PolicyFile, output: OutputForm = Form.TEXT) -> None:
    """Check a document without a store."""
    from spark_throttle.policy.compile import compile_policy, revision_of
    from spark_throttle.policy.model import DIRECTIONS
    from spark_throttle.store.effects import notes_on_document

    document = _document_of(file)
    for direction in DIRECTIONS:
        compile_policy(document, direction)
    nouns = {"resource_groups": "resource group", "tenants": "tenant", "namespaces": "namespace", "exempt": "exemption"}
    counts = {section: len(getattr(document, section)) for section in nouns}
    said = ", ".join(some(counts[section], noun) for section, noun in nouns.items())
    now_ms, remedy = wall_clock_ms(), "apply takes it only where the entry has it already"
    ended = [each for each in document.exceptions if each[1].until_ms <= now_ms]
    past = [f"the exception of {path} has ended, at {each.until}: {remedy}" for path, each in ended]
    notes = [*past, *notes_on_document(document)][:20]
    Output(output).show(
        {"valid": True, "content": revision_of(document), **counts, "notes": notes},
        lambda: "\n".join([f"{_named(file)} can be applied: {said}", *(f"note: {shown(note)}" for note in notes)]),
    )


@app.command()
@changing
def apply(
    options: ChangeOptions,
    file: PolicyFile,
    is_created: Annotated[bool, typer.Option("--init", help="Create the store if it does not exist.")] = False,
    expected: Expected = None,
) -> None:
    """Replace all policies of the store by a document, in one commit."""
    document = _document_of(file)
    if options.is_dry:
        service, is_made = _opened_or_imagined(options.store, is_created=is_created)
        made_store = service.store.location if is_made else ""
        planned = service.planned(document)
        _show_planned(planned, lambda: document.namespaces, expected, options.output, made_store)
        return
    author = options.author()
    if is_created:
        _rehearse(document, options.store, author, expected)
    made = options.service(is_created=is_created).apply(document, author, expected=expected)
    options.show(made, f"{_named(file)} applied")


@app.command()
def show(store: Store = "", at: At = None, output: OutputForm = Form.TEXT) -> None:
    """Print all policies as one document, which `apply` takes."""
    from spark_throttle.policy.codec import dump_policies
    from spark_throttle.policy.yaml_text import read_yaml

    document, now_ms = service_of(store).document(at=at), wall_clock_ms()
    text = dump_policies(document)
    if output is Form.TEXT:
        in_force = (each for each in document.exceptions if now_ms < each[1].until_ms)
        first = (
            f"# until {each.until}, {shown(path)} has an exception: {shown(each.reason)}" for path, each in in_force
        )
        typer.echo("".join(f"{' '.join(line.splitlines())}\n" for line in first), nl=False)
    typer.echo(in_form(read_yaml(text), output) if output is Form.JSON else text, nl=False)


@app.command()
def diff(
    before: Annotated[
        int | None, typer.Argument(metavar="[REVISION]", help="By default the one before the newest.")
    ] = None,
    after: Annotated[int | None, typer.Argument(metavar="[REVISION]", help="By default the newest.")] = None,
    store: Store = "",
    is_checked: Annotated[bool, typer.Option("--check", help="Exit with 10 if they differ.")] = False,
    output: OutputForm = Form.TEXT,
) -> None:
    """Show how two revisions of the store differ."""
    service = service_of(store)
    newest = service.store.revision()
    end = newest if after is None else after
    found = service.diff(max(0, end - 1) if before is None else before, end)
    Output(output).show(found, lambda: as_diff(found))
    if found and is_checked:
        raise typer.Exit(int(Exit.DIFFERENT))


@app.command()
def history(
    store: Store = "",
    before: Annotated[int | None, typer.Option(metavar="REVISION", help="Only older revisions.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most to list.")] = 20,
    output: OutputForm = Form.TEXT,
) -> None:
    """Show who made each change, when and why, and the exceptions that it gave or took; the newest first."""
    from spark_throttle.admin.shown_policies import shown_history

    found = shown_history(service_of(store), before=before, limit=limit)
    numbers, words = ("revision", "entries"), ["revision", "when", "who", "door", "caller", "entries", "why"]
    words += ["exceptions"] if any(each.exceptions for each in found) else []

    def row(each: ShownRevision) -> list[object]:
        said = "; ".join(f"{of.path}: {of.done}, until {of.until} ({of.reason})" for of in each.exceptions)
        facts = [each.revision, time_of(each.at_ms), each.who, each.door, each.caller, each.changes, each.why, said]
        return facts[: len(words)]

    Output(output).show(
        found, lambda: table_of([(word, word in numbers) for word in words], [row(each) for each in found])
    )  # fmt: skip


@app.command()
def exceptions(store: Store = "", output: OutputForm = Form.TEXT) -> None:
    """Show the exceptions: those in force, the first to end in front; then those that have ended."""
    found = service_of(store).exceptions()
    heads = ("entry", "", "until", "sets", "reason", "revision")
    Output(output).show(
        found,
        lambda: table_of(
            [(head, head == "revision") for head in heads],
            [
                (each.path, each.state.replace("_", " "), each.until, ", ".join(flat(each.sets)), each.reason,
                 each.revision)
                for each in found
            ],
        ) if found else "no entry has an exception",
    )  # fmt: skip


@app.command()
@changing
def rollback(
    options: ChangeOptions,
    revision: RevisionNumber,
    expected: Annotated[
        int | None, typer.Option(metavar="REVISION", help="Roll back only if the store is at this revision.")
    ] = None,
) -> None:
    """Restore the policies of a revision; the history keeps the changes since then.

    It shows what changes, and asks first. Without a terminal, nobody can be asked: give --yes.
    """
    service = options.service()
    if options.is_dry:
        from spark_throttle.admin.shown_policies import namespace_names

        planned = service.planned_rollback(revision)
        _show_planned(planned, lambda: namespace_names(service.store, revision), expected, options.output)
        return
    author = options.author(why=f"back to revision {revision}")
    if not options.yes:
        planned = service.planned_rollback(revision)
        if planned.changes:
            _ask(service, planned, revision, expected, options.output)
        author = replace(author, is_confirmed=True)
        expected = planned.revision if expected is None else expected
    made = service.rollback(revision, author, expected=expected)
    if options.yes and options.output is Form.TEXT and made.is_changed:
        from spark_throttle.admin.shown_policies import planned_of

        Output(options.output).show(made, lambda: as_diff(planned_of(made).differences))
    options.show(made, f"rolled back to revision {revision}")


def _ask(service: PolicyService, planned: PlannedChange, revision: int, expected: int | None, form: Form) -> None:
    """Show what a rollback changes, and ask whether to make it."""
    from spark_throttle.admin.shown_policies import namespace_names

    if not sys.stdin.isatty():
        if planned.losses:
            raise UnconfirmedError(str(loss) for loss in planned.losses)
        raise ConfigurationError(
            "a rollback asks first, and without a terminal it cannot: give --yes, or --dry-run to see"
        )
    if form is Form.TEXT:
        _show_planned(planned, lambda: namespace_names(service.store, revision), expected, form)
    typer.confirm(
        f"Roll back {some(planned.changes, 'entry', 'entries')} to revision {revision}?", abort=True, err=True
    )


def _document_of(file: str) -> PolicyDocument:
    """Return the document that an argument names."""
    from spark_throttle.store.policy_location import load_policies

    if file != _STDIN:
        return load_policies(file)
    from spark_throttle.policy.codec import parse_policies

    text = read_stdin()
    if not text.strip():
        raise ConfigurationError("nothing came on stdin; a document without policies is {}")
    return parse_policies(text)


def _named(file: str) -> str:
    return "the document on stdin" if file == _STDIN else shown(file)


def _opened_or_imagined(location: str, *, is_created: bool) -> tuple[PolicyService, bool]:
    """Return the service over a store, and whether `--init` would make that store, which is empty then."""
    try:
        return service_of(location), False
    except StoreUnavailableError as error:
        if not is_created or error.door_remedy is not Remedy.MAKE_STORE:
            raise
    from spark_throttle.store.memory_store import MemoryStore
    from spark_throttle.store.service import PolicyService

    return PolicyService(MemoryStore(location), clock_ms=wall_clock_ms), True


def _rehearse(document: PolicyDocument, location: str, author: Author, expected: int | None) -> None:
    """Refuse a change for which a store would be made, before it is made: an empty store lifts every limit."""
    imagined, is_made = _opened_or_imagined(location, is_created=True)
    if not is_made:
        return
    recorder = recorder_of_changes()
    if recorder is not None:
        recorder.begin()
    imagined.apply(document, author, expected=expected)


def _show_planned(
    planned: PlannedChange,
    names_after: Callable[[], Iterable[str]],
    expected: int | None,
    form: Form,
    made_store: str | None = None,
) -> None:
    """Show a change that is not made (`planned.show_plan`); refuse it at another revision than the expected one."""
    from spark_throttle.admin.shown_policies import Plan

    if expected is not None and expected != planned.revision:
        raise ConflictError("the policy store", expected, planned.revision)
    show_plan(Plan.of(planned, names_after), form, made_store=made_store)
