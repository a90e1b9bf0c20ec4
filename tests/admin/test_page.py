"""The page in a real browser: sign in, see the groups, edit a quota and see it act."""

from __future__ import annotations

import pytest

from spark_throttle.sharing.status import PeerStatus
from spark_throttle.store.store import Author
from tests.admin.browser import MISSING
from tests.admin.shown_page import OFFERED, ShownPage

pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.filterwarnings("ignore")]


def test_admin_signs_in_edits_a_quota_and_sees_it_act(shown: ShownPage) -> None:
    shown.sign_in()
    shown.wait_for("[data-group=gold] canvas")
    assert "gold delaying 65/s 20/s 20/s 100 % 0/s" in shown.text("#scopes tbody tr", text="gold").replace("\n", " ")
    shown.edit("publish.messages_per_second", "2.5")
    shown.wait_for("[data-group=gold] .acted", text="Revision 3 is committed; the next batch of ingest will have it.")
    shown.job.batch(OFFERED)
    shown.wait_for("[data-group=gold] .acted", text="Revision 3 has acted since batch 15: 1 batch after the change.")
    shown.wait_for("[data-group=gold] .quotas", text="publish: 2.5 messages/s, burst 10 s, weight 2, delay")
    shown.wait_for("#facts", text="revision 3 in force")
    shown.wait_for("#history tbody tr", text="tried by a test")
    assert shown.served.service.get("resource_group", "gold").values == {
        "publish": {"messages_per_second": 2.5, "weight": 2}
    }
    (entry,) = shown.served.service.history(limit=1)
    assert entry.door == "page"
    assert shown.text("#history tbody tr", text="tried by a test").count(f"page: {entry.caller}") == 1
    assert [line["door"] for line in shown.served.audited] == ["page"]
    assert shown.complaints() == []


def test_dead_job_is_shown_as_silent_and_a_change_finds_no_job_listening(shown: ShownPage) -> None:
    shown.sign_in()
    shown.wait_for("#facts", text="reporting · sign of life 0 s ago · batch 14, 0 s ago")
    shown.job.now_ms += 60_000
    shown.wait_for("#job-problem", text="ingest: no job is listening: no sign of life for 60 s (the bound is 30 s)")
    shown.wait_for("#facts", text="silent · sign of life 60 s ago · batch 14, 60 s ago")
    shown.wait_for("#scopes tbody tr", text="gold silent")
    shown.wait_for("#throttled-count", text="When the job was last seen: ")
    shown.edit("publish.messages_per_second", "2.5")
    shown.wait_for("[data-group=gold] .acted", text="Revision 3 is committed, but no job is listening: no sign of life")
    assert shown.complaints() == []


def test_throttled_namespaces_are_shown_with_their_reason_and_as_text(shown: ShownPage) -> None:
    shown.sign_in("viewer")
    assert "group gold (messages" in shown.text("#throttled tbody tr", text="acme/a")
    shown.click("#throttled tbody tr button.name", text="acme/a")
    shown.wait_for("dialog[open] li", text="resource group: gold")
    assert shown.driver.find_elements("css selector", "main script") == []
    assert shown.complaints() == []


def test_processing_time_is_shown_where_a_policy_limits_it(shown: ShownPage) -> None:
    shown.sign_in("viewer")
    shown.wait_for("#throttled tbody tr", text="acme/a")
    assert not shown.driver.find_element("id", "time").is_displayed()
    author = Author("ann")
    service = shown.served.service
    half = {"request_percentage": 50, "burst_seconds": 1}
    service.put("tenant", "acme", {"resource_group": "gold", "publish": half}, author)
    more = {"messages_per_second": 20, "request_percentage": 120, "burst_seconds": 1, "weight": 2}
    service.put("resource_group", "gold", {"publish": more}, author)
    service.put("exempt", "free/x", {}, author)
    for seconds in (1, 1, 1, 0.5):
        shown.job.batch(OFFERED, seconds=seconds, used_ms={"acme/a": 850, "free/x": 30}, unattributed_ms=4)
    # Half a second is there at first, 0.85 s go three times, and half a core earns 0.5, 0.5 and 0.25 s: 0.8 s are owed.
    # No debt is forgiven, though it is more than the 0.5 s of the window. Half a core pays it in 1.6 s.
    shown.wait_for("#times tbody tr", text="tenant acme 50 % 170 % 340 % -0.8 s 1.6 s")
    about = "In percent of one core, over the 0.5 s between the newest two epochs."
    shown.wait_for("#time-about", text=f"{about} Exempt namespaces used 6 %, which limits nobody. 0.8 % belongs")
    shown.wait_for("[data-group=gold] .figures", text="170 % of 120 %")
    shown.wait_for("#throttled tbody tr", text="tenant acme (processing time, 340 % used)")
    assert shown.complaints() == []


def test_shares_are_shown_where_jobs_share_quotas(shown: ShownPage) -> None:
    shown.sign_in("viewer")
    shown.wait_for("[data-group=gold] canvas")
    assert not shown.driver.find_element("id", "shared").is_displayed()
    shown.job.share_with(PeerStatus("beta", "b", 900, "live"), PeerStatus("<b>gamma", "c", 70_000, "dead"))
    shown.job.now_ms += 2000
    about = "ingest shares quotas with 1 live job; <b>gamma is dead. The others: beta (live, reported 0.9 s ago), "
    shown.wait_for("#shared-about", text=f"{about}<b>gamma (dead, reported 70 s ago).")
    shown.wait_for("#shares tbody tr", text="group gold 20/s 6.67/s 50 %")
    shown.wait_for("[data-group=gold] .figures", text="Share of quota 6.67 of 20/s")
    assert shown.driver.find_element("id", "shared-problem").text == ""
    shown.job.share_with(problem="OSError: unreachable", is_leased=False)
    shown.job.now_ms += 2000
    shown.wait_for("#shared-problem", text="OSError: unreachable")
    shown.wait_for("#shared-about", text="0 live jobs; it has only its floor. No other job has joined.")
    assert shown.complaints() == []


def test_costs_that_are_not_told_yet_are_shown_as_estimated(shown: ShownPage) -> None:
    shown.sign_in("viewer")
    shown.served.service.put("resource_group", "gold", {"publish": {"messages_per_second": 10_000}}, Author("ann"))
    for _ in range(2):
        shown.job.batch({"acme/a": 3}, units=5, identity=7)
    shown.wait_for("[data-group=gold] .figures", text="Cost not told yet 6 messages, estimated at 30 units")
    assert shown.complaints() == []


def test_wrong_number_is_pointed_at_and_nothing_is_saved(shown: ShownPage) -> None:
    shown.sign_in()
    shown.edit("publish.bytes_per_second", "many")
    shown.wait_for("form.edit .problem", text='publish.bytes_per_second: "many" is not a number of bytes')
    assert shown.driver.find_element("name", "publish.bytes_per_second").get_attribute("aria-invalid") == "true"
    box = shown.driver.find_element("name", "publish.weight")
    box.clear()
    box.send_keys("1001")
    bytes_box = shown.driver.find_element("name", "publish.bytes_per_second")
    bytes_box.clear()
    bytes_box.send_keys("8MiB")
    shown.click("form.edit button[type=submit]")
    shown.wait_for("form.edit .problem", text="publish.weight: 1001 is more than 1000")
    assert shown.served.store.revision() == 2


def test_edit_that_another_overtook_is_refused(shown: ShownPage) -> None:
    shown.sign_in()
    shown.click("[data-group=gold] .quotas button")
    shown.served.service.put("resource_group", "gold", {"publish": {"messages_per_second": 99}}, Author("bob"))
    shown.wait_for("[data-group=gold] .quotas", text="publish: 99 messages/s")
    shown.driver.find_element("name", "why").send_keys("too late")
    shown.click("form.edit button[type=submit]")
    shown.wait_for("form.edit .problem", text="Somebody else has changed this entry meanwhile; nothing was saved.")
    assert shown.served.service.get("resource_group", "gold").values == {"publish": {"messages_per_second": 99}}


def test_change_that_costs_protection_is_shown_and_confirmed(shown: ShownPage) -> None:
    shown.sign_in()
    shown.edit("publish.messages_per_second", "0")
    shown.wait_for("#confirmation[open] .losses li", text="messages_per_second becomes 0 (it was 20)")
    shown.wait_for("#confirmation td", text="publish.messages_per_second")
    shown.click("#confirmation button[value=no]")
    shown.wait_for("form.edit .problem", text="It was not confirmed, and nothing was changed.")
    assert shown.served.store.revision() == 2
    shown.click("form.edit button[type=submit]")
    shown.click("#confirmation[open] button[value=yes]")
    shown.wait_for("#facts", text="store revision 3")
    assert [message for message in shown.complaints() if "428" not in message] == []


def test_rollback_shows_the_difference_first(shown: ShownPage) -> None:
    shown.sign_in()
    shown.click("[aria-label='Roll back to revision 1']")
    rows = [shown.text(f"#confirmation[open] tbody tr:nth-child({at})") for at in (1, 2)]
    assert rows == ["tenants.acme there removed", "tenants.acme.resource_group gold \u2013"]
    shown.click("#confirmation button[value=yes]")
    shown.wait_for("#history tbody tr", text="back to revision 1")
    assert shown.served.store.revision() == 3
    assert shown.complaints() == []


def test_wrong_token_is_refused_and_not_kept(shown: ShownPage) -> None:
    shown.served.tokens["admin"] = "throttle_000000000000_" + "A" * 43
    shown.sign_in()
    shown.wait_for("#sign-in-problem", text="The token is unknown or has expired.")
    assert shown.driver.execute_script("return sessionStorage.length") == 0


def test_locked_entries_are_shown_with_every_character_of_a_name_and_signing_out_forgets_token_and_numbers(
    shown: ShownPage,
) -> None:
    for name in ("acme/x", "acme/\u200by"):
        shown.served.service.put("namespace", name, {"locked": True}, Author("ann"))
    shown.sign_in()
    shown.wait_for("[data-group=gold] canvas")
    shown.click("#throttled tbody tr button.name", text="acme/a")
    shown.click("#explanation[open] form button")
    shown.wait_for("#locks tbody th", text="acme/x")
    shown.wait_for("#locks tbody th", text="acme/\\u{200b}y")
    shown.click("#sign-out")
    assert shown.driver.find_element("id", "token").is_displayed()
    assert shown.driver.find_elements("css selector", "[data-group]") == []
    left = shown.driver.execute_script("return document.body.innerHTML")
    assert [word for word in ("acme", "gold", "ingest", "first customers") if word in left] == []
    assert shown.driver.execute_script("return sessionStorage.length") == 0


def test_every_field_and_button_has_a_name_and_the_keyboard_reaches_them(shown: ShownPage) -> None:
    shown.sign_in()
    shown.click("[data-group=gold] .quotas button")
    nameless = shown.driver.execute_script(
        "return [...document.querySelectorAll('input, select, button, [role=img], meter')].filter(e =>"
        " e.offsetParent && !(e.labels && e.labels.length) && !e.textContent.trim() && !e.getAttribute('aria-label'))"
        ".map(e => e.outerHTML)"
    )
    assert nameless == []
    negative = shown.driver.execute_script(
        "return [...document.querySelectorAll('button, input, select, summary')].filter(e => e.tabIndex < 0).length"
    )
    assert negative == 0
    assert shown.driver.switch_to.active_element.get_attribute("name") == "publish.messages_per_second"


def test_page_is_no_wider_than_its_window_and_loads_nothing_from_elsewhere(shown: ShownPage) -> None:
    shown.resize(400)
    shown.sign_in()
    shown.wait_for("[data-group=gold] canvas")
    shown.wait_for("#throttled tbody tr")
    for width in (400, 1280):
        shown.resize(width)
        assert shown.driver.execute_script("return document.documentElement.scrollWidth") <= width
    loaded = shown.driver.execute_script("return performance.getEntriesByType('resource').map(r => r.name)")
    assert loaded
    assert all(name.startswith(shown.address) for name in loaded)


def test_text_stands_out_from_its_ground(shown: ShownPage) -> None:
    """WCAG 2.2 asks for 4.5 to 1."""
    shown.sign_in()
    shown.wait_for("#throttled tbody tr")
    names = ["ink", "quiet", "accent", "good", "warn", "bad", "card", "ground", "on-accent"]
    script = (
        "const style = getComputedStyle(document.documentElement);"
        "return arguments[0].map(name => style.getPropertyValue('--' + name))"
    )
    grounds = set()
    for scheme in ("light", "dark"):
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        shown.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        colours = dict(zip(names, shown.driver.execute_script(script, names), strict=True))
        grounds.add(colours["ground"])
        for text in ("ink", "quiet", "accent", "good", "warn", "bad"):
            assert contrast(colours[text], colours["card"]) >= 4.5, (text, scheme)
        assert contrast(colours["quiet"], colours["ground"]) >= 4.5
        assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
    assert len(grounds) == 2


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours such as #fff."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    digits = colour.strip().removeprefix("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
