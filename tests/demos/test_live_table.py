"""The demonstration's table shows what the status says, in place or as lines."""

from __future__ import annotations

import io

from rich.console import Console

from demos.live_table import LiveTable
from spark_throttle.spark import ScopeStatus, Status


def scope(name: str, *, level: str = "resource_group", quota: float | None = 100.0, rejected: int = 0) -> ScopeStatus:
    return ScopeStatus(
        level=level,
        scope=name,
        offered_messages=300,
        offered_bytes=3000,
        admitted_messages=200,
        admitted_bytes=2000,
        rejected_messages=rejected,
        rejected_bytes=10 * rejected,
        waiting_messages=50,
        waiting_bytes=2**20,
        observed_messages=0,
        messages_per_second=quota,
        bytes_per_second=None,
    )


def status(batch_time_ms: int, *scopes: ScopeStatus) -> Status:
    return Status(batch_id=7, batch_time_ms=batch_time_ms, epoch=1, revision="r", scopes=scopes)


def table_on(*, terminal: bool, groups: tuple[str, ...] = ("gold", "free")) -> tuple[LiveTable, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=140, color_system=None)
    return LiveTable(list(groups), console), text


def rendered(table: LiveTable) -> str:
    text = io.StringIO()
    Console(file=text, width=160, color_system=None).print(table.render("draining"))
    return text.getvalue()


def test_rates_are_those_of_the_last_batch_and_rejections_add_up() -> None:
    table, _ = table_on(terminal=False)
    table.show(status(10_000, scope("gold", rejected=5)), "offering")
    table.show(status(12_000, scope("gold", rejected=7), scope("gold", level="tenant", rejected=99)), "offering")
    line = next(line for line in rendered(table).splitlines() if "gold" in line)
    assert [cell.strip() for cell in line.strip("│").split("│") if "━" not in cell] == [
        "gold",
        "150",
        "100",
        "100",
        "50",
        "0.5 s, 1.0 MiB",
        "12",
    ]


def test_batch_is_counted_once_however_often_it_is_shown() -> None:
    table, _ = table_on(terminal=False)
    for _ in range(3):
        table.show(status(10_000, scope("gold", rejected=5)), "offering")
    assert "5 rejected" in table.line()


def test_group_without_a_quota_says_so() -> None:
    table, _ = table_on(terminal=False)
    table.show(status(10_000, scope("gold", quota=None), scope("free", quota=0.0)), "offering")
    gold, free = (line for line in rendered(table).splitlines() if "gold" in line or "free" in line)
    assert "none" in gold
    assert "1.0 MiB" in free


def test_without_a_terminal_there_is_a_line_every_four_seconds() -> None:
    table, text = table_on(terminal=False)
    with table:
        table.show(Status(-1, 0, 0, "", ()), "starting")
        for second in range(11, 20):
            table.show(status(1000 * second, scope("gold"), scope("free")), f"offering {second}")
    lines = text.getvalue().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["offering 11", "offering 15", "offering 19"]
    assert lines[0] == (
        "offering 11: gold 200/s of 300/s, 50 delayed, 0 rejected; free 200/s of 300/s, 50 delayed, 0 rejected"
    )


def test_on_a_terminal_the_table_stays_in_place() -> None:
    table, text = table_on(terminal=True)
    with table:
        table.show(status(1000, scope("gold")), "offering")
    assert "admitted against quota" in text.getvalue()
    assert "offering" in text.getvalue()
