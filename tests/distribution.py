"""Which process of pytest runs which tests: those that need a Spark session run in two of four processes.

To start a session costs twelve CPU seconds, and its first queries cost more than those of a JVM that has warmed up. A
module of tests stays in one process, so that what it sets up once is set up once.
"""

from __future__ import annotations

from typing import Any, Final

from xdist.scheduler import LoadScopeScheduling

WITH_SESSION: Final = (
    "tests/crash/",
    "tests/docs/test_snippets.py",
    "tests/integration/",
    "tests/jobs/test_wiring.py",
    "tests/notebooks/",
    "tests/recovery/",
    "tests/spark/references/test_row_condition.py",
    "tests/spark/rows/test_worker_heap.py",
)
"""Where tests are that need the session; `tests.conftest` refuses such a test elsewhere."""

_PROCESSES_WITH_SESSION: Final = 2


def needs_session(place: str) -> bool:
    """Return whether tests at a place, from the root of the repository on, may need the session."""
    return place.startswith(WITH_SESSION)


class FewSessions(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out modules in their order: to some processes first those that need a session, to the others no such."""

    def _assign_work_unit(self, node: Any) -> None:
        place = self._next_for(node)
        if place is not None:
            self.workqueue.move_to_end(place, last=False)
            super()._assign_work_unit(node)

    def _reschedule(self, node: Any) -> None:
        if not node.shutting_down and self._next_for(node) is None:
            node.shutdown()
        else:
            super()._reschedule(node)

    def _next_for(self, node: Any) -> str | None:
        living = [each for each in self.nodes if not each.shutting_down]
        has_session = node in living[:_PROCESSES_WITH_SESSION]
        suitable = (place for place in self.workqueue if needs_session(place) == has_session)
        return next(suitable, next(iter(self.workqueue), None) if has_session else None)
