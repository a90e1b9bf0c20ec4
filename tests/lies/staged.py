"""Files of staged rows that lie: a cut takes the rows that were staged, or is refused.

A file is staged as a task stages it, some of its rows are cut to a rest, and others are cut out of that, all from a
disk. In between, a fault gets into the staged file or into the rest.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from spark_throttle.errors import ThrottleError
from spark_throttle.spark.delta.table_files import FileForm
from spark_throttle.spark.move.answer import bits_of
from spark_throttle.spark.move.cutting import Cut, RowsOfFile
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.move.waiting_files import FormerFiles, places_in
from tests.lies import faults
from tests.lies.faults import LyingFiles
from tests.lies.outcomes import Found, Outcome, is_refusal, said

ROWS: Final = 40
_FORM: Final = FileForm(pa.schema([("id", pa.int64()), ("ns", pa.string()), ("text", pa.string())]), {}, (), "zstd")
_KINDS: Final = (*faults.DAMAGES, "another's content", "deleted")


class StagedBench:
    """Two staged files, and a rest of the first."""

    name = "staged files"

    def __init__(self, seed: str) -> None:
        draw = random.Random(seed)
        self._files = LyingFiles()
        with tempfile.TemporaryDirectory() as folder:
            place = StagingPlace(f"{folder}/staged", _FORM, in_table=False)
            self._staged = []
            for _ in range(2):
                texts = ["".join(draw.choices("abcdefgh ", k=12)) for _ in range(ROWS)]
                names = [f"acme/{draw.choice('xyz')}" for _ in range(ROWS)]
                rows = pa.table([draw.sample(range(10**6), ROWS), names, texts], schema=_FORM.schema)
                self._staged.append((place.writer(7).write(rows).path, rows))
            self._cut(place, "rest", self._staged[0][0], np.arange(0, ROWS, 2), has_places=False)
            for path in sorted(Path(place.root).iterdir()):
                self._files[path.name] = path.read_bytes()
        self.truth = self._staged[0][1].take(pa.array(np.arange(0, ROWS, 4))).to_pylist()

    def _cut(self, place: StagingPlace, rest: str, path: str, rows: Any, *, has_places: bool) -> None:
        name = self._staged[0][0]
        wanted = RowsOfFile(
            place.root, path, name, ROWS, None, bits_of(rows, ROWS), rest, has_places=has_places
        )  # fmt: skip
        Cut(((wanted,),), None, place).cut([wanted])

    def fault(self, draw: random.Random) -> Found | None:
        """Inject a fault that is drawn, cut what is left, and return what became of it."""
        files, kind = LyingFiles(self._files.writes), draw.choice(_KINDS)
        is_rest = draw.random() < 0.5
        victim = "rest" if is_rest else self._staged[0][0]
        if faults.inject(draw, files, kind, victim) is None:
            return None
        what = "staged files, " + ("rest" if is_rest else "as staged")
        with tempfile.TemporaryDirectory() as folder:
            place = StagingPlace(f"{folder}/staged", _FORM, in_table=False)
            Path(place.root).mkdir()
            for name in dict.keys(files):
                Path(place.root, name).write_bytes(dict.__getitem__(files, name))
            outcome, detail = self._outcome(place, victim, is_rest=is_rest)
            if outcome == "silent" and kind == "another's content":
                outcome = "told"  # docs/changing-a-job.md: only rests say whose rows they have
        return Found(what, kind, outcome, detail)

    @staticmethod
    def _rows(place: StagingPlace, name: str) -> pa.Table:
        """Return all rows of a file, as one of former columns is read."""
        batches = FormerFiles(place, (name,))([pa.record_batch({"id": [0]})])
        return pa.Table.from_batches(batches).select(_FORM.schema.names)

    def _outcome(self, place: StagingPlace, victim: str, *, is_rest: bool) -> tuple[Outcome, str]:
        wanted = np.arange(0, ROWS, 4)
        try:
            if is_rest:
                places_in(place.root, victim)
            self._rows(place, victim)
            self._cut(place, "again", victim, wanted, has_places=is_rest)
            found = self._rows(place, "again")
        except ThrottleError as error:
            names = (victim, "rows that wait in the queue")
            return ("refused" if is_refusal(error, names) else "crashed"), said(error)
        except Exception as error:  # noqa: BLE001 - what it is, is the question
            return "crashed", said(error)
        if found.to_pylist() != self.truth:
            return "silent", f"{found.to_pylist()[:3]} and not {self.truth[:3]}"
        return "right", ""
