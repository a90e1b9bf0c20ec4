"""A real Prometheus on loopback with the alerts that ship, in which no alert waits for its time."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import yaml

ALERTS: Final = Path(__file__).parents[2] / "conf" / "prometheus" / "alerts.yml"


def is_installed() -> bool:
    """Return whether there is a Prometheus: Debian's package of that name has it."""
    return shutil.which("prometheus") is not None


@contextmanager
def prometheus(
    folder: Path, target: str, token: str, *, every_seconds: int = 1, oldest_seconds: int = 3600
) -> Iterator[str]:
    """Yield the address of a Prometheus that scrapes a server again and again.

    Parameters
    ----------
    oldest_seconds
        From when on a message is too old: an hour in the alerts that ship.
    """
    rules = re.sub(r"\n +for: .*", "", ALERTS.read_text(encoding="utf-8")).replace("> 3600", f"> {oldest_seconds}")
    (folder / "alerts.yml").write_text(rules, encoding="utf-8")
    (folder / "token").write_text(token, encoding="utf-8")
    scrape = {
        "job_name": "spark-throttle", "authorization": {"credentials_file": str(folder / "token")},
        "static_configs": [{"targets": [target]}],
    }  # fmt: skip
    often = {"scrape_interval": f"{every_seconds}s", "evaluation_interval": "1s"}
    config = {"global": often, "rule_files": ["alerts.yml"], "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = {"config.file": "prometheus.yml", "storage.tsdb.path": "data", "web.listen-address": address}
    command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as process:  # noqa: S603
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def asked(address: str, path: str) -> Any:  # noqa: ANN401 - what Prometheus says
    """Return an answer of Prometheus' API; `None` while it begins to listen."""
    try:
        with urlopen(f"{address}/api/v1/{path}", timeout=5) as answer:  # noqa: S310 - loopback
            return json.load(answer)["data"]
    except OSError:
        return None
