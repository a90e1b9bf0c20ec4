"""Strangers cannot take the server down: each attack over real sockets, on the server as it is started."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_throttle.admin.tokens import TokenFile
from spark_throttle.store.memory_store import MemoryStore
from tests.admin.conftest import ServedApp
from tests.admin.raw_http import answer, asked, connected, request, silent
from tests.admin.server_process import ServerProcess, server_process


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenFile:
    return TokenFile(tmp_path_factory.mktemp("server") / "tokens.json", clock_ms=lambda: 0)


@pytest.fixture(scope="module")
def token(tokens: TokenFile) -> str:
    return tokens.create("ann", "admin")


@pytest.fixture(scope="module")
def server(tokens: TokenFile, token: str) -> Iterator[ServerProcess]:
    """Yield a server that outlives all attacks but those that end it."""
    with server_process(tokens.path.parent, tokens) as started:
        yield started


@pytest.mark.slow
def test_silent_connections_lock_nobody_out(server: ServerProcess, token: str) -> None:
    with ExitStack() as stack:
        silent(stack, server.port, 205)
        assert asked(server.port, request(token)).status == 200


@pytest.mark.slow
def test_hundreds_of_requests_at_once_are_answered(server: ServerProcess, tokens: TokenFile) -> None:
    texts = [tokens.create(f"caller-{i}", "viewer") for i in range(10)]
    with ExitStack() as stack:
        socks = silent(stack, server.port, 700)
        for at, sock in enumerate(socks):
            sock.sendall(request(texts[at % 10]))
        answers = [answer(sock) for sock in socks]
    assert Counter(got.status if got else None for got in answers) == {200: 700}


@pytest.mark.slow
def test_half_a_body_does_not_keep_the_server_from_ending(tmp_path: Path, tokens: TokenFile, token: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(server_process(tmp_path, tokens))
        half = stack.enter_context(connected(server.port))
        half.sendall(request(token, "PUT /admin/v2/resourcegroup/gold HTTP/1.1", "Content-Length: 1000") + b"{")
        assert asked(server.port, request(token)).status == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=5) in {0, -signal.SIGTERM}
        assert "Traceback" not in server.log.read_text()


def test_clock_that_is_stepped_back_lets_callers_in_as_before(serve: Callable[..., ServedApp]) -> None:
    served = serve(MemoryStore(), requests_per_second=1)
    client = served.client()
    for _ in range(6):
        assert client.get("/admin/v2/caller").status_code == 200
    served.clock[0] -= 3_600_000
    for _ in range(10):
        served.monotonic[0] += 1000
        assert client.get("/admin/v2/caller").status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET /" + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000,
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    ],
)
def test_request_that_is_not_http_is_refused_and_its_connection_closed(server: ServerProcess, sent: bytes) -> None:
    got = asked(server.port, sent)
    assert (got.status, got.headers["connection"]) == (400, "close")


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [True, False])
def test_body_with_two_lengths_is_refused(server: ServerProcess, token: str, is_known: bool) -> None:
    smuggled = request(
        token if is_known else None, "PUT /admin/v2/resourcegroup/gold HTTP/1.1",
        "Content-Length: 2", "Transfer-Encoding: chunked",
    ) + b"0\r\n\r\n"  # fmt: skip
    got = asked(server.port, smuggled)
    assert "Transfer-Encoding" in got.problem["detail"]
    assert (got.status, got.headers["connection"]) == (400, "close")


@pytest.mark.slow
def test_bad_chunk_in_the_middle_of_a_request_is_refused(server: ServerProcess, token: str) -> None:
    head = request(token, "PUT /admin/v2/resourcegroup/gold HTTP/1.1", "Transfer-Encoding: chunked")
    assert asked(server.port, head + b"2\r\n{}\r\nnonsense\r\n").status == 400
    assert asked(server.port, request(token)).status == 200
    assert "Traceback" not in server.log.read_text()
