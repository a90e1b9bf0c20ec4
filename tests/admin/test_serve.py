"""The server as a process, TLS included; what it refuses to begin with; and the commands on its tokens."""

from __future__ import annotations

import json
import re
import select
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_throttle.admin.tokens import TokenFile
from spark_throttle.command_line.app import app
from spark_throttle.command_line.serve import serve
from spark_throttle.errors import ConfigurationError, DamagedError, NotFoundError, UnknownVersionError


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tls_certificate": "cert.pem"}, "TLS needs both"),
        ({"tls_certificate": "/none.pem", "tls_key": "/none.pem"}, "there is no file /none.pem"),
        ({"host": "0.0.0.0"}, "tokens would be sent in the clear to 0.0.0.0"),  # noqa: S104 - is refused
        ({"host": "0.0.0.0", "proxy": ["10.0.0.7"]}, "holds no token"),  # noqa: S104 - the proxy ends TLS
        ({}, "holds no token"),
    ],
)
def test_server_refuses_to_begin_with_what_cannot_work(
    tokens: TokenFile, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        serve(store="memory:", tokens=str(tokens.path), **settings)  # type: ignore[arg-type] # a table of settings


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_server_speaks_tls_and_logs_no_token(tokens: TokenFile, tmp_path: Path) -> None:
    key, certificate, log = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "log"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "1",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    text = tokens.create("ann", "admin")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable, "-m", "spark_throttle.command_line", "serve", "--store", f"delta:{tmp_path / 'policies'}",
        "--init", "--tokens", str(tokens.path), "--port", str(port),
        "--tls-certificate", str(certificate), "--tls-key", str(key),
    ]  # fmt: skip
    with log.open("w") as written, subprocess.Popen(command, stdout=written, stderr=written) as server:
        try:
            trusting = ssl.create_default_context(cafile=str(certificate))

            def ask(token: str) -> int:
                request = urllib.request.Request(
                    f"https://localhost:{port}/admin/v2/caller", headers={"Authorization": f"Bearer {token}"}
                )
                try:
                    with urllib.request.urlopen(request, timeout=10, context=trusting) as answer:  # noqa: S310 - https
                        return int(answer.status)
                except urllib.error.HTTPError as error:
                    return error.code

            for _ in range(600):
                try:
                    assert ask(text) == 200
                    break
                except urllib.error.URLError:
                    assert server.poll() is None, log.read_text()
                    select.select([], [], [], 0.1)
            assert ask(text) == 200
            assert ask(text + "x") == 401
        finally:
            server.terminate()
    said = log.read_text()
    assert '"GET /admin/v2/caller HTTP/1.1" 200' in said
    assert text.split("_", 2)[2] not in said


def test_tokens_are_made_listed_and_revoked_by_commands(tmp_path: Path) -> None:
    runner, file = CliRunner(), str(tmp_path / "tokens.json")
    made = runner.invoke(
        app,
        ["token", "create", "bob", "--role", "tenant_admin", "--tenant", "acme", "--never-expires", "--tokens", file,
         "-o", "json"],
    )  # fmt: skip
    text = json.loads(made.output)["token"]
    caller = TokenFile(file, clock_ms=lambda: 0).judged(text)[0]
    assert caller is not None
    assert (caller.name, caller.role, caller.tenant) == ("bob", "tenant_admin", "acme")
    (listed,) = json.loads(runner.invoke(app, ["token", "list", "--tokens", file, "-o", "json"]).output)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", listed.pop("created_at"))
    assert listed == {
        "id": caller.token_id, "name": "bob", "role": "tenant_admin", "tenant": "acme", "expires_at": None,
    }  # fmt: skip
    assert runner.invoke(app, ["token", "revoke", caller.token_id, "--tokens", file]).exit_code == 0
    assert runner.invoke(app, ["token", "revoke", caller.token_id, "--tokens", file]).exit_code == 4
    assert TokenFile(file, clock_ms=lambda: 0).judged(text)[0] is None


@pytest.mark.slow
def test_token_file_that_is_damaged_is_told_of_once_and_in_words(tmp_path: Path) -> None:
    path, tokens = tmp_path / "tokens.json", TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    tokens.create("ann", "admin")
    text, listing = path.read_text(), ["token", "list", "--tokens", str(path)]
    for harmed, problem in (
        (text[:-20], "it is not JSON"), ("[1]", "it is not a mapping"), ('{"format": 1}', "it has no field tokens"),
        (text.replace('"salt"', '"sole"'), r"tokens\[0\].salt is missing"),
        (text.replace('"id"', '"odd": 1, "id"'), r"tokens\[0\].odd is no field of a token"),
    ):  # fmt: skip
        path.write_text(harmed)
        script = "from spark_throttle.command_line.app import main; main()"
        done = subprocess.run([sys.executable, "-c", script, *listing], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert re.fullmatch(
            f"error: the token file .*/tokens.json is damaged: {problem}[^;]*; restore .*\n", done.stderr
        )
    path.write_text(text.replace('"admin"', '"super"'))
    assert "super (unknown: may do nothing)" in CliRunner().invoke(app, listing).stdout


@pytest.mark.parametrize(
    ("name", "role", "tenant", "days"),
    [
        ("", "admin", None, None), ("a\nb", "admin", None, None), ("ann", "boss", None, None),
        ("ann", "admin", "acme", None),
        ("ann", "tenant_admin", None, None), ("ann", "tenant_admin", "a/b", None), ("ann", "tenant_admin", "a*", None),
        ("ann", "viewer", None, 0), ("ann", "viewer", None, 36_501),
    ],
)  # fmt: skip
def test_token_that_makes_no_sense_is_not_made(
    tokens: TokenFile, name: str, role: str, tenant: str | None, days: int | None
) -> None:
    with pytest.raises(ConfigurationError):
        tokens.create(name, role, tenant=tenant, days=days)
    assert tokens.list() == []


def test_revoking_an_unknown_token_is_not_found(tokens: TokenFile) -> None:
    with pytest.raises(NotFoundError, match="there is no token 'abc'"):
        tokens.revoke("abc")


def test_token_file_of_another_form_is_an_error(tokens: TokenFile) -> None:
    tokens.path.touch(0o600)
    tokens.path.write_text('{"format": 3, "tokens": []}')
    with pytest.raises(UnknownVersionError):
        tokens.list()
    tokens.path.write_text('{"format": 1, "tokens": [{}]}')
    with pytest.raises(DamagedError):
        tokens.list()
