"""What a batch moved in all, from its reports."""

from __future__ import annotations

from spark_throttle.control.feedback import reports_of
from spark_throttle.core.quota import Dimension
from spark_throttle.files.storage import Directory


def batch_counts(control_path: str, batch: int) -> dict[str, int]:
    """Return what a batch offered, admitted, rejected and left waiting, in messages and bytes; 0 if it moved nothing.

    Examples
    --------
    >>> counts = batch_counts("/there/is/none", 7)
    >>> list(counts)[:2], set(counts.values())
    (['offered_messages', 'offered_bytes'], {0})
    """
    reports = reports_of(Directory(control_path), batch)
    invalid_messages = sum(report.invalid_messages for report in reports)
    counts = {}
    for count in ("offered", "admitted", "rejected", "waiting"):
        for dimension in (Dimension.MESSAGES, Dimension.BYTES):
            total = sum(int(getattr(report, count)[:, dimension].sum()) for report in reports)
            is_invalid = dimension == Dimension.MESSAGES and count in ("offered", "rejected")
            counts[f"{count}_{dimension.name.lower()}"] = total + (invalid_messages if is_invalid else 0)
    return counts
