"""Objects that are replaced while they are read: a reader sees all of one, or all of the other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_throttle.files.storage import Directory
from tests.object_store import ObjectStore, object_store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    with object_store(monkeypatch) as found:
        yield found


@pytest.mark.parametrize("has_digests", [True, False])
@pytest.mark.parametrize("later", [b"longer than it was", b"short"])
def test_object_that_is_replaced_while_it_is_read_is_whole(
    store: ObjectStore, later: bytes, *, has_digests: bool
) -> None:
    store.has_digests = has_digests
    store.objects["control/status"] = b"some bytes"
    store.next_contents["control/status"] = [later]
    assert Directory("s3://lake/control").read("status") == later


def test_object_that_grows_again_and_again_is_read_until_it_stays(store: ObjectStore) -> None:
    store.objects["control/status"] = b"1"
    store.next_contents["control/status"] = [b"22", b"333", b"4444", b"55555"]
    assert Directory("s3://lake/control").read("status") == b"55555"


@pytest.mark.parametrize(("has_digests", "heads"), [(True, 1), (False, 2)])
def test_object_that_stays_is_read_by_two_requests(store: ObjectStore, heads: int, *, has_digests: bool) -> None:
    store.has_digests = has_digests
    store.objects["control/status.gz"] = b"some bytes, and not those of an archive"
    assert Directory("s3://lake/control").read("status.gz") == b"some bytes, and not those of an archive"
    assert store.counted() == {"HEAD": heads, "GET": 1}


@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [10, 10_000])
def test_read_that_the_store_refuses_for_the_moment_is_made_again(store: ObjectStore, size_bytes: int) -> None:
    store.objects["control/status"] = (
        b"x" * size_bytes
    )  # the refusal is longer than the one, and shorter than the other
    directory = Directory("s3://lake/control")
    store.refused_reads = 2
    assert directory.read("status") == b"x" * size_bytes
    store.refused_reads = 2
    assert directory.read_part("status", 1, 5) == b"x" * 5
    assert store.counted()["GET"] == 6


def test_read_that_the_store_goes_on_refusing_fails(store: ObjectStore) -> None:
    store.objects["control/status"] = b"1"
    store.refused_reads = 1_000
    with pytest.raises(OSError, match="GetObject"):
        Directory("s3://lake/control").read("status")
    assert store.counted() == {"HEAD": 4, "GET": 4}


def test_object_that_is_not_there_is_none(store: ObjectStore) -> None:
    assert Directory("s3://lake/control").read("status") is None
    assert store.counted() == {"HEAD": 1}
