"""The batch that has begun to reach its sinks: noted before the first sink, with the definition that decides it.

Until Spark has logged the batch as committed, it is run again at every start, and a sink that has it skips it. So
before a batch is written, a run checks whether an earlier attempt has begun it, and by which definition. A batch that
failed before its sinks has left no trace here, and may be decided by any definition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.checkpoint.definition import FUNCTION, NOTHING, Definition, shown
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import DefinitionChangedError
from spark_throttle.files.storage import Directory, read_note
from spark_throttle.record import Count, to_json

NAME: Final = "begun.json"
_COUNTS: Final = (
    "(by the stream, by a function that it calls, or by another release) the digest of each namespace's rows"
)


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that may be in its sinks already."""

    batch: Count
    decided: str
    """Digest of how many messages of each namespace came and left; empty where not all of them were counted."""

    definition: Definition


def read_open_batch(directory: Directory) -> OpenBatch | None:
    """Return the newest batch that has begun to reach its sinks; `None` before the first.

    Raises
    ------
    UnknownVersionError
        If a newer release wrote it.
    DamagedError
        If it cannot be read.
    """
    return read_note(directory, NAME, OpenBatch, "the begun batch")


def write_open_batch(directory: Directory, begun: OpenBatch) -> None:
    """Note that a batch is about to reach its sinks."""
    directory.write(NAME, to_json(begun))


def decided_digest(report: UsageReport | None) -> str:
    """Return a digest of how many messages a batch brought, admitted and rejected, by namespace.

    It leaves out sizes: what a decision took from a bucket shows in what was admitted.
    """
    whole = hashlib.sha256()
    if report is not None:
        counts = np.stack([report.offered[:, 0], report.admitted[:, 0], report.rejected[:, 0]], axis=1)
        moved = np.flatnonzero(counts.any(axis=1))
        names = report.names.cast(pa.binary()).take(pa.array(moved))
        order = pc.sort_indices(names)
        whole.update(b"\x00".join(names.take(order).to_pylist()))
        whole.update(counts[moved[order.to_numpy()]].tobytes())
        whole.update(f"{report.invalid_messages}".encode())
    return whole.hexdigest()[:16]


def begin(
    directory: Directory,
    batch: int,
    definition: Definition,
    is_held: Callable[[str, str], bool],
    decided: str = "",
) -> bool:
    """Note that a batch is about to reach its sinks; refuse one that they already hold, decided otherwise.

    Returns whether an earlier attempt has noted a batch of this number.

    Parameters
    ----------
    is_held
        Whether a target (`Definition.targets`: the kind of rows, and where they went) has the batch.

    Raises
    ------
    DefinitionChangedError
        If a target has the batch, and it was decided otherwise or its rows now go elsewhere.
    """
    before = read_open_batch(directory)
    now = OpenBatch(batch, decided, definition)
    if before == now:
        return True
    is_again = before is not None and before.batch == batch
    if before is not None and is_again:
        _refuse_other(directory, before, now, is_held)
    write_open_batch(directory, now)
    return is_again


def _refuse_other(directory: Directory, before: OpenBatch, now: OpenBatch, is_held: Callable[[str, str], bool]) -> None:
    """Refuse an attempt that would decide a batch otherwise than an earlier one did, or send its rows elsewhere.

    Raises
    ------
    DefinitionChangedError
        If a target of the earlier attempt has the batch.
    """
    differences = before.definition.differences(now.definition)
    if not differences and before.decided and now.decided and before.decided != now.decided:
        differences = [(_COUNTS, before.decided, now.decided)]
    targets = before.definition.targets
    if differences and any(is_held(kind, target) for kind, target in targets.items()):
        raise DefinitionChangedError(before.batch, shown(differences), directory.shown(NAME))
    left = [
        (kind, old, new)
        for kind, old, new in before.definition.moved(now.definition)
        if NOTHING not in (old, new) and old != FUNCTION and is_held(kind, old)
    ]
    if left:
        raise DefinitionChangedError(before.batch, shown(left), directory.shown(NAME))
