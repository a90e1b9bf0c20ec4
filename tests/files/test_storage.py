"""Files are written whole, the manifest binds a checkpoint, and a library's error is told in one line."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs

from spark_throttle.checkpoint.manifest import bind, next_line, read_manifest, rename
from spark_throttle.control.epochs import read_epoch
from spark_throttle.control.reports import kept_reports, newest_batch, read_reports, write_report
from spark_throttle.core.usage import pack_usage
from spark_throttle.errors import ConfigurationError, DamagedError, StoreUnavailableError, UnknownVersionError
from spark_throttle.files.storage import Directory, one_line
from spark_throttle.store.delta.delta_store import DeltaStore
from tests.core.reports import usage_of_two
from tests.loopback import closed_port


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(str(tmp_path / "control"))


def test_written_file_is_read_back_and_leaves_no_temporary_one(directory: Directory) -> None:
    for content in (b"first", b"", b"second" * 1_000):
        directory.write("epochs/000-a", content)
        assert directory.read("epochs/000-a") == content
        assert [path.name for path in Path(directory.path("epochs")).iterdir()] == ["000-a"]


def test_two_threads_may_write_one_file_at_once(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Directory._write

    def interrupted(self: Directory, path: str, content: bytes) -> None:
        write(self, path, content)
        if content == b"first":
            other = threading.Thread(target=directory.write, args=("status", b"second"))
            other.start()
            other.join()

    directory.write("status", b"before")
    monkeypatch.setattr(Directory, "_write", interrupted)
    directory.write("status", b"first")
    assert directory.read("status") == b"first"
    assert directory.names(".") == ["status"]


def test_write_that_fails_leaves_what_was_there(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    directory.write("epochs/000-a", b"whole")

    def half(self: Directory, path: str, content: bytes) -> None:
        Path(path).write_bytes(content[:2])
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(Directory, "_write", half)
    with pytest.raises(OSError, match="no space"):
        directory.write("epochs/000-a", b"other")
    assert directory.read("epochs/000-a") == b"whole"
    assert [path.name for path in Path(directory.path("epochs")).iterdir()] == ["000-a"]


def test_names_are_sorted_and_hide_files_that_are_not_whole(directory: Directory) -> None:
    for name in ("b", "a", "c"):
        directory.write(f"epochs/{name}", b"")
    Path(directory.path("epochs/.d.123.tmp")).write_bytes(b"half")
    assert directory.names("epochs") == ["a", "b", "c"]


def test_what_is_not_there_is_nothing_and_deleting_it_no_error(directory: Directory) -> None:
    assert directory.read("epochs/000-a") is None
    assert directory.names("epochs") == []
    directory.delete("epochs/000-a")
    directory.write("epochs/000-a", b"x")
    directory.delete("epochs/000-a")
    assert directory.read("epochs/000-a") is None


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_uri_of_a_local_directory_is_that_directory(tmp_path: Path, scheme: str) -> None:
    Directory(f"{scheme}{tmp_path / 'a b'}").write("manifest.json", b"{}")
    assert (tmp_path / "a b" / "manifest.json").read_bytes() == b"{}"


def test_relative_path_is_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory = Directory("ckpt/control")
    monkeypatch.chdir("/")
    directory.write("x", b"1")
    assert (tmp_path / "ckpt" / "control" / "x").read_bytes() == b"1"


def test_dbfs_is_read_through_its_mount() -> None:
    assert Directory("dbfs:/checkpoints/a").path("x") == "/dbfs/checkpoints/a/x"
    assert Directory("dbfs:/Volumes/main/lake/a").path("x") == "/Volumes/main/lake/a/x"


def test_other_file_systems_put_files_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_throttle.files.storage.file_system", lambda _: (fs._MockFileSystem(), "bucket/control"))
    directory = Directory("s3://bucket/control")
    directory.write("epochs/000-b", b"b")
    directory.write("epochs/000-a", b"a")
    assert directory.names("epochs") == ["000-a", "000-b"]
    assert directory.names("batches") == []
    assert directory.read("epochs/000-b") == b"b"


@pytest.mark.parametrize("location", ["s3a://bucket/control", "s3a://key:secret@bucket/control?region=eu-central-1"])
def test_messages_name_a_file_of_a_store_by_its_scheme_and_without_keys(
    monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    monkeypatch.setattr("spark_throttle.files.storage.file_system", lambda _: (fs._MockFileSystem(), "bucket/control"))
    directory = Directory(location)
    directory.write("epochs/000-a", b"no epoch")
    assert directory.shown("epochs/000-a") == "s3a://bucket/control/epochs/000-a"
    with pytest.raises(DamagedError, match="the epoch file s3a://bucket/control/epochs/000-a"):
        read_epoch(directory, "000-a")


@pytest.mark.parametrize("is_local", [True, False])
def test_part_of_a_file_is_shorter_where_the_file_ends(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    if not is_local:
        store = fs._MockFileSystem()
        monkeypatch.setattr("spark_throttle.files.storage.file_system", lambda _: (store, "bucket/control"))
        directory = Directory("s3://bucket/control")
    directory.write("queue/0/1-a", b"0123456789")
    parts = [directory.read_part("queue/0/1-a", first, 4) for first in (0, 3, 8, 10, 20)]
    assert parts == [b"0123", b"3456", b"89", b"", b""]
    assert directory.read_part("queue/0/2-a", 0, 4) is None
    assert directory.read_part("queue/9/2-a", 0, 4) is None


# Manifest


def test_first_start_binds_and_later_starts_find_the_same_query(directory: Directory) -> None:
    assert read_manifest(directory) is None
    first = bind(directory, direction="publish")
    assert bind(directory, direction="publish") == first
    assert len(first.query) == 32
    other = bind(Directory(f"{directory.location}2"), direction="publish")
    assert other.query != first.query


def test_the_other_direction_is_refused(directory: Directory) -> None:
    bind(directory, direction="publish")
    with pytest.raises(ConfigurationError, match="set direction='publish', or start a new checkpoint"):
        bind(directory, direction="dispatch")


def test_manifest_of_a_newer_version_is_refused_by_its_number(directory: Directory) -> None:
    directory.write("manifest.json", json.dumps({"format": 3, "news": True}).encode())
    with pytest.raises(UnknownVersionError, match=r"manifest\.json has format version 3 .* up to 1"):
        bind(directory, direction="publish")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"7", b"null", b"\xff\xfe", b'{"format": 1}', b'{"format": "x", "query": "q"}']
)
def test_damaged_manifest_is_refused_and_not_replaced(directory: Directory, content: bytes) -> None:
    directory.write("manifest.json", content)
    with pytest.raises(DamagedError, match=r"manifest\.json is damaged"):
        bind(directory, direction="publish")
    assert directory.read("manifest.json") == content


# Reports


def test_reports_come_back_by_batch_in_order(directory: Directory) -> None:
    block = pack_usage(usage_of_two())
    for batch in (10, 9, 11):
        write_report(directory, batch, block)
    assert list(read_reports(directory, after_batch=8)) == [9, 10, 11]
    assert list(read_reports(directory, after_batch=10)) == [11]
    assert newest_batch(directory) == 11


def test_report_of_a_batch_that_was_planned_later_counts_in_place_of_an_earlier_one(directory: Directory) -> None:
    for now_ms in (2_000, 1_000):
        write_report(directory, 9, pack_usage(replace(usage_of_two(), now_ms=now_ms)))
    assert [report.now_ms for report in read_reports(directory, after_batch=8).values()] == [2_000]


@pytest.mark.parametrize("groups", [3, 10_000])
def test_head_of_a_report_is_read_without_the_rest(directory: Directory, groups: int) -> None:
    """Of many groups the head is longer than what is read first."""
    count = 200_000
    numbers = np.arange(count) * 2**20 % 1_000_003
    pairs, scopes = numbers.repeat(2).reshape(-1, 2), np.arange(2 * groups).reshape(-1, 2)
    many = replace(
        usage_of_two(), names=pa.array([f"t/{n}" for n in range(count)]), tenant=numbers, group=numbers, weight=numbers,
        offered=pairs, admitted=pairs, rejected=pairs, waiting=pairs, demand=pairs, observed_messages=numbers,
        delayed_ms=numbers, shared_micro=scopes,
    )  # fmt: skip
    write_report(directory, 7, pack_usage(many))
    read = []

    class Counting(Directory):
        def read(self, name: str) -> bytes | None:
            content = super().read(name)
            read.append(len(content or b""))
            return content

        def read_part(self, name: str, first_byte: int, size_bytes: int) -> bytes | None:
            content = super().read_part(name, first_byte, size_bytes)
            read.append(len(content or b""))
            return content

    (report,) = kept_reports(Counting(directory.location), after_batch=-1).values()
    assert report.head.shared_micro.tolist() == many.shared_micro.tolist()
    assert (report.head.has_moved, report.head.is_waiting) == (True, True)
    assert report.head.admitted_messages == int(numbers.sum())
    assert sum(read) < 200_000
    assert report.whole().names == many.names
    assert sum(read) > 1_000_000
    before = sum(read)
    report.whole()
    assert sum(read) == before


def test_directory_without_reports_has_none(directory: Directory) -> None:
    assert newest_batch(directory) == -1
    assert read_reports(directory, after_batch=-1) == {}


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[: len(b) // 2] + b"?" + b[len(b) // 2 + 1 :]])
def test_damaged_report_names_its_file(directory: Directory, damage: Callable[[bytes], bytes]) -> None:
    write_report(directory, 3, pack_usage(usage_of_two()))
    (path,) = Path(directory.path("batches")).iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedError, match=rf"the report {path}"):
        read_reports(directory, after_batch=-1)


def test_manifest_that_is_missing_is_not_written_anew_where_an_offset_names_an_epoch(directory: Directory) -> None:
    with pytest.raises(DamagedError, match=r"manifest\.json is missing"):
        bind(directory, direction="publish", may_begin=False)
    assert read_manifest(directory) is None


def test_query_is_renamed_and_found_under_its_new_name(directory: Directory) -> None:
    first = bind(directory, direction="publish")
    renamed = rename(directory, first, next_line(first.query))
    assert bind(directory, direction="publish") == renamed
    assert renamed == replace(first, query=f"{first.query}-1")


def test_file_system_that_pyarrow_does_not_know_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match=r"wasbs://lake/ckpt is on a file system .* pyarrow knows \(file:, s3:"
    ):
        Directory("wasbs://lake/ckpt")


def test_wrapped_causes_of_an_error_are_joined_as_they_were() -> None:
    error = OSError(
        "Kernel error -> Generic S3 error\n    \x1b[31m↳\x1b[0m Error performing GET http://lake in 6s, max_retries\n"
        "     \x1b[31m↳\x1b[0m 10 - HTTP error\n      \x1b[31m↳\x1b[0m Connection refused (os error 111)\n"
    )
    assert one_line(error) == (
        "Kernel error -> Generic S3 error: Error performing GET http://lake in 6s, max_retries: 10 - HTTP error: "
        "Connection refused (os error 111)"
    )


def test_other_lines_are_left_out_and_a_long_line_keeps_both_ends() -> None:
    assert one_line(ValueError("no such key\nat line 3")) == "no such key"
    line = one_line(ValueError("a" + "-" * 5_000 + "z"))
    assert len(line) < 1_010
    assert line[0] + line[-1] == "az"


def test_store_that_refuses_the_connection_and_one_without_credentials_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    options = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{closed_port()}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "here",
        "max_retries": "0",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    with pytest.raises(StoreUnavailableError, match=r"Generic S3 error: .*: Connection refused \(os error 111\)$"):
        DeltaStore("s3://lake/policies", storage_options=options)
    no_credentials = OSError("Generic S3 error\n ↳ Error performing PUT http://169.254.169.254/latest/api/token\n")
    assert one_line(no_credentials).endswith("where this process runs)")
