"""The page in a real browser: groups and tenants, the worst first, opened and over time; what a tenant's people see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import write_deltalake

from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.control.reports import read_reports
from spark_throttle.status.usage_table import batch_usage
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.browser import MISSING, listening
from tests.admin.conftest import ServedApp
from tests.admin.made_up_job import MadeUpJob
from tests.admin.shown_page import Faults, ShownPage, browser_log

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.filterwarnings("ignore")]

GROUPS = 300
WORST = "team-289"
ANN = Author("ann")


@pytest.fixture
def fleet(driver: Chrome, serve: Callable[..., ServedApp], tmp_path: Path) -> Iterator[ShownPage]:
    """The page of a server that watches two jobs of 300 groups, of which the 290th is overloaded."""
    store = MemoryStore()
    service = PolicyService(store, clock_ms=lambda: 0)
    from spark_throttle.policy.codec import parse_document

    quota = {"publish": {"messages_per_second": 20}}
    service.apply(parse_document({
        "resource_groups": {f"team-{at:03}": quota for at in range(GROUPS)},
        "tenants": {f"customer-{at:03}": {"resource_group": f"team-{at:03}"} for at in range(GROUPS)}
        | {"acme": {"publish": {"messages_per_second": 5}}},
    }), ANN)  # fmt: skip
    jobs = {name: MadeUpJob(tmp_path / name, store) for name in ("ingest", "export")}
    for _ in range(12):
        for name, job in jobs.items():
            offered = {f"customer-{at:03}/orders": 2 for at in range(0, GROUPS, 3)}
            job.batch(offered | {"customer-289/orders": 80 if name == "ingest" else 1, "acme/a": 9})
    for job in jobs.values():
        job.pulse.beat()
    ingest = jobs["ingest"]
    for batch, report in read_reports(ingest.directory, after_batch=-1).items():
        write_deltalake(str(tmp_path / "usage"), batch_usage(ingest.directory, report, batch), mode="append")
    paths = {name: str(job.control_path) for name, job in jobs.items()}
    watch = JobWatch(paths, clock=ingest.clock, usage_tables={"ingest": str(tmp_path / "usage")})
    watch.look()
    served = serve(store, watch=watch)
    faults = Faults(served.app)
    with listening(faults) as address:
        yield ShownPage(driver, address, served, ingest, faults)
        driver.execute_script("sessionStorage.clear()")
        driver.get("about:blank")
        browser_log(driver)


def test_overloaded_group_of_300_is_the_first_row_and_its_history_outlives_the_server(fleet: ShownPage) -> None:
    fleet.sign_in("viewer")
    fleet.wait_for("#scopes-about", text="1 of 300 groups throttled.")
    assert fleet.text("#scopes tbody tr").startswith(WORST)
    fleet.click("#scopes tbody tr button.name", text=WORST)
    # This server has seen the newest batches alone; the usage table has those before.
    label = fleet.wait_for(f"[data-group={WORST}] .chart[aria-label*='80 per second offered']").get_attribute(
        "aria-label"
    )
    assert "20 admitted, quota 20" in label
    points = "return performance.getEntriesByType('resource').filter(r => r.name.includes('/series')).length"
    assert fleet.driver.execute_script(points) >= 1
    assert fleet.complaints() == []


def test_a_link_shows_the_same_job_scope_and_range(fleet: ShownPage) -> None:
    fleet.sign_in("viewer")
    fleet.click("#scopes tbody tr button.name", text=WORST)
    fleet.wait_for(f"[data-group={WORST}] canvas")
    fleet.driver.execute_script(
        "const range = document.getElementById('range'); range.value = '3600'; range.dispatchEvent(new Event('change'))"
    )
    link = fleet.driver.current_url
    assert link.endswith(f"#range=3600&open={WORST}")
    fleet.driver.get("about:blank")
    fleet.driver.get(link)
    fleet.wait_for(f"[data-group={WORST}] canvas")
    assert fleet.driver.execute_script("return document.getElementById('range').value") == "3600"


def test_groups_and_tenants_are_found_by_a_part_of_their_names(fleet: ShownPage) -> None:
    fleet.sign_in("viewer")
    fleet.wait_for("#scopes-about", text="of 300 groups")
    fleet.wait_for("#scope-search").send_keys("-28")
    fleet.wait_for("#scopes-about", text="1 of 10 groups whose names have -28 in them throttled.")
    fleet.click("[name=level][value=tenant]")
    fleet.wait_for("#scopes-about", text="of 10 tenants")
    fleet.driver.find_element("id", "scope-search").clear()
    fleet.wait_for("#scope-search").send_keys("nobody")
    fleet.wait_for("#scopes-about", text="No tenant whose names have nobody in them.")


def test_several_jobs_are_seen_at_a_glance_and_one_is_chosen(fleet: ShownPage) -> None:
    fleet.sign_in("viewer")
    fleet.wait_for("#jobs-about", text="All 2 jobs report.")
    fleet.click("#jobs-table button.name", text="export")
    fleet.wait_for("#scopes-about", text="0 of 300 groups throttled.")
    assert fleet.driver.execute_script("return document.getElementById('job').value") == "export"


def test_a_tenants_people_see_their_tenant_its_namespaces_and_nothing_of_others(fleet: ShownPage) -> None:
    fleet.sign_in("tenant_admin")
    fleet.wait_for("#scopes-title", text="Tenant acme")
    fleet.wait_for("[data-tenant=acme] canvas")
    fleet.wait_for("#throttled tbody tr", text="acme/a")
    shown = fleet.driver.execute_script("return document.body.innerText")
    assert [word for word in ("customer-", "team-", "Resource groups", "Changes", "Edit") if word in shown] == []
    assert fleet.complaints() == []


def test_an_opened_group_is_no_wider_than_the_window(fleet: ShownPage) -> None:
    fleet.resize(400)
    fleet.sign_in("viewer")
    fleet.click("#scopes tbody tr button.name", text=WORST)
    fleet.wait_for(f"[data-group={WORST}] canvas")
    for width in (400, 1280):
        fleet.resize(width)
        assert fleet.driver.execute_script("return document.documentElement.scrollWidth") <= width


def test_what_a_change_would_have_done_is_told_before_it_is_made(fleet: ShownPage) -> None:
    fleet.sign_in()
    fleet.click("#scopes tbody tr button.name", text=WORST)
    fleet.click(f"[data-group={WORST}] .quotas button")
    box = fleet.driver.find_element("name", "publish.messages_per_second")
    box.clear()
    box.send_keys("90")
    fleet.click("form.edit button", text="What if?")
    fleet.wait_for("form.edit tbody tr", text=f"group {WORST}")
    assert fleet.served.store.revision() == 1
    box.clear()
    box.send_keys("many")
    fleet.click("form.edit button", text="What if?")
    fleet.wait_for("form.edit .problem", text="is not a number")


def test_a_revision_shows_what_it_changed(fleet: ShownPage) -> None:
    service = fleet.served.service
    service.put("tenant", "acme", {"publish": {"messages_per_second": 2}}, Author("carol", "a slip"))
    fleet.sign_in("viewer")
    fleet.click("#history tbody tr button.name[aria-label*='revision 2']")
    fleet.wait_for("#explanation[open] tbody tr", text="tenants.acme.publish.messages_per_second 5 2")
    fleet.wait_for("#explanation-title", text="What carol changed in revision 2")


@pytest.mark.thorough
def test_a_link_with_words_that_the_page_does_not_know_shows_the_presets(fleet: ShownPage) -> None:
    fleet.sign_in("viewer")
    fleet.wait_for("#scopes-about", text="of 300 groups")
    fleet.driver.get(f"{fleet.address}#level=foo&range=abc&open=zzz")
    fleet.driver.refresh()
    fleet.wait_for("#scopes-about", text="of 300 groups")
    assert fleet.driver.execute_script("return document.getElementById('range').value") == "300"
