"""The copies of waiting rows as files: written when rows join the queue, found and counted when they leave.

Of what `waiting_rows` accounts for, this module has the bytes. Both sides are checked without a query: of
what Spark wrote, the places are summed, and of what Spark is about to read, each place is looked for. The copy of a
whole file must have its length.

Rows in parts lie in one folder for each part. Beside them, `_parts.arrow` has the part of each row, by its file and its
position in the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import LongType, StructField, StructType

from spark_throttle.core.quota import Int64s
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.spark.references.extents import ROW_BITS, SourceFile
from spark_throttle.spark.references.selection import FileRows, as_table, distinct_files, file_numbers, positions
from spark_throttle.spark.references.waiting_rows import CopyKind, WaitingFolder
from spark_throttle.spark.rows.frames import decode, encode_whole

FILE, ROW, PART = "__throttle_file", "__throttle_row", "__throttle_part"
"""Names of the columns of a row's place, the number of its file and its position in the file, and of its part."""

_PARTS_FILE: Final = "_parts.arrow"
_PARQUET: Final = ".parquet"
_MOST_COPIES_AT_ONCE: Final = 8
_MESSAGES_OF_A_TASK: Final = 100_000


def shuffle_tasks(messages: int) -> int:
    """Return to how many tasks rows are shuffled.

    Without a number Spark takes the session's, for three rows as for millions: it adapts no plan of a query with state.

    Examples
    --------
    >>> shuffle_tasks(3), shuffle_tasks(100_001)
    (1, 2)
    """
    return max(1, -(-messages // _MESSAGES_OF_A_TASK))


@dataclass(frozen=True, slots=True)
class WaitingCopies:
    """The copies of one query's waiting rows.

    Its methods run on the driver, once per attempt at a batch.
    """

    directory: Directory
    """The control directory."""

    def clear(self, folder: WaitingFolder) -> None:
        """Delete copies of the other kind, which a batch of the same number made before the checkpoint was put back."""
        other = CopyKind.ROWS if folder.kind == CopyKind.FILES else CopyKind.FILES
        self.directory.delete_folder(replace(folder, kind=other).name)

    def keep(self, system: fs.FileSystem, files: Sequence[tuple[SourceFile, str]], folder: str) -> None:
        """Copy files, given with their paths, to a folder, each under its number; delete the others there."""
        with ThreadPoolExecutor(_MOST_COPIES_AT_ONCE) as pool:
            copies = (pool.submit(self.directory.copy, system, path, _kept(folder, file)) for file, path in files)
            for copy in list(copies):
                copy.result()
        kept = {self.kept(file, folder) for file, _ in files}
        for name in self.directory.names(folder):
            if f"{folder}/{name}" not in kept:
                self.directory.delete(f"{folder}/{name}")

    def kept(self, file: SourceFile, folder: str) -> str:
        """Return the name of the copy of a whole file.

        Raises
        ------
        DamagedError
            If it is gone, or has another length.
        """
        name = _kept(folder, file)
        found_bytes = self.directory.size_bytes(name)
        if found_bytes != file.size_bytes:
            what = f"the copy {self.directory.shown(name)} of the file {file.path}, of which rows wait,"
            is_gone = found_bytes is None
            problem = "it is gone" if is_gone else f"it has {found_bytes} bytes, and the file had {file.size_bytes}"
            raise DamagedError(what, problem, RESTORE_CHECKPOINT)
        return name

    def write(self, rows: DataFrame, folder: str, parts: Sequence[FileRows] = ()) -> tuple[int, int, int]:
        """Write rows to a folder, over what an earlier attempt wrote, and return the sums of the places in it.

        Parameters
        ----------
        rows
            The rows, with their places and, if there are parts, their part.
        parts
            The part of each row, from 1 on.

        Returns
        -------
        The number of rows, the sum of the numbers of their files, and the sum of their positions.
        """
        writer = rows.write
        if parts:
            messages = sum(int(np.count_nonzero(file.values)) for file in parts)
            writer = rows.repartition(shuffle_tasks(messages), F.col(PART)).write.partitionBy(PART)
        path = f"{self.directory.location.rstrip('/')}/{folder}"
        writer.mode("overwrite").parquet(path)
        if parts:
            self.directory.write(f"{folder}/{_PARTS_FILE}", encode_whole(as_table(parts, [""] * len(parts))))
        names = [f"{folder}/{name}" for name in self.directory.names_below(folder) if name.endswith(_PARQUET)]
        messages = files = places = 0
        for batch in self._dataset(names).to_batches(columns=[FILE, ROW], use_threads=False):
            messages += batch.num_rows
            files += pc.sum(batch.column(FILE)).as_py() or 0
            places += pc.sum(batch.column(ROW)).as_py() or 0
        return messages, files, places

    def names(self, folder: WaitingFolder, places: Int64s) -> list[str]:
        """Return the names of the files in which rows at these places lie.

        Raises
        ------
        DamagedError
            If they lack one of the rows, or have it twice.
        """
        folders = [folder.name]
        if folder.parts:
            folders = [f"{folder.name}/{PART}={part}" for part in self._wanted_parts(folder, places)]
        names = [f"{each}/{name}" for each in folders for name in self.directory.names(each) if name.endswith(_PARQUET)]
        self._check(folder, names, places)
        return names

    def _check(self, folder: WaitingFolder, names: Sequence[str], places: Int64s) -> None:
        what = f"the copies of waiting rows {self.directory.shown(folder.name)}"
        if not names:
            raise DamagedError(what, "they are gone", RESTORE_CHECKPOINT)
        try:
            rows = self._dataset(names).to_table(columns=[FILE, ROW], use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise DamagedError(what, f"they cannot be read ({error})", RESTORE_CHECKPOINT) from error
        copied = (rows.column(FILE).to_numpy() << ROW_BITS) + rows.column(ROW).to_numpy()
        found = copied[np.isin(copied, places)]
        if len(found) != len(places) or len(np.unique(found)) != len(places):
            problem = f"of the {len(places)} rows that leave, they have {len(np.unique(found))} ({len(found)} copies)"
            raise DamagedError(what, problem, RESTORE_CHECKPOINT)

    def _wanted_parts(self, folder: WaitingFolder, places: Int64s) -> list[int]:
        name = f"{folder.name}/{_PARTS_FILE}"
        content, what = self.directory.read(name), f"the parts of waiting rows {self.directory.shown(name)}"
        if content is None:
            raise DamagedError(what, "they are gone", RESTORE_CHECKPOINT)
        try:
            table = decode(content)
            lists, numbers = table.column("values").combine_chunks(), table.column("number").to_pylist()
            part_of = {number: lists[at].values.to_numpy() for at, number in enumerate(numbers)}
            rows = ((part_of[each], positions(places[file_numbers(places) == each])) for each in distinct_files(places))
            found = np.concatenate([parts[at] for parts, at in rows])
        except (pa.ArrowException, OSError, LookupError) as error:
            raise DamagedError(what, f"they cannot be read ({error})", RESTORE_CHECKPOINT) from error
        if not np.all((found > 0) & (found <= folder.parts)):
            problem = f"they name {np.unique(found).tolist()}, and there are {folder.parts}"
            raise DamagedError(what, problem, RESTORE_CHECKPOINT)
        return np.unique(found).tolist()

    def _dataset(self, names: Sequence[str]) -> ds.Dataset:
        system, _ = file_system(self.directory.location)
        return ds.dataset([self.directory.path(name) for name in names], filesystem=system, format="parquet")


def with_places(schema: StructType) -> StructType:
    """Return the schema of copies of rows: that of the source, and the columns of the rows' places."""
    return StructType([*schema, *(StructField(name, LongType()) for name in (FILE, ROW))])


def _kept(folder: str, file: SourceFile) -> str:
    """Return the name of the copy of a file: after a checkpoint was put back, its number may be that of another one."""
    identity = repr((file.path, file.size_bytes, file.modified_ms)).encode()
    return f"{folder}/{file.number}-{hashlib.sha256(identity).hexdigest()[:8]}{_PARQUET}"
