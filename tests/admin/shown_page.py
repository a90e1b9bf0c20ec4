"""The admin page in a browser, as a test drives it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.admin.conftest import ServedApp
from tests.admin.made_up_job import MadeUpJob

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

PATIENCE_SECONDS = 60
BETWEEN_LOOKS_SECONDS = 0.05
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
        self.click("#sign-in button")

    def wait_for(self, selector: str, *, text: str = "") -> Any:
        """Wait until an element that a selector matches has a text; return the element, which may be replaced since.

        A line's end in the element's text counts as a space.
        """
        return self._wait(lambda element: element, selector, text)

    def text(self, selector: str, *, text: str = "") -> str:
        """Return the whole text of the element that is waited for, as it was when it was found."""
        whole: str = self._wait(lambda element: element.text, selector, text)
        return whole

    def click(self, selector: str, *, text: str = "") -> None:
        self._wait(lambda element: element.click() or True, selector, text)

    def texts(self, selector: str) -> list[str]:
        """Return the texts of the elements that a selector matches and that are shown, all of one moment."""
        script = """
            const elements = [...document.querySelectorAll(arguments[0])];
            return elements.filter((element) => element.checkVisibility()).map((element) => element.innerText);
        """
        texts: list[str] = self.driver.execute_script(script, selector)
        return texts

    def _wait(self, use: Callable[[Any], Any], selector: str, text: str) -> Any:
        from selenium.common.exceptions import (
            ElementClickInterceptedException,
            ElementNotInteractableException,
            StaleElementReferenceException,
            TimeoutException,
        )
        from selenium.webdriver.support.wait import WebDriverWait

        def used(driver: Any) -> Any:
            elements = driver.find_elements("css selector", selector)
            found = next((e for e in elements if text in " ".join(e.text.split())), None)
            return None if found is None else use(found)

        # A table may be shown anew or move between finding a row and using it, and a button be hidden until it may be
        # used.
        stale = [StaleElementReferenceException, ElementNotInteractableException, ElementClickInterceptedException]
        try:
            return WebDriverWait(self.driver, PATIENCE_SECONDS, BETWEEN_LOOKS_SECONDS, stale).until(used)
        except TimeoutException:
            pytest.fail(f"no {selector} with {text!r}, but {self.texts(selector)}")

    def wait_until_empty(self, selector: str) -> None:
        from selenium.webdriver.support.wait import WebDriverWait

        def is_empty(driver: Any) -> bool:
            return driver.find_element("css selector", selector).text == ""

        WebDriverWait(self.driver, PATIENCE_SECONDS, BETWEEN_LOOKS_SECONDS).until(is_empty, f"{selector} without text")

    def edit(self, field: str, text: str) -> None:
        self.click("[data-group=gold] .quotas button")
        box = self.driver.find_element("name", field)
        box.clear()
        box.send_keys(text)
        self.driver.find_element("name", "why").send_keys("tried by a test")
        self.click("form.edit button[type=submit]")

    def edit_entry(self, section: str, name: str, fields: dict[str, str]) -> None:
        """Open the form of an entry, and type into its fields."""

        def opened(button: Any) -> Any:
            button.click()  # it misses if the page moves meanwhile
            return self.driver.find_elements("css selector", "#editor[open]")

        self._wait(opened, f"[data-entries={section}] [aria-label$=' {name}']", "")
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
        self.click("#editor[open] button[type=submit]")

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
