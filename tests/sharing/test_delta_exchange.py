"""A Delta exchange stays small and quick however long jobs run, and jobs that create it at once share one table."""

from __future__ import annotations

import json
import logging
import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from spark_throttle.sharing import delta_exchange
from spark_throttle.sharing.delta_exchange import _ATTEMPTS, DeltaExchange, _committed_ns
from spark_throttle.sharing.register import ShareRegister
from tests.sharing.test_register import Publisher

NO_IDS = np.zeros(0, dtype=np.int64)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def opened_tables(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every opening of a table adds its location."""
    opened: list[str] = []

    class Counted(DeltaTable):
        def __init__(self, location: str) -> None:
            opened.append(location)
            super().__init__(location)

    monkeypatch.setattr(delta_exchange, "DeltaTable", Counted)
    return opened


def age(files: list[Path], minutes: int) -> None:
    """Make files look as if they had been written that much earlier."""
    for file in files:
        os.utime(file, (file.stat().st_mtime - 60 * minutes,) * 2)


def log_files(location: str) -> list[Path]:
    return sorted(Path(location, "_delta_log").glob("*.json")) + sorted(Path(location, "_delta_log").glob("*.parquet"))


def data_files(location: str) -> list[Path]:
    return sorted(Path(location).glob("name=*/*.parquet"))


# One snapshot per visit


def test_visit_opens_the_table_once(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = DeltaExchange(location)
    for member in "abcde":
        Publisher(exchange, member).publish({})
    opened = opened_tables(monkeypatch)
    visit = ShareRegister(exchange, "a", lambda: 0, 100).read(NO_IDS)
    assert sorted(visit.reports) == ["a", "b", "c", "d", "e"]
    assert len(opened) == 1


def test_objects_read_after_names_are_of_one_moment_and_a_second_read_looks_again(location: str) -> None:
    own, other = DeltaExchange(location), DeltaExchange(location)
    for name in "ab":
        own.write(name, b"1")
    assert own.names() == ["a", "b"]
    for name in "abc":
        other.write(name, b"2")
    assert [own.read(name) for name in "ab"] == [b"1", b"1"]
    assert [own.read(name) for name in "abc"] == [b"2", b"2", b"2"]


def test_job_reads_what_it_wrote_or_removed_after_names(location: str) -> None:
    exchange = DeltaExchange(location)
    for name in "ab":
        exchange.write(name, b"1")
    exchange.names()
    exchange.write("a", b"2")
    assert exchange.read("a") == b"2"
    exchange.names()
    exchange.delete("a")
    assert exchange.read("a") is None
    assert exchange.names() == ["b"]


def test_object_whose_file_is_gone_is_read_as_it_is_now_or_said_to_be_lost(location: str) -> None:
    exchange, other = DeltaExchange(location), DeltaExchange(location)
    for name in "ab":
        exchange.write(name, b"1")
    exchange.names()
    old = data_files(location)
    other.write("a", b"2")
    for file in old:
        file.unlink()
    assert exchange.read("a") == b"2"
    with pytest.raises(FileNotFoundError):
        exchange.read("b")


def test_table_that_is_removed_and_made_again_is_noticed(location: str, tmp_path: Path) -> None:
    exchange = DeltaExchange(location)
    for number in range(3):
        exchange.write("a", str(number).encode())
    exchange.names()
    Path(location).rename(tmp_path / "elsewhere")
    assert (exchange.names(), exchange.read("a")) == ([], None)
    DeltaExchange(location).write("b", b"1")
    exchange.write("c", b"2")
    assert exchange.names() == ["b", "c"]


@pytest.mark.parametrize("lost", [_ATTEMPTS - 1, _ATTEMPTS])
def test_commit_that_loses_a_race_is_tried_again_and_not_for_ever(location: str, lost: int) -> None:
    exchange, tries = DeltaExchange(location), list[DeltaTable]()

    def change(table: DeltaTable) -> None:
        tries.append(table)
        if len(tries) <= lost:
            raise CommitFailedError("another was first")

    with pytest.raises(CommitFailedError) if lost == _ATTEMPTS else nullcontext():
        exchange._committed(change)
    assert len(tries) == _ATTEMPTS


@pytest.mark.parametrize("name", ["nobody's", "a b%2F:é", "x" * 200])
def test_any_name_is_written_read_and_removed(location: str, name: str) -> None:
    exchange = DeltaExchange(location)
    exchange.write("other", b"1")
    exchange.write(name, b"2")
    assert exchange.names() == sorted(["other", name])
    assert exchange.read(name) == b"2"
    exchange.delete(name)
    assert exchange.names() == ["other"]


# Cleaning


@pytest.mark.slow
def test_log_is_short_after_cleaning_when_its_entries_are_old(location: str) -> None:
    exchange, behind = DeltaExchange(location), DeltaExchange(location)
    for number in range(45):
        exchange.write(f"{number % 3}", str(number).encode())
    names = behind.names()
    exchange.write("0", b"45")
    age(log_files(location), minutes=11)
    age(data_files(location), minutes=61)
    exchange.write("1", b"46")
    exchange._clean()
    exchange.write("2", b"47")
    assert len(log_files(location)) < 30
    assert names == behind.names()
    for each in (exchange, behind, DeltaExchange(location)):
        assert [each.read(name) for name in "012"] == [b"45", b"46", b"47"]


@pytest.mark.slow
def test_reader_that_is_behind_reads_on_while_others_clean(location: str) -> None:
    exchange, behind = DeltaExchange(location), DeltaExchange(location)
    for name in "012":
        exchange.write(name, b"1")
    behind.names()
    for _ in range(45):
        exchange.write("0", b"2")
    age(log_files(location), minutes=11)
    age(data_files(location), minutes=61)
    exchange.write("0", b"3")
    exchange._clean()
    assert len(log_files(location)) < 30
    assert [behind.read(name) for name in "012"] == [b"1", b"1", b"1"]
    assert [behind.read(name) for name in "012"] == [b"3", b"1", b"1"]


@pytest.mark.slow
def test_log_is_cleaned_although_no_job_runs_for_long(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_exchange, "_COMMITS_A_CLEANING", 40)
    for number in range(90):
        age(log_files(location)[:-1], minutes=11)
        DeltaExchange(location).write("a", str(number).encode())
    assert len(log_files(location)) < 40
    assert DeltaExchange(location).read("a") == b"89"


@pytest.mark.slow
def test_table_opens_from_a_checkpoint_that_is_at_most_twenty_commits_old(location: str) -> None:
    for number in range(59):
        DeltaExchange(location).write("a", str(number).encode())
    last = json.loads(Path(location, "_delta_log", "_last_checkpoint").read_text())
    assert DeltaTable(location).version() - last["version"] < 20


def test_cleaning_removes_files_that_no_log_entry_names_once_they_are_an_hour_old(location: str) -> None:
    exchange = DeltaExchange(location)
    exchange.write("a", b"1")
    (file,) = data_files(location)
    strays = [file.with_name("old.parquet"), file.with_name("young.parquet")]
    for stray, minutes in zip(strays, [61, 59], strict=True):
        stray.write_bytes(b"of a commit that lost a race")
        age([stray], minutes)
    exchange._clean()
    assert [stray.exists() for stray in strays] == [False, True]
    assert exchange.read("a") == b"1"


@pytest.mark.slow
def test_job_whose_clock_is_far_ahead_removes_nothing(location: str, caplog: pytest.LogCaptureFixture) -> None:
    exchange = DeltaExchange(location, clock_ns=lambda: 2**62)
    for number in range(25):
        exchange.write("a", str(number).encode())
    files = data_files(location)
    age(log_files(location) + files, minutes=61)
    exchange.write("a", b"25")
    with caplog.at_level(logging.WARNING):
        exchange._clean()
    assert len(log_files(location)) > 25
    assert set(files) < set(data_files(location))
    ahead_s = (2**62 - _committed_ns(DeltaTable(location))) // 10**9
    assert f"{ahead_s} s ahead of the storage's" in caplog.text


def test_properties_that_a_user_set_are_kept(location: str) -> None:
    exchange = DeltaExchange(location)
    exchange.write("a", b"0")
    DeltaTable(location).alter.set_table_properties({"delta.logRetentionDuration": "interval 2 days"})
    exchange._clean()
    assert DeltaTable(location).metadata().configuration == {
        **delta_exchange._PROPERTIES,
        "delta.logRetentionDuration": "interval 2 days",
    }


@pytest.mark.slow
def test_write_succeeds_when_the_log_cannot_be_cleaned(
    location: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: DeltaTable) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(DeltaTable, "create_checkpoint", fail)
    exchange = DeltaExchange(location)
    with caplog.at_level(logging.WARNING):
        for number in range(21):
            exchange.write("a", str(number).encode())
    assert exchange.read("a") == b"20"
    assert "could not be removed: OSError: disk full" in caplog.text


# Jobs that create the table at once


def test_job_that_writes_while_another_creates_the_table_keeps_its_object(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other job comes just before the rows are written, after the first has looked for the table."""
    rivals = [DeltaExchange(location)]

    def late(*arguments: object, **settings: object) -> None:
        if rivals:
            rivals.pop().write("rival", b"1")
        write_deltalake(*arguments, **settings)  # type: ignore[call-overload]

    monkeypatch.setattr(delta_exchange, "write_deltalake", late)
    DeltaExchange(location).write("own", b"2")
    assert [DeltaExchange(location).read(name) for name in ("own", "rival")] == [b"2", b"1"]


def test_table_that_another_job_creates_first_is_used(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other job comes just before the table is created, after the first has looked for it."""
    rivals, create = [DeltaExchange(location)], DeltaTable.create

    def late(*arguments: object, **settings: object) -> DeltaTable:
        if rivals:
            rivals.pop().write("rival", b"1")
        return create(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaTable, "create", late)
    DeltaExchange(location).write("own", b"2")
    assert rivals == []
    assert DeltaExchange(location).names() == ["own", "rival"]
