"""What a batch moved in all, from its report."""

from __future__ import annotations

from spark_throttle.control.feedback import report_of
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
    report = report_of(Directory(control_path), batch)
    counts = {}
    for count in ("offered", "admitted", "rejected", "waiting"):
        for dimension in (Dimension.MESSAGES, Dimension.BYTES):
            total = 0 if report is None else int(getattr(report, count)[:, dimension].sum())
            if report is not None and dimension == Dimension.MESSAGES and count in ("offered", "rejected"):
                total += report.invalid_messages
            counts[f"{count}_{dimension.name.lower()}"] = total
    return counts
