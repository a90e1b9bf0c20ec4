"""Stores that lie: a few hundred faults here, ``make lies`` for many; and without a check, faults are silent."""

from __future__ import annotations

import logging
import random
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory, read_block, write_block
from spark_throttle.record import Within, of_json, to_json
from spark_throttle.store.delta import rows
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.file import history
from spark_throttle.store.file.file_store import FileStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from spark_throttle.testing import SimulatedJob
from tests.lies.outcomes import FAULTS, Tally
from tests.lies.run import main, run
from tests.lies.stores import file_store


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Say nothing in the log: each fault would."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_no_store_that_lies_is_believed() -> None:
    tally = run(140, 1)
    assert not tally.examples
    assert tally.by_outcome()["refused"] > 50
    assert tally.by_outcome()["right"] > 10


def test_the_last_line_of_a_run_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--faults", "0"]) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith(
            '{"seed": 1, "faults": 0, "refused": 0, "right": 0, "unread": 0, "told": 0, "silent": 0, "crashed": 0, '
        )
    )


def found(bench: Any, faults: int, *, until: str | None = None) -> Tally:
    """Inject so many faults, or until there is one of an outcome."""
    draw, tally = random.Random(7), Tally()
    while tally.faults < faults and until not in {outcome for _, _, outcome in tally.examples}:
        each = bench.fault(draw)
        if each is not None:
            tally.add(each)
    return tally


@pytest.mark.slow
def test_without_its_checksum_a_record_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_throttle.record.checksum_of", lambda _: None)
    note = to_json(Within(1, 4096))
    assert of_json(Within, note.replace(b"4096", b"4097"), "it") == Within(1, 4097)
    monkeypatch.undo()
    assert not FAULTS.isdisjoint(outcome for _, _, outcome in believed("spark_throttle.record.zlib", crc32=_nothing))


def _nothing(_data: object, _before: int = 0) -> int:
    return 0


def believed(where: str, **named: Any) -> set[tuple[str, str, Any]]:
    """Return the bad outcomes of records while a checksum says nothing."""
    from tests.lies.records import RecordBench  # it loads every record

    with mock.patch(where, mock.Mock(spec=zlib, **named)):
        return set(found(RecordBench(""), 300).examples)


@pytest.mark.slow
def test_without_its_checksum_a_commit_is_believed() -> None:
    with mock.patch.object(history, "_checksum", return_value=0):
        assert "silent" in {outcome for _, _, outcome in found(file_store(""), 800, until="silent").examples}


def test_entry_of_a_history_that_was_altered_is_refused(tmp_path: Path) -> None:
    service = PolicyService(FileStore.create(tmp_path / "p.yaml"), clock_ms=lambda: 0)
    for rate in (1, 2):
        service.put("tenant", "acme", {"publish": {"messages_per_second": rate}}, Author("ann"))
    with closing(sqlite3.connect(tmp_path / "p.yaml.history")) as pages:
        pages.execute("UPDATE entries SET body = replace(body, '1', '9') WHERE revision = 1")
        pages.commit()
    with pytest.raises(DamagedError, match="revision 1 is not what was written"):
        FileStore(tmp_path / "p.yaml").check_whole()


def test_row_of_a_delta_store_that_is_not_what_was_written_is_refused(tmp_path: Path) -> None:
    store = DeltaStore.create(str(tmp_path / "store"))
    with mock.patch.object(rows, "checksum", return_value=1):
        PolicyService(store, clock_ms=lambda: 0).put("tenant", "acme", {}, Author("ann"))
    store = DeltaStore(str(tmp_path / "store"))
    with pytest.raises(DamagedError, match=r"the checksum of tenant acme of revision 1 is not the one .*; restore it"):
        list(store.scan())
    with pytest.raises(DamagedError, match="the checksum of revision 1 is not the one that was written with it"):
        store.history()


def test_note_whose_field_was_altered_is_refused() -> None:
    """A manifest of another name would let sinks take again what they have."""
    note = to_json(Within(1, 4096))
    with pytest.raises(DamagedError, match="it is damaged: its checksum is"):
        of_json(Within, note.replace(b"4096", b"4097"), "it")


def test_note_that_is_written_by_hand_needs_no_checksum() -> None:
    assert of_json(Within, b'{"format": 1, "least": 1, "most": 9}', "it") == Within(1, 9)


def test_block_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path))
    write_block(directory, "policies/a", Within(1, 2))
    content = directory.read("policies/a")
    assert content is not None
    directory.write("policies/b", content)
    assert read_block(directory, "policies/a", Within) == Within(1, 2)
    with pytest.raises(DamagedError, match="policies/b is damaged: the checksum"):
        read_block(directory, "policies/b", Within)


TIMED = {"version": 1, "tenants": {"c": {"publish": {"request_percentage": 10, "burst_seconds": 1}}}}


def timed_job() -> SimulatedJob:
    job = SimulatedJob(TIMED, cost_ns=lambda rows: {"c/x": 10**8 * len(rows)} if rows else {})
    for _ in range(4):
        job.offer([("c/x", 10)] * 3)
        job.trigger()
    return job


def go_on(job: SimulatedJob) -> None:
    job.restart()
    job.trigger()


def test_control_directory_that_was_put_back_to_before_its_last_report_is_refused() -> None:
    """Its newest epoch is there, and what the batch of that epoch used would be charged to nobody."""
    job = timed_job()
    for name in [name for name in job.checkpoint.control if name.startswith("batches/000000000003")]:
        del job.checkpoint.control[name]
    job.offer([("c/x", 10)])
    with pytest.raises(DamagedError, match=r"the report of the batch of epoch 4 is gone; restore it"):
        go_on(job)


def test_epoch_in_the_place_of_another_is_refused() -> None:
    job = timed_job()
    *_, before, last = sorted(name for name in job.checkpoint.control if name.startswith("epochs/"))
    job.checkpoint.control[last] = job.checkpoint.control[before]
    with pytest.raises(DamagedError, match=f"{last} is damaged: its content does not belong to its name"):
        go_on(job)


def test_report_in_the_place_of_another_is_refused() -> None:
    job = timed_job()
    *_, before, last = sorted(name for name in job.checkpoint.control if ".report." in name)
    job.checkpoint.control[last] = job.checkpoint.control[before]
    with pytest.raises(DamagedError, match=f"{last} is damaged: it is of a batch at"):
        go_on(job)
