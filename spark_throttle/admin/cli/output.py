"""Commands answer with tables for people, and with JSON or YAML for programs.

All forms show everything. Characters that a terminal would obey or that nobody sees, such as bidirectional controls,
are escaped in all of them; JSON and YAML read back as the exact name. Answers go to stdout, errors to stderr.

Tables fit the terminal: long texts are folded, and where that is not enough, each row becomes a list.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from spark_throttle.admin.cli.streams import UnwrittenAnswerError, swallow_answer
from spark_throttle.admin.refusals import Exit, refusal_of
from spark_throttle.core.names.visible_text import visible, visible_in_json
from spark_throttle.errors import ThrottleError, UnconfirmedError
from spark_throttle.remedies import IN_PYTHON, WHY_ONE_STEP, Remedy, Words

_LEAST: Final = 12
"""The fewest columns to which a word may be folded; shorter words stay whole."""

_GAP: Final = 2
_SLASH: Final = " / "


def _parts(pair: str) -> list[str]:
    """Return the lines into which a pair of numbers may be folded."""
    *first, last = pair.split(_SLASH)
    return [*(part + _SLASH.rstrip() for part in first), last]


class FittedTable:
    """A table without lines, as wide as it needs to be and no wider than the terminal.

    Parameters
    ----------
    columns
        The head of each column, and whether its values are numbers: a pair of them, as in `5,000 / 4 MiB`, is folded
        only at the slash.
    rows
        The texts of the cells, which are shown as they are: none is read as markup.

    Examples
    --------
    >>> console = Console(width=20)
    >>> console.print(FittedTable([("name", False), ("quota/s", True)], [("acme", "5,000 / 4 MiB")]))
    name        quota/s
    acme  5,000 / 4 MiB
    >>> Console(width=13).print(FittedTable([("name", False), ("quota/s", True)], [("acme", "5,000 / 4 MiB")]))
    name  quota/s
    acme  5,000 /
            4 MiB
    """

    def __init__(self, columns: Iterable[tuple[str, bool]], rows: Iterable[Sequence[str]]) -> None:
        self._columns = list(columns)
        self._rows = [list(row) for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table that fits the width of a console."""
        widths = self._widths(options.max_width)
        yield self._lists() if widths is None else self._table(widths)

    def _widths(self, most: int) -> list[int] | None:
        """Return the width of each column, or `None` if the least widths together are too wide."""
        widths, least = [], []
        for at, (head, is_number) in enumerate(self._columns):
            texts = [head, *(row[at] for row in self._rows)]
            widths.append(max(map(cell_len, texts)))
            if is_number:
                parts = [*head.split(), *(part for text in texts[1:] for part in _parts(text))]
                least.append(max(map(cell_len, parts), default=0))
            else:
                words = (cell_len(word) for text in texts for word in text.split())
                least.append(min(max(words, default=0), _LEAST))
        most -= _GAP * (len(widths) - 1)
        if sum(least) > most:
            return None
        while sum(widths) > most:
            at = max((at for at in range(len(widths)) if widths[at] > least[at]), key=lambda at: widths[at])
            widths[at] -= 1
        return widths

    def _table(self, widths: list[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
        for (head, is_number), width in zip(self._columns, widths, strict=True):
            table.add_column(head, justify="right" if is_number else "left", overflow="fold", width=width)
        for row in self._rows:
            cells = zip(row, self._columns, widths, strict=True)
            table.add_row(
                *(
                    Text("\n".join(_parts(text)) if is_number and cell_len(text) > width else text)
                    for text, (_, is_number), width in cells
                )
            )
        return table

    def _lists(self) -> Table:
        """Return two columns: the heads, and what a row has there; rows are set apart, and empty cells left out."""
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, _GAP, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for number, row in enumerate(self._rows):
            if number:
                table.add_row()
            for (head, _), text in zip(self._columns, row, strict=True):
                if text:
                    table.add_row(head, Text(text))
        return table


shown: Final = visible
"""Every name and message in a table or a line passes it: a terminal would obey its control characters."""


_MOVE: Final = (
    f"to move it in one step, attach it with --move, or set resource_group in its entry (update); {WHY_ONE_STEP}"
)
REMEDIES: Final[Words] = {
    **IN_PYTHON,
    Remedy.CONFIRM: "confirm it with --yes if it is meant",
    Remedy.MOVE_NAMESPACE: _MOVE,
    Remedy.MOVE_OTHER: _MOVE,
    Remedy.NAME_TABLE: "give --table",
    Remedy.NAME_GROUP: "give --group",
}
"""The remedies as a command line says them."""


class Form(StrEnum):
    """The form of a command's answer."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


class Output:
    """One command's answer.

    Parameters
    ----------
    form
        The form of the answer: for people or for programs.
    """

    def __init__(self, form: Form) -> None:
        self.form = form

    def show(self, value: object, table: Callable[[], RenderableType | str]) -> None:
        """Write an answer: `value` for programs, `table()` for people."""
        if self.form is Form.TEXT:
            console().print(table(), highlight=False)
        else:
            sys.stdout.write(in_form(value, self.form))

    def fail(self, error: ThrottleError) -> Exit:
        """Write an error to stderr, and return the exit code for it."""
        more = {"losses": error.losses} if isinstance(error, UnconfirmedError) else {}
        return self._say(refusal_of(error).exit, type(error).__name__, error.told(REMEDIES), more)

    def fail_to_write(self, error: UnwrittenAnswerError) -> Exit:
        """Write to stderr that an answer is lost, and return the exit code for it."""
        swallow_answer()
        message = f"the answer could not be written ({error}); the command was done: what it changes is changed"
        return self._say(Exit.UNWRITTEN, type(error).__name__, message, {})

    def _say(self, code: Exit, name: str, message: str, more: dict[str, Any]) -> Exit:
        if self.form is not Form.TEXT:
            said = {"error": name, "exit_code": int(code), "message": message, **more}
            sys.stderr.write(in_form(said, self.form))
        else:
            line = Text.assemble(("error:", "bold red"), f" {shown(message)}")
            Console(stderr=True, soft_wrap=True).print(line, highlight=False)
        return code


def console() -> Console:
    """Return a console on the current stdout; if this is not a terminal, the console is 160 columns wide."""
    return _Console(None if sys.stdout.isatty() else 160)


class _Console(Console):
    """A console that shows texts as they are, and leaves a pipe without a reader to the command that has done its work.

    Texts have names in them, which anybody may choose: ``[red]`` in a name is no style, and ``:smile:`` no picture.
    """

    def __init__(self, width_columns: int | None) -> None:
        super().__init__(width=width_columns, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        raise  # noqa: PLE0704 - rich calls this where it has caught the error


def in_form(value: object, form: Form) -> str:
    r"""Return a value as whole lines for programs, in JSON or YAML.

    Examples
    --------
    >>> in_form({"quota": Decimal("0.2"), "name": "a\u202eb"}, Form.YAML)
    'quota: 0.2\nname: "a\\u202Eb"\n'
    """
    if form is Form.JSON:
        return as_json(value) + "\n"
    from spark_throttle.policy.yaml_text import dump_yaml

    return dump_yaml(json.loads(as_json(value)), width=1000)


def as_json(value: object) -> str:
    """Return a value as JSON, dataclasses as mappings.

    Examples
    --------
    >>> as_json({"quota": Decimal("0.2"), "pair": (1, None)})
    '{"quota": 0.2, "pair": [1, null]}'
    """
    return visible_in_json(json.dumps(value, default=_plain, ensure_ascii=False))


def _plain(value: object) -> Any:  # noqa: ANN401 - what json takes
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Decimal):
        return float(value) if value % 1 else int(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def spelled(value: object) -> str:
    """Return a value as a policy document spells it.

    Examples
    --------
    >>> spelled(True), spelled(None), spelled(Decimal("0.20")), spelled("2K*delay*100"), spelled(["a", None])
    ('true', 'null', '0.2', '2K*delay*100', '[a, null]')
    """
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(spelled, value))}]"
    return f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)


def table_of(
    columns: Iterable[tuple[str, bool]], rows: Iterable[Sequence[object]], title: str | None = None
) -> RenderableType:
    """Return a table; a column is given by its head and by whether its values are numbers."""
    cells = [["" if cell is None else shown(str(cell)) for cell in row] for row in rows]
    table = FittedTable(columns, cells)
    return table if title is None else Group(Text(title, style="italic"), table)


def count(value: float | None) -> str:
    """Return a number of messages for people to read; `None` gives an empty text.

    Examples
    --------
    >>> count(1234567), count(0.2), count(-0.0001), count(None)
    ('1,234,567', '0.2', '0', '')
    """
    if value is None:
        return ""
    shown = round(value, 3) + 0  # without the sign of -0.0
    return f"{shown:,.0f}" if shown % 1 == 0 else f"{shown:,.3f}".rstrip("0")


def some(number: int, one: str, more: str | None = None) -> str:
    """Return a number of things with their name.

    Examples
    --------
    >>> some(1, "entry", "entries"), some(2, "entry", "entries"), some(0, "tenant")
    ('1 entry', '2 entries', '0 tenants')
    """
    return f"{count(number)} {one if number == 1 else more or one + 's'}"


def size(value: float | None) -> str:
    """Return a number of bytes for people to read; `None` gives an empty text.

    Examples
    --------
    >>> size(0), size(1536), size(8 * 2**20), size(None)
    ('0 B', '1.5 KiB', '8 MiB', '')
    """
    if value is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.1f}".removesuffix(".0") + f" {unit}"
        value /= 1024
    return f"{value:.1f}".removesuffix(".0") + " TiB"


def wait(value_ms: int | None) -> str:
    """Return a duration for people to read; `None` gives an empty text.

    Examples
    --------
    >>> wait(250), wait(61_000), wait(7_200_000)
    ('250 ms', '1.0 min', '2.0 h')
    """
    if value_ms is None:
        return ""
    for bound, unit_ms, unit in ((1000, 1, "ms"), (60_000, 1000, "s"), (3_600_000, 60_000, "min")):
        if value_ms < bound:
            return f"{value_ms} ms" if unit == "ms" else f"{value_ms / unit_ms:.1f} {unit}"
    return f"{value_ms / 3_600_000:.1f} h"


def time_of(at_ms: int) -> str:
    """Return a time for people to read, in UTC.

    Examples
    --------
    >>> time_of(0)
    '1970-01-01 00:00:00'
    """
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
