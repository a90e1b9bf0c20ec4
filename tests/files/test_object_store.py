"""Objects that are replaced while they are read are read whole, and a store is asked no more than it must be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from spark_throttle.files.storage import Directory
from spark_throttle.sharing.exchange import FileExchange
from tests.loopback import serving
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


_BEGUN = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
_COMPLETED = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"


@contextmanager
def listening() -> Iterator[tuple[int, list[str]]]:
    """Yield the port of a server that takes every file, and the requests that came to it."""
    came: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            self._answer(b"")

        def do_GET(self) -> None:
            prefix = parse_qs(urlsplit(self.path).query)["prefix"][0]
            put = [line.partition("/lake/")[2] for line in came if line.startswith("PUT")]
            found = (f"<Contents><Key>{key}</Key></Contents>" for key in put if key.startswith(prefix))
            self._answer(f"<ListBucketResult>{''.join(found)}</ListBucketResult>".encode())

        def do_POST(self) -> None:
            self._answer(_BEGUN if self.path.endswith("uploads") else _COMPLETED)

        def _answer(self, content: bytes) -> None:
            came.append(f"{self.command} {self.path}")
            self._read()
            self.send_response(200)
            self.send_header("ETag", '"e"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _read(self) -> None:
            if self.headers.get("Transfer-Encoding") != "chunked":
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                return
            while size_bytes := int(self.rfile.readline(), 16):
                self.rfile.read(size_bytes + 2)
            self.rfile.readline()

        def log_message(self, *_args: object) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield port, came


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def at(port: int) -> str:
    return f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_file_is_written_to_s3_by_one_put(scheme: str) -> None:
    with listening() as (port, came):
        Directory(f"{scheme}://lake/control{at(port)}").write("epochs/000-a", b"epoch")
    assert came == ["PUT /lake/control/epochs/000-a"]


def test_exchange_on_s3_names_what_jobs_left_there() -> None:
    with listening() as (port, _):
        exchange = FileExchange(f"s3://lake/exchange{at(port)}")
        exchange.write("job.head", b"report")
        assert exchange.names() == ["job.head"]
