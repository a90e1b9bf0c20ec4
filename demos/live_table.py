"""The demonstration's view of a running query: a table redrawn in place, or plain lines without a terminal.

It shows what `Throttle.status` reports for the last batch. The final account uses nothing from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from spark_throttle.spark import ScopeStatus, Status

LINE_EVERY_MS = 4000


@dataclass(slots=True)
class GroupView:
    """One resource group: the rates of the last batch, and sums over all batches seen."""

    quota_per_second: float | None = None
    offered_per_second: float = 0.0
    admitted_per_second: float = 0.0
    waiting_messages: int = 0
    waiting_bytes: int = 0
    rejected_messages: int = 0

    def add(self, scope: ScopeStatus, elapsed_seconds: float) -> None:
        """Add a batch that completed `elapsed_seconds` after the previous one."""
        self.quota_per_second = scope.messages_per_second
        self.offered_per_second = scope.offered_messages / elapsed_seconds
        self.admitted_per_second = scope.admitted_messages / elapsed_seconds
        self.waiting_messages = scope.waiting_messages
        self.waiting_bytes = scope.waiting_bytes
        self.rejected_messages += scope.rejected_messages

    @property
    def backlog_seconds(self) -> float | None:
        """Time that the quota needs for the backlog; `None` without a quota, or with a quota of 0."""
        return self.waiting_messages / self.quota_per_second if self.quota_per_second else None


@dataclass(slots=True)
class LiveTable:
    """A context manager that displays batches as they complete.

    On a terminal the table is redrawn in place; otherwise a line is printed every few batches.
    """

    groups: list[str]
    console: Console = field(default_factory=lambda: Console(stderr=True))
    _views: dict[str, GroupView] = field(init=False)
    _batch_time_ms: int = field(init=False, default=0)
    _line_time_ms: int = field(init=False, default=0)
    _live: Live | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._views = {group: GroupView() for group in self.groups}

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(self.render(""), console=self.console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, status: Status, title: str) -> None:
        """Add the status if it is of a new batch, and refresh the display."""
        if status.batch_time_ms > self._batch_time_ms:
            self._take(status)
            if self._live is None and status.batch_time_ms >= self._line_time_ms + LINE_EVERY_MS:
                self._line_time_ms = status.batch_time_ms
                self.console.print(f"{title}: {self.line()}", soft_wrap=True, highlight=False)
        if self._live is not None:
            self._live.update(self.render(title))

    def line(self) -> str:
        """Return the table as one line."""
        return "; ".join(
            f"{name} {view.admitted_per_second:,.0f}/s of {view.offered_per_second:,.0f}/s, "
            f"{view.waiting_messages:,} delayed, {view.rejected_messages:,} rejected"
            for name, view in self._views.items()
        )

    def render(self, title: str) -> Table:
        """Return the table."""
        table = Table(title=title, title_justify="left", caption="rates of the last batch", caption_justify="left")
        table.add_column("resource group")
        for column in ("offered /s", "admitted /s", "quota /s"):
            table.add_column(column, justify="right")
        table.add_column("admitted against quota", width=22)
        for column in ("delayed", "backlog", "rejected in all"):
            table.add_column(column, justify="right")
        for name, view in self._views.items():
            table.add_row(name, *self._cells(view))
        return table

    @staticmethod
    def _cells(view: GroupView) -> tuple[str | ProgressBar, ...]:
        quota = view.quota_per_second
        backlog = "" if view.backlog_seconds is None else f"{view.backlog_seconds:.1f} s, "
        return (
            f"{view.offered_per_second:,.0f}",
            f"{view.admitted_per_second:,.0f}",
            "none" if quota is None else f"{quota:,.0f}",
            ProgressBar(total=quota or 1.0, completed=min(view.admitted_per_second, quota or 0.0), width=20),
            f"{view.waiting_messages:,}",
            f"{backlog}{view.waiting_bytes / 2**20:.1f} MiB",
            f"{view.rejected_messages:,}",
        )

    def _take(self, status: Status) -> None:
        elapsed_ms = status.batch_time_ms - self._batch_time_ms if self._batch_time_ms else 1000
        self._batch_time_ms = status.batch_time_ms
        scopes = status.of_level("resource_group")
        for name, view in self._views.items():
            if name in scopes:
                view.add(scopes[name], elapsed_ms / 1000)
