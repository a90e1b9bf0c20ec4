"""Tables of commands in terminals of several widths."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from spark_throttle.admin.cli.output import FittedTable

COLUMNS = [("level", False), ("scope", False), ("quota/s", True), ("offered/s", True)]
ROWS = [
    ("resource group", "a-group-with-a-long-name", "1,000 / 4 MiB", "2,000 / 8 MiB"),
    ("namespace", "acme/orders", "5 / 1 KiB", ""),
]


def printed(width: int) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(FittedTable(COLUMNS, ROWS))
    return stream.getvalue()


@pytest.mark.parametrize("width", range(16, 100))
def test_table_is_no_wider_than_the_terminal_and_loses_nothing(width: int) -> None:
    text = printed(width)
    assert max(map(cell_len, text.splitlines())) <= width
    for part in ("1,000", "MiB", "2,000", "group", "5"):
        assert part in text
    for row in ROWS:
        for cell in row:
            assert all(character in text for character in cell)


def test_wide_terminal_has_a_line_for_each_row() -> None:
    assert len(printed(100).splitlines()) == 3


def test_pairs_of_numbers_are_folded_only_at_the_slash() -> None:
    lines = printed(50).splitlines()
    assert lines[0].split() == [head for head, _ in COLUMNS]
    assert any("1,000 /" in line for line in lines)
    assert any(line.rstrip().endswith("8 MiB") for line in lines)


def test_narrow_terminal_has_a_list_for_each_row_without_its_empty_cells() -> None:
    assert printed(40).splitlines()[-4:] == [
        line.ljust(len("offered/s") + 2 + len("a-group-with-a-long-name"))
        for line in ("", "level      namespace", "scope      acme/orders", "quota/s    5 / 1 KiB")
    ]


LIKE_MARKUP = ["a\\", "a\\\\", "[red]a\\", "[/]", "a[/red]", ":smile:", "\\[b]", "[@click=app.bell]x"]


@pytest.mark.parametrize("is_number", [False, True])
def test_cells_are_shown_as_they_are(is_number: bool) -> None:
    stream = io.StringIO()
    rows = [(text, "1") for text in LIKE_MARKUP]
    Console(file=stream, width=60).print(FittedTable([("name", is_number), ("revision", True)], rows))
    assert [line.split()[0] for line in stream.getvalue().splitlines()[1:]] == LIKE_MARKUP


def test_cells_of_a_list_are_shown_as_they_are() -> None:
    stream = io.StringIO()
    rows = [(text, "1", "") for text in LIKE_MARKUP]
    Console(file=stream, width=30).print(FittedTable([("name", False), ("revision", True), ("n" * 10, True)], rows))
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert [line[1] for line in lines if line[:1] == ["name"]] == LIKE_MARKUP
