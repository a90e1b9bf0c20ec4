"""The hint says of which tenants rows stayed behind in the last batch, so that rows of theirs are staged apart.

It decides nothing. Where it is wrong, or gone, or older than the batch, a file is cut that need not have been. A
tenant's name stands for all of its namespaces: the tails of names differ from batch to batch, and a file of the table
is cut by the first row that stays.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.quota import Bools, Dimension
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory

_FILE: Final = "staging-hint.json"
_MOST_TENANTS: Final = 10_000
_AS_BYTES: Final = "surrogateescape"


def short_tenants(report: UsageReport) -> list[str]:
    """Return the tenants of which rows waited after a batch, or were rejected in it.

    A name that is no UTF-8 is given as Python gives such a file's: with a surrogate for each byte that is no text.
    """
    stayed = (report.waiting + report.rejected)[:, Dimension.MESSAGES] > 0
    found: set[bytes] = set(_tenants(report.names.filter(pa.array(stayed))).to_pylist())
    return [name.decode(errors=_AS_BYTES) for name in sorted(found)[:_MOST_TENANTS]]


@dataclass(frozen=True, slots=True)
class Hint:
    """What a stager is told."""

    turn: int = 0
    """The decider's next turn, more or less: the name of a file says with it when the file may be swept if no state has
    it. A batch that is run again has the number of the turn after it, if it had come so far."""

    tenants: tuple[str, ...] = ()
    """The tenants of whose rows some will probably stay."""


def write_hint(directory: Directory, hint: Hint) -> None:
    """Write the hint for the next batch."""
    directory.write(_FILE, json.dumps(asdict(hint)).encode())


def read_hint(directory: Directory) -> Hint:
    """Return the hint that was written last; one that says nothing if it is gone, or cannot be read."""
    content = directory.read(_FILE)
    if content is None:
        return Hint()
    try:
        found = json.loads(content)
        return Hint(int(found["turn"]), tuple(map(str, found["tenants"])))
    except (ValueError, KeyError, TypeError):
        return Hint()


def of_tenants(namespaces: pa.Array, tenants: Sequence[str]) -> Bools:
    """Return which namespaces are of one of the tenants.

    Examples
    --------
    >>> of_tenants(pa.array(["a/x", "ab/x", None, "b"]), ["a", "b"]).tolist()
    [True, False, False, True]
    """
    coded = namespaces.dictionary_encode()
    named = pa.array([tenant.encode(errors=_AS_BYTES) for tenant in tenants], pa.binary())
    is_one = pc.is_in(_tenants(coded.dictionary), value_set=named).take(coded.indices)
    found: Bools = is_one.fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003 - pyarrow's
    return found.astype(np.bool_)


def _tenants(namespaces: pa.Array) -> pa.Array:
    """Return the tenants as bytes: a name may be no UTF-8."""
    return pc.list_element(pc.split_pattern(namespaces.cast(pa.string()), "/", max_splits=1), 0).cast(pa.binary())
