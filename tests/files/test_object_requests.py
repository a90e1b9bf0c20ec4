"""What is asked of an S3 store for files of the control directory and of an exchange."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from spark_throttle.files.storage import Directory
from spark_throttle.sharing.exchange import FileExchange
from tests.loopback import serving

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
