"""Bodies, turns and time: what a caller can keep the server busy with, and what that costs others."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from spark_throttle.admin.api import gate
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.store import Entry, check_wanted
from tests.admin.browser import listening
from tests.admin.conftest import ServedApp
from tests.admin.raw_http import answer, asked, connected, request, silent

SHORT = 0.3


@contextmanager
def port_of(served: ServedApp) -> Iterator[int]:
    """Yield the port of a server."""
    with listening(served.app) as address:
        yield int(address.rpartition(":")[2])


def drip(sock: socket.socket) -> None:
    """Send a byte at a time until the server says something or closes."""
    for _ in range(1000):
        if select.select([sock], [], [], 0.01)[0]:
            return
        sock.send(b"a")
    pytest.fail("the server listens for ever")


@pytest.mark.slow
def test_body_that_drips_is_cut_off_and_changes_nothing(in_memory: ServedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "BODY_SECONDS", SHORT)
    line = "PUT /admin/v2/resourcegroup/gold HTTP/1.1"
    with port_of(in_memory) as port, connected(port) as sock:
        sock.sendall(request(in_memory.tokens["admin"], line, "Content-Length: 60000") + b"{")
        drip(sock)
        got = answer(sock)
        assert got is not None
        assert "the body of the request did not arrive within" in got.problem["detail"]
        assert got.status == 408
        assert asked(port, request(in_memory.tokens["admin"])).status == 200
    assert in_memory.store.revision() == 0


class _Gated(MemoryStore):
    """A store that answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)
        self.go = threading.Event()

    def revision(self) -> int:
        self.asked.release()
        assert self.go.wait(60)
        return super().revision()


@pytest.fixture
def gated() -> Iterator[_Gated]:
    store = _Gated()
    yield store
    store.go.set()


PUT = "PUT /admin/v2/resourcegroup/gold HTTP/1.1"
JSON = ("Content-Type: application/json", "Content-Length: 2")


@pytest.mark.slow
def test_requests_wait_for_a_turn_and_are_refused_only_when_the_queue_is_full(
    serve: Any, gated: _Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "AT_ONCE", 1)
    monkeypatch.setattr(gate, "MOST_WAITING", 1)
    served = serve(gated)
    with port_of(served) as port, ExitStack() as stack:
        one, two, three = (stack.enter_context(connected(port)) for _ in range(3))
        one.sendall(request(served.tokens["admin"], PUT, *JSON) + b"{}")
        assert gated.asked.acquire(timeout=20)
        two.sendall(request(served.tokens["viewer"]))
        three.sendall(request(served.tokens["viewer"]))
        ((refused, *_), _, _) = select.select([two, three], [], [], 20)
        got = answer(refused)
        assert got is not None
        assert "1 requests wait already" in got.problem["detail"]
        assert got.status == 503
        assert asked(port, request(None, "GET / HTTP/1.1")).status == 200  # strangers have a queue of their own
        gated.go.set()
        for sock in (one, three if refused is two else two):
            got = answer(sock)
            assert got is not None
            assert got.status == 200


@pytest.mark.slow
def test_request_that_waits_too_long_for_its_turn_is_told_so(
    serve: Any, gated: _Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "AT_ONCE", 1)
    monkeypatch.setattr(gate, "WAIT_SECONDS", SHORT)
    served = serve(gated)
    with port_of(served) as port, connected(port) as one:
        one.sendall(request(served.tokens["admin"], PUT, *JSON) + b"{}")
        assert gated.asked.acquire(timeout=20)
        got = asked(port, request(served.tokens["viewer"]))
        assert "waited 0.3 s for a turn" in got.problem["detail"]
        assert got.status == 503
        gated.go.set()


@pytest.mark.slow
def test_change_whose_client_left_before_its_turn_is_not_made(
    serve: Any, gated: _Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "AT_ONCE", 1)
    served = serve(gated)
    change = request(served.tokens["admin"], PUT, *JSON) + b"{}"
    with port_of(served) as port, connected(port) as one:
        one.sendall(change)
        assert gated.asked.acquire(timeout=20)
        with connected(port) as two:
            two.sendall(change.replace(b"gold", b"lead"))
        for _ in range(2):  # the server has seen that it left
            assert asked(port, request(None, "GET /healthz HTTP/1.1")).status == 200
        gated.go.set()
        assert asked(port, request(served.tokens["admin"])).status == 200
    assert [entry.name for entry in served.store.changed(after=0, until=9)] == ["gold"]


@pytest.mark.slow
def test_slow_bodies_hold_no_turn(in_memory: ServedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "AT_ONCE", 1)
    admin = in_memory.tokens["admin"]
    with port_of(in_memory) as port, ExitStack() as stack:
        for sock in silent(stack, port, 3):
            sock.sendall(request(admin, PUT, "Content-Length: 1000") + b"{")
        assert asked(port, request(admin)).status == 200


@pytest.mark.slow
def test_what_needs_no_token_is_limited_by_address_but_the_health_check(serve: Any) -> None:
    served = serve(MemoryStore(), requests_per_second=2)
    client = served.client(None)
    assert [client.get("/").status_code for _ in range(13)] == [200] * 11 + [429] * 2
    refused = client.get("/openapi.json")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert [client.get("/healthz").status_code for _ in range(20)] == [200] * 20
    assert served.client("viewer").get("/admin/v2/caller").status_code == 200


@pytest.mark.slow
def test_fault_of_the_server_is_a_problem_too(in_memory: ServedApp) -> None:
    def fail() -> None:
        raise RuntimeError("a secret of the server")

    in_memory.app.add_api_route("/fails", fail)
    with port_of(in_memory) as port:
        got = asked(port, request(in_memory.tokens["admin"], "GET /fails HTTP/1.1"))
    assert got.problem["status"] == 500
    assert "secret" not in got.problem["detail"]


DIFF = "GET /admin/v2/diff?before=0&after=0 HTTP/1.1"


@pytest.mark.slow
def test_caller_whose_requests_are_slow_keeps_no_other_from_a_turn(serve: Any, gated: _Gated) -> None:
    served = serve(gated)
    with port_of(served) as port, ExitStack() as stack:
        for _ in range(2 * gate.AT_ONCE):
            stack.enter_context(connected(port)).sendall(request(served.tokens["viewer"], DIFF))
        for _ in range(gate.AT_ONCE // 4):
            assert gated.asked.acquire(timeout=20)
        changing = stack.enter_context(connected(port))
        changing.sendall(request(served.tokens["admin"], PUT, *JSON) + b"{}")
        assert gated.asked.acquire(timeout=20)
        gated.go.set()
        got = answer(changing)
        assert got is not None
        assert got.status == 200


class _Endless(MemoryStore):
    """A store whose revisions have changes without end."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)

    def changed(self, *, after: int, until: int) -> Iterator[Entry]:
        yield from super().changed(after=after, until=until)
        self.asked.release()
        while True:
            check_wanted()
            yield Entry("namespace", "acme/x", "{}", 0)


@pytest.mark.slow
def test_work_for_a_client_that_left_ends_and_gives_its_turn_back(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "AT_ONCE", 1)
    store = _Endless()
    served = serve(store)
    with port_of(served) as port:
        with connected(port) as leaving:
            leaving.sendall(request(served.tokens["viewer"], DIFF))
            assert store.asked.acquire(timeout=20)
        assert asked(port, request(served.tokens["admin"], PUT, *JSON) + b"{}").status == 200


@pytest.mark.slow
def test_work_that_takes_too_long_ends_with_a_reason(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "WORK_SECONDS", SHORT)
    served = serve(_Endless())
    with port_of(served) as port:
        got = asked(port, request(served.tokens["viewer"], DIFF))
    assert "ask for less" in got.problem["detail"]
    assert got.status == 503
