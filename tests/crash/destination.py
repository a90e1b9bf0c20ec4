"""Where the crash program's job sends, if its sink is paced: a real HTTP server, which outlives every kill.

It takes each key once, whatever comes again under it. At times that are drawn from the seed it refuses every call, with
429 or 503. The account counts what it took: the rows of a batch are written where other sinks have them.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests.crash.policies import AMPLE, text_of
from tests.receiver import Arrival, receiver

PACED: Final = "paced"
ADDRESS: Final = "receiver"
"""The file of a run's directory that names the server."""

PUSHES_BACK: Final = "pushes-back"
"""The file that says that the function of a job says "not now" to some batches."""

DRAINING: Final = "draining"
"""The file that says that the job is to end once all is drained."""

_LONGEST_SECONDS: Final = 4.0
"""For so long it takes calls, or refuses them, at most."""


def with_destination(text: str) -> str:
    """Return a document whose groups with a rate stand for destinations; the last policies have none.

    Examples
    --------
    >>> from tests.crash.policies import FIRST
    >>> document = yaml.safe_load(with_destination(text_of(FIRST)))
    >>> document["resource_groups"]["later"]["destination"]
    {'open_after_seconds': 1}
    """
    document = yaml.safe_load(text)
    for group in () if document == AMPLE else document["resource_groups"].values():
        if group.get("publish", {}).get("messages_per_second"):
            group["destination"] = {"open_after_seconds": 1}
    return text_of(document)


class Destination:
    """The server, and what it took."""

    def __init__(self, root: Path, seed: int) -> None:
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._until = 0.0
        self._status = 200
        self._is_over = False
        self._taken: dict[str, list[dict[str, Any]]] = {}
        self._stack = ExitStack()
        self._record = self._stack.enter_context(receiver())
        self._record.answer = self._answer
        self.refused = 0
        """How many calls were."""

        (root / ADDRESS).write_text(self._record.url)

    def take_all(self) -> None:
        """Refuse nothing more."""
        self._is_over = True

    def stop(self) -> None:
        """Answer nobody any more."""
        self._stack.close()

    def keep(self, root: Path) -> None:
        """Write the rows that were taken, a folder for each batch.

        In JSON a text that is no UTF-8 has another character in its place: the row is then written as it was offered.
        """
        self._record.by_key()  # which fails where a key comes with other bytes
        # A row's number is its place among all.
        offered = pa.concat_tables([pq.read_table(path) for path in sorted((root / "source").glob("*.parquet"))])
        batches = defaultdict[str, list[dict[str, Any]]](list)
        for key, rows in self._taken.items():
            batches[key.split("/")[1]] += rows
        for batch, rows in batches.items():
            table = offered.take(pa.array([row["id"] for row in rows], pa.int64()))
            assert [_shown(row) for row in _in_bytes(table)] == rows, f"batch {batch} sent other rows than were offered"
            folder = root / "admitted" / f"batch={batch}"
            folder.mkdir(parents=True)
            pq.write_table(table, folder / "rows.parquet")

    def _answer(self, arrival: Arrival) -> int:
        with self._lock:
            now = time.monotonic()
            while self._until < now:
                self._until = max(self._until, now - _LONGEST_SECONDS) + self._dice.uniform(0.1, _LONGEST_SECONDS)
                self._status = self._dice.choice((429, 503)) if self._status == 200 else 200
            if self._status != 200 and not self._is_over:
                self.refused += 1
                return self._status
            self._taken.setdefault(arrival.key, arrival.rows)
            return 200


def _in_bytes(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows with bytes in place of text."""
    kinds = [pa.binary() if pa.types.is_string(field.type) else field.type for field in table.schema]
    chunks = [[chunk.view(kind) for chunk in column.chunks] for column, kind in zip(table.columns, kinds, strict=True)]
    columns = [pa.chunked_array(each, kind) for each, kind in zip(chunks, kinds, strict=True)]
    return pa.table(columns, names=table.column_names).to_pylist()


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as JSON has it."""
    return {name: value.decode(errors="replace") if isinstance(value, bytes) else value for name, value in row.items()}
