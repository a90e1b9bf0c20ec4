"""The first batch of a run that rejects more than a tenth of what it decides is told once, with reason and scope.

Rejected rows go to the dead letters, where nobody looks who does not know of them. Afterwards the metrics tell.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from spark_throttle.control.feedback import KeptReport
from spark_throttle.core.batch.reasons import REASONS
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import Dimension
from spark_throttle.core.usage import UsageReport, rejected_by_reason

logger = logging.getLogger(__name__)

_ONE_IN: Final = 10


class RejectionNotice:
    """The notice of one run; once it is given, a batch costs nothing."""

    def __init__(self) -> None:
        self._is_given = False

    def look(self, kept: Sequence[KeptReport]) -> None:
        """Look at the reports on a batch, and log a warning if they are the first to reject more than a tenth."""
        if self._is_given:
            return
        rejected = sum(report.head.rejected_messages for report in kept)
        admitted = sum(report.head.admitted_messages for report in kept)
        if rejected == 0 or rejected * _ONE_IN <= rejected + admitted:
            return
        self._is_given, reports = True, [report.whole() for report in kept]
        logger.warning(
            "a batch rejected %d of the %d messages that it decided%s%s; they are in the dead letters, and later "
            "batches are not told here: docs/dead-letters.md",
            rejected, rejected + admitted, _by_reason(reports), _by_namespace(reports),
        )  # fmt: skip


def _by_reason(reports: Sequence[UsageReport]) -> str:
    """Return the reason of most rejections, as the end of a sentence."""
    total = rejected_by_reason(reports)
    most = int(total.argmax())
    return f", {int(total[most])} of them for {REASONS[most]}"


def _by_namespace(reports: Sequence[UsageReport]) -> str:
    """Return the namespace with most rejections, as the end of a sentence; nothing if no namespace has any."""
    rejected = [report.rejected[:, Dimension.MESSAGES] for report in reports]
    at = max(range(len(reports)), key=lambda place: rejected[place].max(initial=0))
    if rejected[at].max(initial=0) == 0:
        return ""
    most = int(rejected[at].argmax())
    name = shown(reports[at].names.slice(most, 1)).to_pylist()[0]
    return f", most in the namespace {name} ({int(rejected[at][most])})"
