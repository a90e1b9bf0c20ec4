"""The admin page in a browser, as a test drives it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.admin.conftest import ServedApp
from tests.admin.made_up_job import MadeUpJob

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

PATIENCE_SECONDS = 60
OFFERED = {"acme/a": 50, "acme/b": 10, "acme/<script>alert(1)</script>": 5}


def browser_log(driver: Any) -> list[dict[str, Any]]:
    """Return what the browser complained about since the last call."""
    log: list[dict[str, Any]] = driver.get_log("browser")
    return log


class Faults:
    """An application in whose place a test answers calls of the API, or makes them wait."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.answers: dict[str, Response] = {}
        """What is answered to each method."""

        self.goes_on = threading.Event()
        """Calls of the API wait while it is not set."""

        self.goes_on.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/admin/"):
            await anyio.to_thread.run_sync(self.goes_on.wait)
            if scope["method"] in self.answers:
                await self.answers[scope["method"]](scope, receive, send)
                return
        await self.app(scope, receive, send)


class ShownPage:
    """A browser on the page of a server that watches a job."""

    def __init__(self, driver: Chrome, address: str, served: ServedApp, job: MadeUpJob, faults: Faults) -> None:
        self.driver = driver
        self.address = address
        self.served = served
        self.job = job
        self.faults = faults

    def sign_in(self, role: str = "admin") -> None:
        self.driver.get(self.address)
        self.driver.find_element("id", "token").send_keys(self.served.tokens[role])
        self.driver.find_element("css selector", "#sign-in button").click()

    def wait_for(self, selector: str, *, text: str = "") -> Any:
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        # A table may be shown anew between finding a row and reading it.
        stale = [StaleElementReferenceException]

        def found(driver: Any) -> Any:
            return next((e for e in driver.find_elements("css selector", selector) if text in e.text), None)

        return WebDriverWait(self.driver, PATIENCE_SECONDS, ignored_exceptions=stale).until(
            found, f"{selector} with {text!r}"
        )

    def wait_until_empty(self, selector: str) -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        def is_empty(driver: Any) -> bool:
            return driver.find_element("css selector", selector).text == ""

        WebDriverWait(self.driver, PATIENCE_SECONDS).until(is_empty, f"{selector} without text")

    def edit(self, field: str, text: str) -> None:
        self.wait_for("[data-group=gold] .quotas button").click()
        box = self.driver.find_element("name", field)
        box.clear()
        box.send_keys(text)
        self.driver.find_element("name", "why").send_keys("tried by a test")
        self.driver.find_element("css selector", "form.edit button[type=submit]").click()

    def edit_entry(self, section: str, name: str, fields: dict[str, str]) -> None:
        """Open the form of an entry, and type into its fields."""
        self.wait_for(f"[data-entries={section}] [aria-label$=' {name}']").click()
        self.type_into(fields)

    def type_into(self, fields: dict[str, str]) -> None:
        from selenium.webdriver.support.select import Select

        for field, text in fields.items():
            box = self.wait_for(f"#editor[open] [name='{field}']")
            if box.tag_name == "select":
                Select(box).select_by_value(text)
            else:
                box.clear()
                box.send_keys(text)

    def save(self) -> None:
        self.wait_for("#editor[open] button[type=submit]").click()

    def resize(self, width: int) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def sides(self, selector: str) -> tuple[float, float]:
        """Return the left and the right edge of the first matching element, in px."""
        script = (
            "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.left, box.right]"
        )
        left, right = self.driver.execute_script(script, selector)
        return left, right

    def complaints(self) -> list[str]:
        return [entry["message"] for entry in browser_log(self.driver)]
