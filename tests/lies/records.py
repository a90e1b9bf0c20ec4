"""Bytes of every kind of stored record, the decider's state among them, that are not those that were written."""

from __future__ import annotations

import random

from spark_throttle.errors import StoredFormatError
from tests.conformance.test_stored_records import RECORDS, plain, read, written
from tests.lies import faults
from tests.lies.outcomes import Found, said


class RecordBench:
    """One record of each kind (`tests.conformance.test_stored_records`), as it is stored."""

    name = "records"

    def __init__(self, _seed: str) -> None:
        self._stored = {name: written(name) for name in RECORDS}
        self._plain = {name: plain(record) for name, record in RECORDS.items()}

    def fault(self, draw: random.Random) -> Found | None:
        """Damage a record, or give that of another kind for it."""
        name, kind = draw.choice(sorted(self._stored)), draw.choice([*faults.DAMAGES, "another's content"])
        content = self._stored[name]
        found: bytes | None = self._stored[draw.choice(sorted(self._stored.keys() - {name}))]
        if kind in faults.DAMAGES:
            found = faults.damaged(draw, kind, content)
        if found is None:
            return None
        what = f"records, {'notes' if name.endswith('.json') else 'blocks'}"
        try:
            is_same = plain(read(name, found)) == self._plain[name]
        except StoredFormatError:
            return Found(what, kind, "refused")
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            return Found(what, kind, "crashed", f"{name}: {said(error)}")
        return Found(what, kind, "right" if is_same else "silent", f"{name} is read from {found[:200]!r}")
