"""The page in a real browser: exceptions come first, with their ends and reasons, and an edit leaves them."""

from __future__ import annotations

from typing import Any

import pytest

from spark_throttle.policy.values import time_text
from spark_throttle.store.store import Author
from tests.admin.browser import MISSING
from tests.admin.conftest import START_MS
from tests.admin.shown_page import ShownPage

pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.filterwarnings("ignore")]

ANN = Author("ann", "until Friday")
FRIDAY_MS = START_MS + 1_000_000
FRIDAY = time_text(FRIDAY_MS)


def excepted(rate: int, *, end_ms: int = FRIDAY_MS, **more: Any) -> dict[str, Any]:
    other = {"publish": {"messages_per_second": 3 * rate}}
    exception = {"until": time_text(end_ms), "reason": "they move house", **other}
    return {"publish": {"messages_per_second": rate}, "exception": exception, **more}


def test_exceptions_come_first_and_an_edit_leaves_them_as_they_are(shown: ShownPage) -> None:
    service = shown.served.service
    service.put("resource_group", "gold", excepted(20, end_ms=FRIDAY_MS + 60_000), ANN)
    service.put("tenant", "aaa", {"publish": {"weight": 2}}, ANN)
    service.put("tenant", "acme", excepted(50, resource_group="gold"), ANN)
    service.put("tenant", "blue", excepted(5, end_ms=START_MS + 1), ANN)
    shown.served.clock[0] += 1
    shown.sign_in()
    shown.wait_for("#exceptions-about", text="2 exceptions in force, 1 ended.")
    assert shown.texts("#exceptions tbody th .long") == ["tenants.acme", "resource_groups.gold", "tenants.blue"]
    assert shown.texts("#exceptions tbody td:nth-child(2)") == ["in force", "in force", "ended"]
    shown.wait_for("#exceptions tbody td", text="publish.messages_per_second: 150")
    shown.wait_for("#exceptions tbody td", text="they move house")
    shown.wait_for("[data-entries=tenants] .quiet", text="3 entries, those with an exception in force first.")
    assert shown.texts("[data-entries=tenants] tbody th .long") == ["acme", "aaa", "blue"]
    shown.wait_for(
        "[data-entries=tenants] tbody td", text=f"exception until {FRIDAY}: publish.messages_per_second: 150"
    )
    shown.wait_for("[data-group=gold] .exception", text="publish.messages_per_second: 60 (they move house)")
    shown.wait_for("#history .exception", text=f"tenants.acme: exception given, until {FRIDAY} (they move house)")
    shown.edit_entry("tenants", "acme", {"publish.messages_per_second": "60"})
    shown.wait_for("#editor .quiet", text="Stays as it is: exception until")
    shown.save()
    shown.wait_for("[data-entries=tenants] tbody td", text="60 messages/s")
    values = service.get("tenant", "acme").values
    assert values["publish"] == {"messages_per_second": 60}
    assert values["exception"]["until"] == FRIDAY
    assert shown.complaints() == []


def test_admin_gives_an_exception_with_an_end_and_ends_it(shown: ShownPage) -> None:
    shown.sign_in()
    shown.click("[data-group=gold] .quotas button")
    fields = {"publish.messages_per_second": "60", "why": "they move house"}
    for name, typed in fields.items():
        box = shown.driver.find_element("name", name)
        box.clear()
        box.send_keys(typed)
    # As a browser's own field gives it, without keys that differ from one locale to the next.
    shown.driver.execute_script(
        "const box = document.querySelector('form.edit [name=until]'); const at = new Date(arguments[0]);"
        "at.setMinutes(at.getMinutes() - at.getTimezoneOffset()); box.value = at.toISOString().slice(0, 16);"
        "box.dispatchEvent(new Event('input', { bubbles: true }))",
        FRIDAY_MS // 60_000 * 60_000,
    )
    shown.wait_for("form.edit .end p", text="exception.publish.messages_per_second \u2013 → 60")
    shown.click("form.edit button[type=submit]")
    shown.wait_for("#exceptions-about", text="1 exception in force, 0 ended.")
    values = shown.served.service.get("resource_group", "gold").values
    assert values["publish"] == {"messages_per_second": 20, "weight": 2}
    assert values["exception"] == {
        "until": time_text(FRIDAY_MS // 60_000 * 60_000), "reason": "they move house",
        "publish": {"messages_per_second": 60},
    }  # fmt: skip
    shown.click("[data-group=gold] .quotas button")
    shown.click("form.edit [name=ended]")
    shown.click("form.edit button[type=submit]")
    shown.wait_for("#history .exception", text="exception taken back")
    assert "exception" not in shown.served.service.get("resource_group", "gold").values
    assert shown.complaints() == []


@pytest.mark.thorough
def test_exception_that_sets_no_quota_is_refused_at_its_field(shown: ShownPage) -> None:
    shown.sign_in()
    shown.click("[data-group=gold] .quotas button")
    shown.driver.execute_script("document.querySelector('form.edit [name=until]').value = '2030-01-01T00:00'")
    shown.click("form.edit button[type=submit]")
    shown.wait_for("form.edit .problem", text="until: change a quota above, or leave this empty")
