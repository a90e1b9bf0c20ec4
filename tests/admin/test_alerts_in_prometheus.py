"""A real Prometheus scrapes a server, for the alerts and dashboards that ship: one of 300 groups is overloaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from demos.admin.alerting import asked, prometheus
from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.policy.codec import parse_document
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.browser import listening
from tests.admin.conftest import served_over
from tests.admin.made_up_job import MadeUpJob

GRAFANA: Final = Path(__file__).parents[2] / "conf" / "grafana"
DASHBOARDS: Final = sorted(GRAFANA.glob("*.json"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus has it"),
]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a Prometheus that scrapes a job with 300 groups, of which the 290th is overloaded."""
    folder, store = tmp_path_factory.mktemp("prometheus"), MemoryStore()
    groups: dict[str, Any] = {f"g{n:03}": {"publish": {"messages_per_second": 100}} for n in range(300)}
    groups["g289"] = {"publish": {"messages_per_second": 0.001, "bytes_per_second": 1e6}}
    names = {f"t{n:03}/x": {"resource_group": f"g{n:03}"} for n in range(300)}
    document = parse_document({"version": 1, "resource_groups": groups, "namespaces": names})
    PolicyService(store, clock_ms=lambda: 0).apply(document, Author("ann"))
    job = MadeUpJob(folder / "control", store)
    for seconds in (1, 1, 7_200):
        job.batch(dict.fromkeys(names, 20), seconds=seconds)
    job.pulse.beat()
    watch = JobWatch({"ingest": str(folder / "control")}, clock=job.clock)
    watch.look()
    served = served_over(store, folder, watch=watch)
    with (
        listening(served.app) as server,
        prometheus(folder, server.removeprefix("http://"), served.tokens["viewer"]) as address,
    ):
        yield address


def test_the_290th_of_300_groups_is_told_alone(scraped: str) -> None:
    anything: Any = scraped
    alerts = WebDriverWait(anything, 60).until(lambda _: (asked(scraped, "alerts") or {}).get("alerts"))
    up = asked(scraped, "query?query=up")["result"]
    assert [each["value"][1] for each in up] == ["1"]
    # No batch runs while Prometheus looks, so after a while nobody moves either.
    assert {each["labels"]["scope"] for each in alerts} == {"g289"}
    alerts = [each for each in alerts if each["labels"]["alertname"] == "ThrottleMessagesAge"]
    assert alerts[0]["state"] == "firing"
    assert "resource_group g289 in job ingest has waited for 2h" in alerts[0]["annotations"]["summary"]


@pytest.mark.parametrize("board", DASHBOARDS, ids=[board.stem for board in DASHBOARDS])
def test_each_panel_of_a_dashboard_has_something_to_draw(scraped: str, board: Path) -> None:
    chosen = {"$spark_job": "ingest", "$level": "resource_group", "$scope": "g289", "$__rate_interval": "10s"}
    anything: Any = scraped
    counted = quote("rate(spark_throttle_admitted_messages_total[10s])")
    WebDriverWait(anything, 60).until(lambda _: (asked(scraped, f"query?query={counted}") or {}).get("result"))
    panels = json.loads(board.read_text(encoding="utf-8"))["panels"]
    assert len(panels) >= 10
    for panel in panels:
        for target in panel["targets"]:
            expression = reduce(lambda text, name: text.replace(name, chosen[name]), chosen, target["expr"])
            assert "$" not in expression
            # Nothing is rejected while Prometheus looks, and the panel leaves out what is 0.
            found = asked(scraped, f"query?query={quote(expression.removesuffix(' > 0'))}")
            assert (found or {}).get("result"), (panel["title"], expression)


def test_worst_of_300_groups_stands_first_on_the_dashboard_of_all_jobs(scraped: str) -> None:
    fleet = json.loads((GRAFANA / "fleet.json").read_text(encoding="utf-8"))
    (worst,) = (panel["targets"][0]["expr"] for panel in fleet["panels"] if panel["title"] == "Who waits the longest")
    anything: Any = scraped
    path = f"query?query={quote(worst.replace('$spark_job', 'ingest'))}"
    found = WebDriverWait(anything, 60).until(lambda _: (asked(scraped, path) or {}).get("result"))
    assert found[0]["metric"]["scope"] == "g289"
    assert int(found[0]["value"][1]) >= 7_200
