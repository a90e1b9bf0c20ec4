"""The first batch of a run that rejects more than a tenth of what it decides is told once, with reason and scope.

Rejected rows go to the dead letters, where nobody looks who does not know of them. Afterwards the metrics tell.
"""

from __future__ import annotations

import logging
from typing import Final

import numpy as np

from spark_throttle.control.feedback import KeptReport
from spark_throttle.core.batch.decisions import REASONS
from spark_throttle.core.names.shown_text import shown
from spark_throttle.core.quota import Dimension
from spark_throttle.core.usage import UsageReport

logger = logging.getLogger(__name__)

_ONE_IN: Final = 10


class RejectionNotice:
    """The notice of one run; once it is given, a batch costs nothing."""

    def __init__(self) -> None:
        self._is_given = False

    def look(self, kept: KeptReport) -> None:
        """Look at the report on a batch, and log a warning if it is the first to reject more than a tenth."""
        rejected, admitted = kept.head.rejected_messages, kept.head.admitted_messages
        if self._is_given or rejected == 0 or rejected * _ONE_IN <= rejected + admitted:
            return
        self._is_given, report = True, kept.whole()
        logger.warning(
            "a batch rejected %d of the %d messages that it decided%s%s; they are in the dead letters, and later "
            "batches are not told here: docs/sending.md",
            rejected, rejected + admitted, _by_reason(report), _by_namespace(report),
        )  # fmt: skip


def _by_reason(report: UsageReport) -> str:
    """Return the reason of most rejections, as the end of a sentence."""
    total = np.array(report.rejected_by_reason)
    most = int(total.argmax())
    return f", {int(total[most])} of them for {REASONS[most]}"


def _by_namespace(report: UsageReport) -> str:
    """Return the namespace with most rejections, as the end of a sentence; nothing if no namespace has any."""
    rejected = report.rejected[:, Dimension.MESSAGES]
    if rejected.max(initial=0) == 0:
        return ""
    most = int(rejected.argmax())
    return f", most in the namespace {shown(report.names.slice(most, 1)).to_pylist()[0]} ({int(rejected[most])})"
