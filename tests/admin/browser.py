"""Headless Chromium on a page that this process serves on loopback."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_throttle.admin.api.server import make_server

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from starlette.types import ASGIApp

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = None if CHROMIUM and DRIVER else "no chromium or chromedriver: run `make browser` (apt-get) to install them"


@contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    """Yield the address of an application that listens on a free port of loopback."""
    server = make_server(app, host="127.0.0.1", port=0, log_level="warning")
    port, started = server.port, threading.Event()
    bound = server.startup

    async def startup(sockets: object = None) -> None:
        await bound()
        started.set()

    server.startup = startup  # type: ignore[method-assign] # tells when it listens, which uvicorn's thread does not
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert started.wait(60)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def chromium(profile: Path, *, width: int = 1280, height: int = 1000, dark: bool = False) -> Iterator[Chrome]:
    """Yield a headless browser with a new profile, which talks to nobody else."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
        f"--user-data-dir={profile}", f"--window-size={width},{height}",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
    ):  # fmt: skip
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=ChromeService(str(DRIVER)))
    try:
        # A headless window is never narrower than 500 px; the emulated screen is.
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False,
        })  # fmt: skip
        yield driver
    finally:
        driver.quit()


def shot(driver: Chrome, path: Path) -> None:
    """Save the whole page as a picture."""
    import base64

    path.parent.mkdir(parents=True, exist_ok=True)
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(taken["data"]))
