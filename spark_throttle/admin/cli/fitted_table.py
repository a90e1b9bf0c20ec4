"""Tables that fit the terminal: long texts are folded, and where that is not enough, each row becomes a list."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

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
