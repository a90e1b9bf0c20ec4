"""A served store, and clients of each role."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI
from fastapi.routing import APIRoute, _EffectiveRouteContext
from starlette.testclient import TestClient
from typer.main import get_command

from spark_throttle.admin.api import app as app_module
from spark_throttle.admin.api.app import make_app
from spark_throttle.admin.audit import AuditLog
from spark_throttle.admin.tokens import TokenFile
from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.files.private_file import replace_private
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author, PolicyStore

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.admin.shown_page import ShownPage

ROLES = ("admin", "tenant_admin", "viewer")
START_MS = 1_795_266_764_070


@pytest.fixture(scope="session", autouse=True)
def _commands_are_built_once() -> Iterator[None]:
    """Build the command line from its functions' signatures once: a runner builds it for every command that it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", functools.cache(get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def _routes_are_built_once() -> Iterator[None]:
    """Build each call from its function's signature once: an application builds a router's calls at its first request.

    All applications include the same routers in the same way, and none overrides a dependency.
    """
    build, built = _EffectiveRouteContext.from_api_route, dict[int, _EffectiveRouteContext]()

    def once(*, original_route: APIRoute, **context: Any) -> _EffectiveRouteContext:
        # The routers are in modules, so no route is ever freed and its identity taken by another.
        if id(original_route) not in built:
            built[id(original_route)] = build(original_route=original_route, **context)
        return built[id(original_route)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_EffectiveRouteContext, "from_api_route", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _description_is_made_once() -> Iterator[None]:
    """Describe one application for all: each would describe itself, for 0.2 s, at its first request with a query."""
    describe, made = app_module._described, list[dict[str, Any]]()

    def once(app: FastAPI) -> dict[str, Any]:
        if not made:
            made.append(describe(app))
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "_described", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _requests_share_a_loop() -> Iterator[None]:
    """Run all applications in one event loop: a client starts one for each request, and its threads."""
    with start_blocking_portal() as portal, pytest.MonkeyPatch.context() as patch:
        patch.setattr(TestClient, "portal", portal)
        yield


@dataclass
class ServedApp:
    """An application without a socket, and a token of each role; `acme` is the tenant admin's tenant."""

    app: FastAPI
    store: PolicyStore
    token_file: TokenFile
    tokens: dict[str, str] = field(repr=False)
    clock: list[int] = field(default_factory=lambda: [START_MS])
    """The wall clock, in ms."""

    monotonic: list[int] = field(default_factory=lambda: [0])
    """The clock of request rates, in ms."""

    audit: AuditLog | None = None

    @property
    def audited(self) -> list[dict[str, Any]]:
        """The lines of the audit log."""
        assert self.audit is not None
        return [json.loads(line) for line in self.audit.path.read_text().splitlines()]

    @property
    def service(self) -> PolicyService:
        return PolicyService(self.store, clock_ms=lambda: self.clock[0])

    def client(self, role: str | None = "admin") -> TestClient:
        headers = {} if role is None else {"Authorization": f"Bearer {self.tokens[role]}"}
        return TestClient(self.app, headers=headers, raise_server_exceptions=True)


@functools.cache
def _issued() -> tuple[bytes, Mapping[str, str]]:
    """Issue a token of each role, once for all servers: the file of tokens, and the tokens."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = TokenFile(Path(folder) / "tokens.json", clock_ms=lambda: START_MS)
        texts = {role: tokens.create(f"{role}-of-test", role, tenant="acme" if role == "tenant_admin" else None)
                 for role in ROLES}  # fmt: skip
        return tokens.path.read_bytes(), texts


def served_over(store: PolicyStore, folder: Path, **settings: Any) -> ServedApp:
    clock, monotonic = [START_MS], [0]
    tokens = TokenFile(folder / "tokens.json", clock_ms=lambda: clock[0])
    content, texts = _issued()
    if not tokens.path.exists():
        replace_private(tokens.path, content)
    watch = settings.pop("watch", None) or JobWatch({})
    settings.setdefault("requests_per_second", 1_000_000)
    settings.setdefault("audit", AuditLog(folder / "audit", clock_ms=lambda: clock[0]))
    app = make_app(store, tokens, watch, clock_ms=lambda: clock[0], monotonic_ms=lambda: monotonic[0], **settings)
    return ServedApp(app, store, tokens, dict(texts), clock, monotonic, settings["audit"])


@pytest.fixture(params=["memory", "delta"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> ServedApp:
    store = MemoryStore() if request.param == "memory" else DeltaStore.create(str(tmp_path / "policies"))
    return served_over(store, tmp_path)


@pytest.fixture
def in_memory(tmp_path: Path) -> ServedApp:
    return served_over(MemoryStore(), tmp_path)


@pytest.fixture
def admin(served: ServedApp) -> TestClient:
    return served.client("admin")


@pytest.fixture
def serve(tmp_path: Path) -> Callable[..., ServedApp]:
    return lambda store, **settings: served_over(store, tmp_path, **settings)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    from tests.admin.browser import chromium

    with chromium(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.fixture
def driver(browser: Chrome) -> Chrome:
    """The browser that all tests share, as wide and as light as if it were new."""
    size = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    return browser


@pytest.fixture
def shown(driver: Chrome, serve: Callable[..., ServedApp], tmp_path: Path) -> Iterator[ShownPage]:
    """The page of a server that watches a job: a group, a tenant in it, and three namespaces that offer too much."""
    from tests.admin.browser import listening
    from tests.admin.made_up_job import MadeUpJob
    from tests.admin.shown_page import OFFERED, Faults, ShownPage, browser_log

    store = MemoryStore()
    service = PolicyService(store, clock_ms=lambda: 0)
    service.put("resource_group", "gold", {"publish": {"messages_per_second": 20, "weight": 2}}, Author("ann"))
    service.put("tenant", "acme", {"resource_group": "gold"}, Author("ann", "first customers"))
    job = MadeUpJob(tmp_path / "control", store)
    for _ in range(15):
        job.batch(OFFERED)
    job.pulse.beat()
    watch = JobWatch({"ingest": str(tmp_path / "control")}, clock=job.clock)
    watch.look()
    served = serve(store, watch=watch)
    faults = Faults(served.app)
    with listening(faults) as address:
        yield ShownPage(driver, address, served, job, faults)
        faults.goes_on.set()
        driver.execute_script("sessionStorage.clear()")
        driver.get("about:blank")
        browser_log(driver)
