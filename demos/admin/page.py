"""The demonstration's browser: a headless Chromium that signs in, edits a quota and takes screenshots."""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

WIDE, NARROW = (1280, 1000), (400, 900)
PATIENCE_SECONDS: Final = 40
_FLAGS: Final = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Page:
    """The page of one server, after signing in."""

    driver: Chrome
    out: Path
    group: str

    @classmethod
    @contextmanager
    def opened(cls, address: str, token: str, out: Path, group: str) -> Iterator[Self]:
        """Yield the page after signing in."""
        driver = _started(out / "browser")
        try:
            page = cls(driver, out, group)
            driver.get(address)
            page.picture("0-sign-in")
            driver.find_element(By.ID, "token").send_keys(token)
            driver.find_element(By.CSS_SELECTOR, "#sign-in button").click()
            page.wait_for("#scopes-about:not(:empty)")
            yield page
        finally:
            driver.quit()

    def worst(self) -> str:
        """Return the group or tenant that the page shows first, after a picture."""
        self.wait_for("#scopes tbody tr th")
        self.picture("0-worst-first")
        return str(self.driver.find_element(By.CSS_SELECTOR, "#scopes tbody tr th").get_attribute("title"))

    def exception(self, group: str) -> None:
        """Take a picture of the page while a group has an exception."""
        WebDriverWait(self.driver, PATIENCE_SECONDS).until(
            lambda driver: group in driver.find_element(By.ID, "exceptions").text, f"no exception of {group} is shown"
        )
        self.picture("5-exception")

    def begin(self) -> None:
        """Open the group, unless it is open as the only one, and wait until the page shows what the job did with it."""
        opens = f"#scopes th[title='{self.group}'] button"
        self.wait_for(opens)
        for closed in self.driver.find_elements(By.CSS_SELECTOR, f"{opens}[aria-expanded='false']"):
            closed.click()
        self.wait_for(f"[data-group='{self.group}'] canvas")

    def look(self, name: str) -> None:
        """Take screenshots of the whole page, wide and narrow."""
        self.picture(name)
        self._resize(NARROW)
        self.wait_for(f"[data-group='{self.group}'] canvas")
        self.picture(f"{name}-narrow")
        self._resize(WIDE)

    def edit(self, fields: Mapping[str, str], *, why: str) -> None:
        """Edit the group's quota in place, and wait until the page reports that it is in force."""
        card = self.driver.find_element(By.CSS_SELECTOR, f"[data-group='{self.group}']")
        card.find_element(By.CSS_SELECTOR, ".quotas button").click()
        for name, text in fields.items():
            field = card.find_element(By.NAME, name)
            field.clear()
            field.send_keys(text)
        card.find_element(By.NAME, "why").send_keys(why)
        card.find_element(By.XPATH, ".//button[text()='What if?']").click()
        WebDriverWait(self.driver, PATIENCE_SECONDS).until(
            lambda _: card.find_elements(By.CSS_SELECTOR, "form.edit .end table"), "the page tells no what-if"
        )
        self.picture("3-edit")
        card.find_element(By.CSS_SELECTOR, "form.edit button[type=submit]").click()
        self.wait_for(f"[data-group='{self.group}'] .acted[data-batches]")
        said = card.find_element(By.CSS_SELECTOR, ".acted").text
        print(f"the page says: {said}", file=sys.stderr, flush=True)
        self.picture("4-it-acts")

    def look_around(self) -> None:
        """Open the group's fairness chart and the explanation for the first throttled namespace."""
        card = self.driver.find_element(By.CSS_SELECTOR, f"[data-group='{self.group}']")
        card.find_element(By.TAG_NAME, "summary").click()
        self.wait_for(f"[data-group='{self.group}'] details tbody tr")
        self.look("6-fairness")
        names = self.driver.find_elements(By.CSS_SELECTOR, "#throttled button.name")
        if names:
            names[0].click()
            self.wait_for("dialog[open] tbody tr")
            self.picture("7-why")

    def wait_for(self, selector: str) -> None:
        """Wait until the page has a matching element."""
        WebDriverWait(self.driver, PATIENCE_SECONDS).until(
            lambda driver: driver.find_elements(By.CSS_SELECTOR, selector), f"the page has no {selector}"
        )

    def picture(self, name: str) -> None:
        """Take a screenshot of the page from top to bottom."""
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
        (self.out / f"{name}.png").write_bytes(base64.b64decode(taken["data"]))

    def _resize(self, size: tuple[int, int]) -> None:
        _resize(self.driver, size)


def _started(profile: Path) -> Chrome:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise RuntimeError("no chromium or chromedriver: run `make browser` to install Debian's")
    options = ChromeOptions()
    options.binary_location = chromium
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    started = Chrome(options=options, service=ChromeService(driver))
    _resize(started, WIDE)
    return started


def _resize(driver: Chrome, size: tuple[int, int]) -> None:
    # A headless window is never narrower than 500 px; the emulated screen is.
    screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
