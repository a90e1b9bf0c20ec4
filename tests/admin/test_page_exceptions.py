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
