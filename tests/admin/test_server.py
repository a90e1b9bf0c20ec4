"""The server's process: its TLS files, its address, and its end."""

from __future__ import annotations

import resource
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

from spark_throttle.admin.api import server as server_module
from spark_throttle.admin.api.server import check_address, check_tls_files, make_server
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
def test_tls_is_said_to_stay_and_a_handshake_that_never_ends_does_not_hold_up_the_end(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    tokens = TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    text = tokens.create("ann", "admin")
    trusting = ssl.create_default_context(cafile=cert)
    with server_process(tmp_path, tokens, "--tls-certificate", cert, "--tls-key", key) as server:
        for sent, status in ((request(text), 200), (request(None), 401)):
            with trusting.wrap_socket(connected(server.port), server_hostname="localhost") as sock:
                sock.sendall(sent)
                got = answer(sock)
            assert got is not None
            assert got.status == status
            assert got.headers["strict-transport-security"] == "max-age=31536000"
        half = connected(server.port)
        server.process.send_signal(signal.SIGTERM)
        # The server does not wait for a handshake.
        assert server.process.wait(timeout=9) in {0, -signal.SIGTERM}
        half.close()


_HANGING = """
import asyncio, threading, sys
from spark_throttle.admin.api.server import make_server

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


@pytest.mark.parametrize(
    ("may_open", "expected"), [(resource.RLIM_INFINITY, 800), (4096, 800), (1024, 800), (300, 76), (256, 32)]
)
def test_connections_fit_the_files_that_the_process_may_open(
    in_memory: ServedApp,
    may_open: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (may_open, resource.RLIM_INFINITY))
    monkeypatch.setattr(server_module, "_bound", lambda _host, _port: [])
    assert make_server(in_memory.app, host="127.0.0.1", port=0).config.limit_concurrency == expected
    assert (f"{expected} connections at once" in capsys.readouterr().err) == (expected < 800)


def test_process_that_may_open_too_few_files_serves_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, store = tmp_path / "tokens.json", tmp_path / "policies.yaml"
    TokenFile(tokens, clock_ms=lambda: 0).create("ann", "admin")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (255, 255))
    arguments = ["serve", "--tokens", str(tokens), "--store", f"file:{store}", "--init"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == Exit.INVALID
    assert "may open 255 files" in done.output
    assert "need 256" in done.output
    assert "ulimit -n 1024" in done.output
    assert not store.exists()


@pytest.mark.slow
def test_connections_beyond_the_bound_are_refused(in_memory: ServedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS", 5)
    with listening(in_memory.app) as address, ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        silent(stack, port, 5)
        assert asked(port, request(in_memory.tokens["viewer"])).status == 503
        stack.close()
        # Until the server has seen them leave.
        assert any(asked(port, request(in_memory.tokens["viewer"])).status == 200 for _ in range(1000))
