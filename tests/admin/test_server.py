"""The server's process: its TLS files, its address, and its end."""

from __future__ import annotations

import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_throttle.admin.api.server.admin_server import check_address, check_tls_files, make_server
from spark_throttle.admin.api.server.connections import Connections
from spark_throttle.admin.refusals import Exit, refusal_of
from spark_throttle.admin.tokens import TokenFile
from spark_throttle.command_line.app import app
from spark_throttle.errors import AddressInUseError, ConfigurationError
from tests.admin.browser import listening
from tests.admin.conftest import ServedApp
from tests.admin.raw_http import answer, asked, connected, request, silent
from tests.admin.server_process import server_process

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")


def certificate(folder: Path, name: str = "server", *options: str) -> tuple[str, str]:
    """Make a certificate of localhost; return the paths of it and of its key."""
    key, made = folder / f"{name}-key.pem", folder / f"{name}-cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-keyout", key, "-out", made, "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", *(options or ["-nodes"])],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(made), str(key)


@pytest.mark.slow
@needs_openssl
def test_tls_files_that_cannot_be_used_are_a_clear_error(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    _, other = certificate(tmp_path, "other")
    encrypted = certificate(tmp_path, "encrypted", "-passout", "pass:secret")
    text = tmp_path / "text"
    text.write_text("not PEM")
    check_tls_files(cert, key)
    for pair, said in (
        ((key, cert), "the TLS files are swapped"),
        ((cert, other), "the key is not this certificate's"),
        ((cert, str(text)), "they are not PEM files"),
        ((cert, str(tmp_path / "none")), "there is no file"),
        (encrypted, "is encrypted"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            check_tls_files(*pair)


def test_address_in_use_is_a_clear_error(in_memory: ServedApp) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for listen in (partial(make_server, in_memory.app), check_address):
            with pytest.raises(AddressInUseError, match=f"cannot listen on 127.0.0.1, port {port}: another program"):
                listen(host="127.0.0.1", port=port)
        assert refusal_of(AddressInUseError("127.0.0.1", port)).exit is Exit.UNAVAILABLE


def test_server_that_finds_its_port_taken_makes_no_store_and_exits_with_8(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    TokenFile(tokens, clock_ms=lambda: 0).create("ann", "admin")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        serve = ["serve", "--init", "--store", f"file:{tmp_path / 'p.yaml'}", "--tokens", str(tokens), "--port", port]
        result = CliRunner().invoke(app, serve)
    assert result.exit_code == Exit.UNAVAILABLE
    assert "end it, or give another port (--port)" in result.stderr
    assert "Traceback" not in result.output
    assert not (tmp_path / "p.yaml").exists()


@pytest.mark.slow
@needs_openssl
def test_tls_is_said_to_stay_and_a_handshake_that_never_ends_holds_nothing(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    tokens = TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    text = tokens.create("ann", "admin")
    trusting = ssl.create_default_context(cafile=cert)
    with server_process(tmp_path, tokens, "--tls-certificate", cert, "--tls-key", key) as server:
        silent = connected(server.port)
        for sent, status in ((request(text), 200), (request(None), 401), (b"nonsense\r\n\r\n", 400)):
            with trusting.wrap_socket(connected(server.port), server_hostname="localhost") as sock:
                sock.sendall(sent)
                got = answer(sock)
            assert got is not None
            assert got.status == status
            assert got.headers["strict-transport-security"] == "max-age=31536000"
        assert answer(silent) is None  # in time: the socket waits for 20 s, and the first byte may take 10 s
        silent.close()
        half = connected(server.port)
        server.process.send_signal(signal.SIGTERM)
        # A handshake may take 10 s: the server does not wait for it.
        assert server.process.wait(timeout=9) in {0, -signal.SIGTERM}
        half.close()


_HANGING = """
import asyncio, threading, sys
from spark_throttle.admin.api.server.admin_server import make_server

async def app(scope, receive, send):
    if scope["type"] == "http":
        await asyncio.shield(asyncio.to_thread(hang))

def hang():
    print("asked", flush=True)
    threading.Event().wait()

server = make_server(app, host="127.0.0.1", port=0)
print(server.port, flush=True)
server.run()
"""


@pytest.mark.slow
def test_store_that_never_answers_does_not_keep_the_server_from_ending() -> None:
    with subprocess.Popen([sys.executable, "-c", _HANGING], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            with connected(int(process.stdout.readline())) as sock:
                sock.sendall(request(None))
                assert process.stdout.readline() == b"asked\n"
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=60) in {128 + signal.SIGTERM, -signal.SIGTERM}
        finally:
            process.kill()


@pytest.mark.slow
def test_server_has_fewer_connections_than_the_process_may_open_files(
    in_memory: ServedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (128, 201))
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: raised.append(limits))
    with listening(in_memory.app) as address, ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        first = silent(stack, port, 1)[0]
        assert asked(port, request(in_memory.tokens["viewer"])).status == 200  # the first had to leave for it
        assert answer(first) is None
    assert raised == [(201, 201)]


class Peers:
    """Connections of a registry, whose other ends a test holds."""

    def __init__(self, most: int, most_per_peer: int) -> None:
        self.connections = Connections(most, most_per_peer)
        self.ends: dict[tuple[str, int], socket.socket] = {}

    def come(self, host: str, port: int, sent: bytes = b"") -> bool:
        ours, theirs = socket.socketpair()
        theirs.sendall(sent)
        self.ends[host, port] = theirs
        return self.connections.admit(ours, (host, port)) is not None

    def gone(self) -> list[tuple[str, int]]:
        return [address for address, sock in self.ends.items() if select.select([sock], [], [], 0)[0]]


def test_connection_whose_request_has_arrived_does_not_leave() -> None:
    peers = Peers(10, 3)
    assert all(peers.come("a", port, b"GET" if port < 2 else b"") for port in range(3))
    assert peers.come("a", 3, b"GET")
    assert peers.gone() == [("a", 2)]
    assert not peers.come("a", 4)  # all others have sent something
    assert peers.come("b", 5)
    assert len(peers.connections) == 4


def test_connection_that_drips_leaves_though_its_next_byte_has_arrived() -> None:
    peers = Peers(2, 2)
    assert peers.come("a", 0, b"G")
    assert peers.come("a", 1, b"GET")
    dripping = peers.connections.find(("a", 0))
    assert dripping is not None
    dripping.has_begun = True
    assert peers.come("a", 2)
    assert peers.gone() == [("a", 0)]


def test_known_callers_leave_last_and_those_who_are_worked_for_never() -> None:
    peers = Peers(3, 3)
    for port in range(3):
        assert peers.come("a", port)
    known, worked = (peers.connections.find(("a", port)) for port in (0, 1))
    assert known is not None
    assert worked is not None
    known.is_known = True
    for connection in (known, worked):
        peers.connections.works(connection)
    peers.connections.waits(known)
    assert [peers.come("b", port) for port in (3, 4)] == [True, True]
    assert peers.gone() == [("a", 2), ("b", 3)]
    new = peers.connections.find(("b", 4))
    assert new is not None
    peers.connections.works(new)
    assert peers.come("c", 5)
    assert peers.gone() == [("a", 0), ("a", 2), ("b", 3)]
    peers.connections.closed(worked)
    peers.connections.closed(worked)
    assert len(peers.connections) == 2
