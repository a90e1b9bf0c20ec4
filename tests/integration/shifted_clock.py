"""A wall clock that a test sets: for the control source and the decider, in whatever process they run.

By how much it is moved stands in the file `shift` beside the policy file, in milliseconds. Spark's log has the time of
a batch unmoved: the file `moved-` and that time says by how much the batch's clock was moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_throttle.checkpoint.offset_log import batch_time_ms
from spark_throttle.control.clock import Clock
from spark_throttle.files.storage import Directory
from spark_throttle.spark.move.decider import DigestDecider
from spark_throttle.spark.sources.control_source import ThrottleControlReader, ThrottleControlSource
from spark_throttle.spark.start import start_check

if TYPE_CHECKING:
    import pandas as pd
    import pytest
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.types import StructType


def install(monkeypatch: pytest.MonkeyPatch, policies: Path) -> Callable[[int], object]:
    """Put the queries that follow `policies` on a clock of their own, and return what moves it."""
    shift = policies.with_name("shift")

    def move(by_ms: int) -> None:
        """Set the shift in one step, for the query reads it at any time."""
        written = shift.with_name("shift.tmp")
        written.write_text(str(by_ms))
        written.rename(shift)

    move(0)

    def make_decider(*arguments: Any, **named: Any) -> Any:
        decider = DigestDecider(*arguments, **named)

        def run(key: tuple[Any, ...], pieces: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
            by_ms = int(shift.read_text())
            shift.with_name(f"moved-{state.getCurrentProcessingTimeMs()}").write_text(str(by_ms))
            moved: Any = _MovedState(state, by_ms)
            yield from decider(key, pieces, moved)

        return run

    monkeypatch.setattr("spark_throttle.spark.pipeline.ThrottleControlSource", _MovedControlSource)
    monkeypatch.setattr("spark_throttle.spark.pipeline.DigestDecider", make_decider)
    return move


class _MovedControlSource(ThrottleControlSource):
    def streamReader(self, schema: StructType) -> ThrottleControlReader:  # noqa: N802 - Spark's name
        shift = Path(self.options["policyFile"]).with_name("shift")
        clock = Clock.system()
        moved = replace(clock, wall_ms=lambda: clock.wall_ms() + int(shift.read_text()))

        def time_ms(checkpoint: Directory, batch: int) -> int | None:
            logged_ms = batch_time_ms(checkpoint, batch)
            by_ms = shift.with_name(f"moved-{logged_ms}")
            return logged_ms + int(by_ms.read_text()) if logged_ms is not None and by_ms.exists() else logged_ms

        # Spark calls this in a process that it starts for the query.
        vars(start_check)["batch_time_ms"] = time_ms
        return ThrottleControlReader(dict(self.options), clock=moved)


class _MovedState:
    """The decider's state at another time."""

    def __init__(self, state: GroupState, by_ms: int) -> None:
        self._state = state
        self._by_ms = by_ms

    @property
    def exists(self) -> bool:
        return self._state.exists

    @property
    def get(self) -> Any:
        return self._state.get

    def update(self, value: Any) -> None:
        self._state.update(value)

    def getCurrentProcessingTimeMs(self) -> int:  # noqa: N802 - Spark's name
        return self._state.getCurrentProcessingTimeMs() + self._by_ms
