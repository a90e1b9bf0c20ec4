"""`X-Forwarded-For` counts from configured proxies alone: in the audit log, in request rates and in the access log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from spark_throttle.admin.tokens import TokenFile
from spark_throttle.command_line.serve import serve as serve_for_ever
from spark_throttle.errors import ConfigurationError
from spark_throttle.store.memory_store import MemoryStore
from tests.admin.conftest import ServedApp
from tests.admin.raw_http import asked, request
from tests.admin.server_process import server_process

GOLD = "/admin/v2/resourcegroup/gold"
PROXIES = ("10.0.0.0/24", "2001:db8::7")


def recorded(served: ServedApp, peer: str, forwarded: list[str], *headers: tuple[str, str]) -> tuple[str, str | None]:
    """Return the source and the proxy that a request from `peer` is recorded with."""
    client = TestClient(served.app, client=(peer, 50000))
    all_headers = [("X-Forwarded-For", value) for value in forwarded] + list(headers)
    assert client.put(GOLD, headers=all_headers).status_code == 401
    line = served.audited[-1]
    return line["source"], line.get("proxy")


@pytest.fixture
def behind(serve: Callable[..., ServedApp]) -> ServedApp:
    return serve(MemoryStore(), proxies=PROXIES)


@pytest.mark.parametrize(("peer", "forwarded", "source", "proxy"), [
    ("10.0.0.7", ["203.0.113.9"], "203.0.113.9", "10.0.0.7"),
    ("10.0.0.7", ["6.6.6.6, 203.0.113.9"], "203.0.113.9", "10.0.0.7"),  # the client wrote the first
    ("10.0.0.7", ["6.6.6.6", "203.0.113.9"], "203.0.113.9", "10.0.0.7"),
    ("10.0.0.7", ["6.6.6.6, 203.0.113.9, 10.0.0.8"], "203.0.113.9", "10.0.0.7"),  # two proxies in a row
    ("10.0.0.7", ["10.0.0.9, 203.0.113.9"], "203.0.113.9", "10.0.0.7"),  # the client claims to be a proxy
    ("10.0.0.7", ["203.0.113.9:41000"], "203.0.113.9", "10.0.0.7"),
    ("10.0.0.7", ["[2001:db8::9]:41000"], "2001:db8::9", "10.0.0.7"),
    ("2001:db8::7", ["2001:db8::9"], "2001:db8::9", "2001:db8::7"),
    ("10.0.0.7", [], "10.0.0.7", None),
    ("10.0.0.7", [""], "10.0.0.7", None),
    ("10.0.0.7", ["rubbish:x"], "10.0.0.7", None),
    ("10.0.0.7", ["203.0.113.9, <script>"], "10.0.0.7", None),
    ("10.0.1.7", ["203.0.113.9"], "10.0.1.7", None),  # no proxy of ours
    ("127.0.0.1", ["203.0.113.9"], "127.0.0.1", None),
    ("2001:db8::8", ["203.0.113.9"], "2001:db8::8", None),
])  # fmt: skip
def test_source_is_the_client_only_if_a_configured_proxy_says_so(
    behind: ServedApp, peer: str, forwarded: list[str], source: str, proxy: str | None
) -> None:
    assert recorded(behind, peer, forwarded) == (source, proxy)


def test_header_counts_from_nobody_if_no_proxy_is_configured(in_memory: ServedApp) -> None:
    for peer in ("127.0.0.1", "10.0.0.7"):
        assert recorded(in_memory, peer, ["203.0.113.9"], ("Forwarded", "for=6.6.6.6")) == (peer, None)


@pytest.mark.parametrize("peer", ["203.0.113.5", "10.0.0.7"])
def test_rates_of_what_needs_no_token_follow_the_client_and_not_what_a_stranger_writes(
    serve: Callable[..., ServedApp], peer: str
) -> None:
    served = serve(MemoryStore(), proxies=PROXIES, requests_per_second=1)
    client = TestClient(served.app, client=(peer, 50000))
    statuses = [
        client.get("/", headers={"X-Forwarded-For": f"198.51.100.{number}"}).status_code for number in range(20)
    ]
    assert (429 in statuses) == (peer != "10.0.0.7")


def test_tls_at_the_proxy_counts_as_tls_only_from_a_configured_one(behind: ServedApp) -> None:
    for peer, has_hsts in (("10.0.0.7", True), ("10.0.1.7", False)):
        client = TestClient(behind.app, client=(peer, 50000))
        answer = client.get("/healthz", headers={"X-Forwarded-Proto": "https"})
        assert ("Strict-Transport-Security" in answer.headers) == has_hsts


@pytest.mark.parametrize("proxy", ["*", "proxy.example.org", "10.0.0.0/99", "10.0.0.7/24", ""])
def test_proxy_that_is_no_address_is_refused(tmp_path: Path, proxy: str) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    tokens.create("ann", "admin")
    with pytest.raises(ConfigurationError, match="no address and no network"):
        serve_for_ever(store="memory:", tokens=str(tokens.path), proxy=[proxy])


@pytest.mark.slow
def test_access_log_has_the_client_behind_a_configured_proxy(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    tokens.create("ann", "admin")
    with server_process(tmp_path, tokens, "--proxy", "127.0.0.0/8") as server:
        assert asked(server.port, request(None, "GET / HTTP/1.1", "X-Forwarded-For: 203.0.113.9")).status == 200
        assert "203.0.113.9:0 - " in server.log.read_text()
