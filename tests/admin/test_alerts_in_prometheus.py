"""A real Prometheus scrapes a server and evaluates the alerts that ship: one of 300 groups is overloaded."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from selenium.webdriver.support.ui import WebDriverWait

from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.policy.codec import parse_document
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.browser import listening
from tests.admin.conftest import ServedApp
from tests.admin.made_up_job import MadeUpJob
from tests.admin.test_alerts import ALERTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus has it"),
]


@contextmanager
def prometheus(folder: Path, target: str, token: str) -> Iterator[str]:
    """Yield the address of a Prometheus that scrapes a server each second and lets no alert wait for its time."""
    rules = re.sub(r"\n +for: .*", "", ALERTS.read_text(encoding="utf-8"))
    (folder / "alerts.yml").write_text(rules, encoding="utf-8")
    (folder / "token").write_text(token, encoding="utf-8")
    scrape = {
        "job_name": "spark-throttle", "authorization": {"credentials_file": str(folder / "token")},
        "static_configs": [{"targets": [target]}],
    }  # fmt: skip
    often = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config = {"global": often, "rule_files": ["alerts.yml"], "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = {"config.file": "prometheus.yml", "storage.tsdb.path": "data", "web.listen-address": address}
    command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def asked(address: str, path: str) -> Any:
    try:
        with urlopen(f"{address}/api/v1/{path}", timeout=5) as answer:  # noqa: S310 - loopback
            return json.load(answer)["data"]
    except OSError:  # it begins to listen
        return None


def test_the_290th_of_300_groups_is_told_alone(tmp_path: Path, serve: Callable[..., ServedApp]) -> None:
    store = MemoryStore()
    groups: dict[str, Any] = {f"g{n:03}": {"publish": {"messages_per_second": 100}} for n in range(300)}
    groups["g289"] = {"publish": {"messages_per_second": 0.001}}
    names = {f"t{n:03}/x": {"resource_group": f"g{n:03}"} for n in range(300)}
    document = parse_document({"version": 1, "resource_groups": groups, "namespaces": names})
    PolicyService(store, clock_ms=lambda: 0).apply(document, Author("ann"))
    job = MadeUpJob(tmp_path / "control", store)
    for seconds in (1, 1, 7_200):
        job.batch(dict.fromkeys(names, 20), seconds=seconds)
    job.pulse.beat()
    watch = JobWatch({"ingest": str(tmp_path / "control")}, clock=job.clock)
    watch.look()
    served = serve(store, watch=watch)
    with (
        listening(served.app) as server,
        prometheus(tmp_path, server.removeprefix("http://"), served.tokens["viewer"]) as address,
    ):
        anything: Any = address
        alerts = WebDriverWait(anything, 60).until(lambda _: (asked(address, "alerts") or {}).get("alerts"))
        up = asked(address, "query?query=up")["result"]
    assert [each["value"][1] for each in up] == ["1"]
    assert [(each["labels"]["alertname"], each["labels"]["scope"]) for each in alerts] == [
        ("ThrottleMessagesAge", "g289")
    ]
    assert alerts[0]["state"] == "firing"
    assert "resource_group g289 in job ingest has waited for 2h" in alerts[0]["annotations"]["summary"]
