"""An S3 store in memory, on loopback, that notes the requests that come to it: for pyarrow and for `deltalake`."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from tests.cluster.requests import kind_of
from tests.loopback import serving

BUCKET = "lake"
_WHEN_ISO, _WHEN_SECONDS = "2026-01-01T00:00:00.000Z", 1_767_225_600


@dataclass
class ObjectStore:
    """The objects of the bucket by key, and the requests so far: each its kind, and the key or the listed prefix."""

    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    next_contents: dict[str, list[bytes]] = field(default_factory=dict)
    """By key, what replaces an object after each answer to a HEAD."""

    refused_reads: int = 0
    """How many of the next reads of content are refused, to be tried again."""

    has_digests: bool = True
    """Whether an object's tag is a digest of it."""

    def counted(self, prefix: str = "") -> Counter[str]:
        """Return how many requests of each kind came for keys with a prefix."""
        return Counter(kind for kind, key in self.requests if key.startswith(prefix))

    def remove(self, prefix: str) -> None:
        """Remove all objects whose keys have a prefix, past the server."""
        for key in [key for key in self.objects if key.startswith(prefix)]:
            del self.objects[key]


@contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Yield a store that ``s3://lake/…`` leads to in this process."""
    store = ObjectStore()

    class Handler(_Handler):
        bucket = store

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true", "AWS_EC2_METADATA_DISABLED": "true",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        yield store


class _Handler(BaseHTTPRequestHandler):
    """S3's answers, as far as the two libraries ask for them."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms
    bucket: ObjectStore

    def do_HEAD(self) -> None:
        self._get()

    def do_GET(self) -> None:
        self._get()

    def do_PUT(self) -> None:
        content = self._body()
        with self._noted() as key:
            if self.headers.get("If-None-Match") == "*" and key in self.bucket.objects:
                self._answer(412, _error("PreconditionFailed"))
                return
            self.bucket.objects[key] = content
            self._answer(200, b"", ETag=_etag(content))

    def do_DELETE(self) -> None:
        with self._noted() as key:
            self.bucket.objects.pop(key, None)
            self._answer(204, b"")

    def _get(self) -> None:
        with self._noted() as key:
            if not urlsplit(self.path).path.strip("/").partition("/")[1]:
                self._answer(200, self._listing())
                return
            content = self.bucket.objects.get(key)
            if content is None:
                self._answer(404, _error("NoSuchKey"))
                return
            if self.command == "GET" and self.bucket.refused_reads:
                self.bucket.refused_reads -= 1
                self._answer(503, _error("SlowDown"))
                return
            if self.command == "HEAD" and self.bucket.next_contents.get(key):
                self.bucket.objects[key] = self.bucket.next_contents[key].pop(0)
            tag = _etag(content) if self.bucket.has_digests else f'"{len(content)}-of-a-key"'
            headers = {"ETag": tag, "Last-Modified": formatdate(_WHEN_SECONDS, usegmt=True)}
            if wanted := self.headers.get("Range"):
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start = int(first) if first else max(0, len(content) - int(last))
                end = min(int(last) + 1, len(content)) if first and last else len(content)
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
                self._answer(206, content[start:end], **headers)
                return
            self._answer(200, content, **headers)

    @contextmanager
    def _noted(self) -> Iterator[str]:
        """Note the request, and yield the key, or the prefix, that it is for; the store is this request's meanwhile."""
        split = urlsplit(self.path)
        query = parse_qs(split.query, keep_blank_values=True)
        key = unquote(split.path).lstrip("/").partition("/")[2]
        kind = kind_of(self.command, query, has_key=bool(key), is_copy=False)
        with self.bucket.lock:
            self.bucket.requests.append((kind, key or query.get("prefix", [""])[0]))
            yield key

    def _listing(self) -> bytes:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        coded = quote if "encoding-type" in query else escape
        found, folders = [], set[str]()
        for key, content in sorted(self.bucket.objects.items()):
            if not key.startswith(prefix) or key <= after:
                continue
            folder, is_below, _ = key.removeprefix(prefix).partition(delimiter) if delimiter else ("", "", "")
            if is_below:
                folders.add(f"{prefix}{folder}{delimiter}")
            else:
                found.append(
                    f"<Contents><Key>{coded(key)}</Key><LastModified>{_WHEN_ISO}</LastModified>"
                    f"<ETag>{escape(_etag(content))}</ETag><Size>{len(content)}</Size></Contents>"
                )
        found += [f"<CommonPrefixes><Prefix>{coded(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)]
        head = f"<Name>{BUCKET}</Name><Prefix>{coded(prefix)}</Prefix><KeyCount>{len(found)}</KeyCount>"
        tail = "<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult>{head}{tail}{''.join(found)}</ListBucketResult>".encode()

    def _body(self) -> bytes:
        """Return what was sent, out of the chunks of the connection and those that are signed one by one."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b"".join(_chunks(self.rfile.readline, self.rfile.read))
        else:
            content = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return content
        rest = _Reader(content)
        return b"".join(_chunks(rest.line, rest.read))

    def _answer(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), "Accept-Ranges": "bytes", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_args: object) -> None:
        pass


class _Reader:
    """Bytes that are read from their beginning."""

    def __init__(self, content: bytes) -> None:
        self._rest = content

    def line(self) -> bytes:
        line, _, self._rest = self._rest.partition(b"\n")
        return line + b"\n"

    def read(self, size: int) -> bytes:
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def _chunks(line: Callable[[], bytes], read: Callable[[int], bytes]) -> Iterator[bytes]:
    while size := int(line().partition(b";")[0].strip() or b"0", 16):
        yield read(size)
        line()
    while line().strip():  # trailers
        pass


def _etag(content: bytes) -> str:
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
