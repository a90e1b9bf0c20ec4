"""The mark of a batch, which distinguishes a batch that is run again from another batch of the same number.

Spark gives the same numbers again after a checkpoint was put back, and a copy of a checkpoint numbers its batches as
the original does. So the sinks that count batches keep a batch's identity in addition to its number. The identity
covers what the decider reports: the batch time, the epoch and, by namespace, what came, left, was rejected and waits.
All of that is a function of what was logged, so a batch that is run again has the same identity under any release.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.checkpoint.manifest import Manifest
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import CheckpointMismatchError

_KEY: Final = "throttle"
_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class BatchMark:
    """The batch that a sink's commit wrote."""

    query: str
    """The query's name in the sink's transactions."""

    batch: int
    identity: str
    """Digest of what the decider reports of the batch; empty where it is not known."""

    def of_part(self, part: str) -> BatchMark:
        """Return the mark of the same batch in another table of the query."""
        return BatchMark(f"{self.query}/{part}", self.batch, self.identity)

    def to_text(self) -> str:
        """Return the mark as the text that a commit carries."""
        return json.dumps({_KEY: {"query": self.query, "batch": self.batch, "identity": self.identity}})

    def check(self, what: str, newest_batch: int, identity: str | None) -> None:
        """Refuse a sink whose newest batch of the query cannot be this one.

        Parameters
        ----------
        newest_batch
            The newest batch that the sink has of the query.
        identity
            The identity of that batch; `None` where the sink does not know it.

        Raises
        ------
        CheckpointMismatchError
            If the sink's newest batch is later than this one, or is another batch of the same number.
        """
        if newest_batch > self.batch:
            problem = f"already has batch {newest_batch} of this query, which now comes to batch {self.batch}"
        elif newest_batch == self.batch and identity and identity != self.identity:
            problem = f"already has a batch {self.batch} of this query, decided from other rows or at another time"
        else:
            return
        raise CheckpointMismatchError(what, problem, REMEDY)


REMEDY: Final = (
    "if a copy of the checkpoint runs too, stop one of the two and restore nothing; if the checkpoint was put back, "
    "restore the newer one, or put this sink back as well, to before the batches that were undone, and start again"
)


def parse_mark(text: str | None) -> BatchMark | None:
    """Return the mark that a commit carries; `None` if its text is not a mark.

    Examples
    --------
    >>> parse_mark(BatchMark("q", 7, "abc").to_text())
    BatchMark(query='q', batch=7, identity='abc')
    >>> parse_mark("loaded by hand") is None
    True
    """
    try:
        fields = json.loads(text or "")[_KEY]
        return BatchMark(str(fields["query"]), int(fields["batch"]), str(fields["identity"]))
    except (ValueError, KeyError, TypeError):
        return None


def mark_of(manifest: Manifest, batch: int, report: UsageReport | None) -> BatchMark:
    """Return the mark of a batch, by its report."""
    return BatchMark(manifest.query, batch, identity_of(report))


def identity_of(report: UsageReport | None) -> str:
    """Return the identity of a batch."""
    digest = hashlib.sha256()
    if report is not None:
        names = report.names.cast(pa.binary())
        lengths = pc.binary_length(names).cast(pa.int64())
        head = f"{report.epoch} {report.now_ms} {report.invalid_messages} {len(names)};"
        digest.update(head.encode())
        digest.update(lengths.to_numpy(zero_copy_only=False).tobytes())
        digest.update(b"".join(names.to_pylist()))
        for column in (report.offered, report.admitted, report.rejected, report.waiting):
            digest.update(column.astype("<i8").tobytes())
    return digest.hexdigest()[:_DIGITS]
