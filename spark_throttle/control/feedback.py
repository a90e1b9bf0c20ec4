"""The decider's usage reports of every batch, on their way back to the control plane.

The reports of a batch are in files named by its number, written before the batch is committed. A batch that is run
again writes the same bytes under the same names, because its decisions are a function of what was logged.

A batch without reports is one for which no epoch was due and which brought no row: it moved nothing, and nothing of it
is lost. It has no file.

Once the next epoch but one is made, a batch's reports are put away in another folder, in one compressed file: a
checkpoint that is put back to the batch needs them again, to make the epoch after it. Every batch lists the first
folder, and none the second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_throttle.control.batch_files import batch_files, batch_of
from spark_throttle.control.charges import bring_back_charges, forget_charges, forget_charges_put_away
from spark_throttle.core.arithmetic.packing import pack, unpack
from spark_throttle.core.codec import unpack_usage
from spark_throttle.core.usage import UsageReport
from spark_throttle.files.storage import Directory

_FOLDER, _PUT_AWAY = "feedback", "settled"
_KIND, _VERSION = "fdbk", 1
_PUT_AWAY_KIND, _PUT_AWAY_VERSION = "fdpa", 1


def write_reports(directory: Directory, batch: int, reports: list[bytes], *, part: str = "all") -> None:
    """Write the packed reports of a batch; without any, remove those that an undone batch of the same number left.

    Parameters
    ----------
    part
        Distinguishes the files of one batch.
    """
    name = f"{_FOLDER}/{batch:012d}.{part}"
    if reports:
        directory.write(name, pack(_KIND, _VERSION, {"reports": reports}))
    else:
        directory.delete(name)


def report_files(directory: Directory) -> list[str]:
    """Return the names of the files of reports that were not put away, in the order of their batches."""
    return batch_files(directory, _FOLDER)


@dataclass(frozen=True, slots=True, eq=False)
class PackedReports:
    """What a file of reports holds; nothing if it was deleted meanwhile."""

    content: bytes | None
    reports: list[memoryview]
    """The packed reports, as parts of `content`."""

    @classmethod
    def of(cls, content: bytes | None, what: str) -> PackedReports:
        """Return the reports in the content of a file."""
        return cls(content, [] if content is None else unpack(content, _KIND, _VERSION, what).views("reports"))


def read_blocks(directory: Directory, files: Iterable[str]) -> dict[str, PackedReports]:
    """Return what files of reports hold, by name."""
    return {name: _blocks_of(directory, name) for name in files}


def unpacked(directory: Directory, blocks: Mapping[str, PackedReports]) -> dict[int, list[UsageReport]]:
    """Return the packed reports of files as reports, of all batches that have any, in the order of the batches."""
    found: dict[int, list[UsageReport]] = defaultdict(list)
    for name in sorted(blocks):
        what = _what(directory, name, _FOLDER)
        found[batch_of(name)] += [unpack_usage(report, what) for report in blocks[name].reports]
    return {batch: reports for batch, reports in sorted(found.items()) if reports}


def read_reports(directory: Directory, *, after_batch: int) -> dict[int, list[UsageReport]]:
    """Return the reports of all batches after `after_batch` that have any, in the order of the batches."""
    files = batch_files(directory, _FOLDER, from_batch=after_batch + 1)
    return unpacked(directory, read_blocks(directory, files))


def newest_reports(directory: Directory) -> tuple[int, list[UsageReport]]:
    """Return the newest batch that reported, and its reports; -1 and no reports before the first."""
    newest, found = -1, list[UsageReport]()
    for name in reversed(batch_files(directory, _FOLDER)):
        if found and batch_of(name) != newest:
            break
        newest, found = batch_of(name), [*_reports_of(directory, name), *found]
    return (newest, found) if found else (-1, [])


def reports_of(directory: Directory, batch: int) -> list[UsageReport]:
    """Return the reports of one batch, also if they were put away; none if it moved nothing, or if they are gone."""
    return _of_batch(directory, batch, _FOLDER) or _of_batch(directory, batch, _PUT_AWAY)


def time_before(directory: Directory, batch: int) -> int | None:
    """Return the batch time, in ms, of the newest batch before `batch` that reported; `None` if its report is gone."""
    for name in reversed(batch_files(directory, _FOLDER)):
        if batch_of(name) < batch:
            reports = _reports_of(directory, name)
            if reports:
                return reports[0].now_ms
    return None


def newest_batch(directory: Directory, files: Sequence[str] | None = None) -> int:
    """Return the number of the newest batch that has a file; -1 if none has.

    Parameters
    ----------
    files
        The files of reports, if they were listed already.
    """
    names = (report_files(directory) if files is None else files) or batch_files(directory, _PUT_AWAY)
    return batch_of(names[-1]) if names else -1


def forget_reports(directory: Directory, *, from_batch: int) -> None:
    """Delete the reports of `from_batch` and later batches, and the charges of these batches."""
    forget_charges(directory, from_batch=from_batch)
    for folder in (_FOLDER, _PUT_AWAY):
        for name in batch_files(directory, folder, from_batch=from_batch):
            directory.delete(f"{folder}/{name}")


def forget_undone(directory: Directory, newest: int, time_of: Callable[[int], int | None]) -> list[int]:
    """Delete the reports of undone batches; return those batches whose numbers other batches have in Spark's log.

    A report holds its batch's time, which tells it from the report of another batch of that number. Two histories of a
    checkpoint agree up to the batch at which they part, so the search goes back to the first report that fits.

    Parameters
    ----------
    newest
        The newest batch in Spark's log.
    time_of
        Returns the time of a batch by Spark's log, in ms; `None` where the log does not have it.
    """
    forget_reports(directory, from_batch=newest + 1)
    others = []
    batches = {batch_of(name) for folder in (_FOLDER, _PUT_AWAY) for name in batch_files(directory, folder)}
    for batch in sorted(batches, reverse=True):
        logged_ms = time_of(batch)
        reports = _of_batch(directory, batch, _FOLDER) + _of_batch(directory, batch, _PUT_AWAY)
        if logged_ms is None or (reports and all(report.now_ms == logged_ms for report in reports)):
            break
        forget_reports(directory, from_batch=batch)
        others += [batch] if reports else []
    return others


def put_away(
    directory: Directory,
    *,
    before_batch: int,
    found: Mapping[str, PackedReports] | None = None,
    may_be_away: bool = True,
) -> list[str]:
    """Put away the reports of batches before `before_batch`, those of a batch in one file; return the files' names.

    Parameters
    ----------
    found
        What all files of reports hold, by name, if they were read already.
    may_be_away
        Whether an earlier run may have put some of these batches away, and not have deleted all of their files.
    """
    if found is None:
        found = read_blocks(directory, [name for name in report_files(directory) if batch_of(name) < before_batch])
    names = [name for name in sorted(found) if batch_of(name) < before_batch]
    blocks: dict[int, list[PackedReports]] = defaultdict(list)
    for name in names:
        blocks[batch_of(name)] += [found[name]] if found[name].reports else []
    away = set(batch_files(directory, _PUT_AWAY)) if names and may_be_away else set()
    for batch, files in blocks.items():
        file, reports = f"{batch:012d}", [report for each in files for report in each.reports]
        if reports and not (file in away and _is_rest(reports, _blocks_of(directory, file, _PUT_AWAY).reports)):
            block = files[0].content if len(files) == 1 else None
            if block is None:
                block = pack(_KIND, _VERSION, {"reports": [bytes(report) for report in reports]})
            directory.write(f"{_PUT_AWAY}/{file}", _compressed(block))
    for name in names:
        directory.delete(f"{_FOLDER}/{name}")
    return names


def bring_back(directory: Directory, *, from_batch: int) -> None:
    """Bring back the reports of `from_batch` and later batches that were put away, and the charges of these batches."""
    bring_back_charges(directory, from_batch=from_batch)
    there: dict[int, list[str]] = defaultdict(list)
    for name in batch_files(directory, _FOLDER):
        there[batch_of(name)].append(name)
    for name in batch_files(directory, _PUT_AWAY, from_batch=from_batch):
        files = there[batch_of(name)]
        reports = [report for file in files for report in _blocks_of(directory, file).reports]
        if not files or _is_rest(reports, _blocks_of(directory, name, _PUT_AWAY).reports):
            for file in files:
                directory.delete(f"{_FOLDER}/{file}")
            block = _block_of(directory, name, _PUT_AWAY)
            if block is not None:
                directory.write(f"{_FOLDER}/{batch_of(name):012d}.all", block)
        directory.delete(f"{_PUT_AWAY}/{name}")


def _is_rest(reports: list[memoryview], put_away: list[memoryview]) -> bool:
    """Return whether reports are what is left of those that were put away: a run was killed while it deleted files.

    Other reports are of a later run of the batch, by a release that does not know what is put away.
    """
    return len(reports) < len(put_away) and set(map(bytes, reports)) <= set(map(bytes, put_away))


def forget_put_away(directory: Directory, *, but_newest: int) -> None:
    """Delete the reports that were put away, but those of the newest batches, and charges likewise."""
    forget_charges_put_away(directory, but_newest=but_newest)
    for name in batch_files(directory, _PUT_AWAY)[:-but_newest]:
        directory.delete(f"{_PUT_AWAY}/{name}")


def _of_batch(directory: Directory, batch: int, folder: str) -> list[UsageReport]:
    """Return the reports of one batch that lie in a folder."""
    names = [name for name in batch_files(directory, folder, from_batch=batch) if batch_of(name) == batch]
    return [report for name in names for report in _reports_of(directory, name, folder)]


def _reports_of(directory: Directory, name: str, folder: str = _FOLDER) -> list[UsageReport]:
    """Return the reports in a file; none if the file was deleted meanwhile."""
    what = _what(directory, name, folder)
    return [unpack_usage(report, what) for report in _blocks_of(directory, name, folder).reports]


def _blocks_of(directory: Directory, name: str, folder: str = _FOLDER) -> PackedReports:
    """Return what a file of reports holds."""
    return PackedReports.of(_block_of(directory, name, folder), _what(directory, name, folder))


def _block_of(directory: Directory, name: str, folder: str) -> bytes | None:
    """Return the block of reports in a file; `None` if there is no such file."""
    content = directory.read(f"{folder}/{name}")
    if content is None or folder == _FOLDER:
        return content
    return _decompressed(content, _what(directory, name, folder))


def _compressed(block: bytes) -> bytes:
    """Return a compressed block of reports."""
    fields = {"zstd": pa.compress(block, codec="zstd", asbytes=True), "size_bytes": len(block)}
    return pack(_PUT_AWAY_KIND, _PUT_AWAY_VERSION, fields)


def _decompressed(content: bytes, what: str) -> bytes:
    """Return the block of reports that was compressed."""
    fields = unpack(content, _PUT_AWAY_KIND, _PUT_AWAY_VERSION, what)
    block: bytes = pa.decompress(fields.raw("zstd"), fields.integer("size_bytes"), codec="zstd", asbytes=True)
    return block


def _what(directory: Directory, name: str, folder: str) -> str:
    return f"the feedback file {directory.shown(f'{folder}/{name}')}"
