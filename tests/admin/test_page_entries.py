"""The page in a real browser: tenants, namespaces and globs are edited, the history is long, and so are its names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_throttle.policy.quotas import Quota
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.browser import MISSING, listening
from tests.admin.conftest import ServedApp
from tests.admin.made_up_job import MadeUpJob
from tests.admin.shown_page import OFFERED, Faults, ShownPage
from tests.effort import thorough_after

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.filterwarnings("ignore")]

SUBJECT = "https://login.example.org/realms/data#" + 162 * "x"


def test_every_setting_of_a_tenant_is_edited(shown: ShownPage) -> None:
    shown.served.service.put("resource_group", "iron", {}, Author("ann"))
    shown.sign_in()
    shown.edit_entry("tenants", "acme", {
        "resource_group": "iron", "publish.messages_per_second": "50", "publish.bytes_per_second": "8MiB",
        "publish.max_message_bytes": "1 MB", "publish.burst_seconds": "2.5", "publish.weight": "3",
        "publish.on_excess": "reject", "dispatch.messages_per_second": "0.5", "dispatch.on_excess": "observe",
        "why": "a larger customer",
    })  # fmt: skip
    shown.save()
    shown.wait_for(
        "#confirmation[open] .losses li", text="tenants.acme: publish.messages_per_second of resource_groups"
    )
    shown.click("#confirmation button[value=yes]")
    shown.wait_for(
        "[data-entries=tenants] .acted", text="Revision 4 is committed; the next batch of ingest will have it."
    )
    shown.wait_for(
        "[data-entries=tenants] tbody td",
        text="50 messages/s, 8 MiB/s, largest message 977 KiB, burst 2.5 s, weight 3, reject",
    )
    assert shown.served.service.get("tenant", "acme").values == {
        "resource_group": "iron",
        "publish": {
            "messages_per_second": 50, "bytes_per_second": 8 * 2**20, "max_message_bytes": 1_000_000,
            "burst_seconds": 2.5, "weight": 3, "on_excess": "reject",
        },
        "dispatch": {"messages_per_second": 0.5, "on_excess": "observe"},
    }  # fmt: skip
    shown.job.batch(OFFERED)
    shown.wait_for(
        "[data-entries=tenants] .acted", text="Revision 4 has acted since batch 15: 1 batch after the change."
    )
    assert [each for each in shown.complaints() if "428" not in each] == []


def test_tenant_is_added_only_if_it_is_new(shown: ShownPage) -> None:
    shown.sign_in()
    shown.wait_for("[data-entries=tenants] tbody tr")
    for name, said in (
        ("acme", "There is an entry of that name already"),
        ("b/c", "a tenant is the part of a namespace"),
    ):
        shown.click("[data-entries=tenants] .find button[type=button]")
        shown.type_into({"name": name, "publish.messages_per_second": "5"})
        shown.save()
        shown.wait_for("#editor .problem", text=said)
        shown.click("#editor .buttons button", text="Cancel")
    shown.click("[data-entries=tenants] .find button[type=button]")
    shown.type_into({"name": "blue", "publish.messages_per_second": "5"})
    shown.save()
    shown.wait_for("[data-entries=tenants] tbody tr", text="blue")
    assert shown.served.service.get("tenant", "blue").values == {"publish": {"messages_per_second": 5}}
    assert shown.served.service.get("tenant", "acme").values == {"resource_group": "gold"}


def test_form_of_a_namespace_keeps_what_it_does_not_edit(shown: ShownPage) -> None:
    shown.served.service.put("namespace", "acme/a", {"write_throttling": "20*delay*100", "locked": True}, Author("ann"))
    shown.sign_in()
    shown.edit_entry("namespaces", "acme/a", {"dispatch.weight": "2"})
    shown.wait_for("#editor p", text="Stays as it is: write_throttling: 20*delay*100.")
    shown.save()
    shown.wait_for("[data-entries=namespaces] .acted", text="Revision 4 is committed")
    assert shown.served.service.get("namespace", "acme/a").values == {
        "write_throttling": "20*delay*100", "locked": True, "dispatch": {"weight": 2},
    }  # fmt: skip


def test_viewer_sees_groups_and_entries_and_cannot_edit_them(shown: ShownPage) -> None:
    shown.sign_in("viewer")
    shown.wait_for("[data-group=gold] canvas")
    assert not shown.driver.find_element("css selector", "[data-group=gold] .quotas button").is_displayed()
    assert "gold" in shown.text("[data-entries=tenants] tbody tr", text="acme")
    assert shown.texts("[data-entries] button:not([type])") == ["Find", "Find", "Find"]
    edits = "[data-entries] tbody button, [data-entries] .find [type=button]"
    assert shown.driver.find_elements("css selector", edits)
    assert shown.texts(edits) == []


def test_edit_of_an_entry_that_another_overtook_is_refused(shown: ShownPage) -> None:
    shown.sign_in()
    shown.edit_entry("tenants", "acme", {"publish.weight": "2"})
    shown.served.service.put("tenant", "acme", {"resource_group": "gold", "publish": {"weight": 9}}, Author("bob"))
    shown.save()
    shown.wait_for("#editor .problem", text="Somebody else has changed this entry meanwhile; nothing was saved.")
    assert shown.served.service.get("tenant", "acme").values["publish"] == {"weight": 9}


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["messages_per_second", "burst_seconds", "weight"])
def test_number_that_is_none_of_bytes_refuses_their_units(shown: ShownPage, key: str) -> None:
    shown.sign_in()
    shown.edit_entry("tenants", "acme", {f"publish.{key}": "8MiB"})
    shown.save()
    shown.wait_for("#editor .problem", text=f'publish.{key}: "8MiB" is not a')
    assert shown.wait_for(f"#editor [name='publish.{key}']").get_attribute("aria-invalid") == "true"
    assert shown.served.store.revision() == 2


@pytest.mark.parametrize("width", thorough_after(1, [400, 800, 1400]))
@pytest.mark.parametrize("place", ["card", "dialog"])
def test_reason_of_a_refusal_is_seen_where_the_reader_looks(shown: ShownPage, width: int, place: str) -> None:
    shown.resize(width)
    shown.sign_in()
    if place == "card":
        shown.edit("publish.weight", "1001")
    else:
        shown.edit_entry("tenants", "acme", {"publish.weight": "1001", "dispatch.weight": "5"})
        shown.save()
    shown.wait_for("form.edit .problem", text="publish.weight: 1001 is more than 1000")
    script = """
        const problem = document.querySelector("form.edit .problem");
        const field = document.querySelector("form.edit [name='publish.weight']");
        const inView = (element) => {
          const box = element.getBoundingClientRect();
          const at = (y) => document.elementFromPoint(box.left + 4, y);
          return element.contains(at(box.top + 4)) && element.contains(at(box.bottom - 4));
        };
        return [inView(problem), inView(field), document.activeElement === field, problem.getAttribute("role"),
          field.getAttribute("aria-describedby") === problem.id, field.closest(".field").contains(problem)];
    """
    assert shown.driver.execute_script(script) == [True, True, True, "alert", True, True]
    shown.served.service.put("tenant", "acme", {"resource_group": "gold", "publish": {"weight": 5}}, Author("ann"))
    shown.served.service.put("resource_group", "gold", {"publish": {"messages_per_second": 7}}, Author("ann"))
    shown.driver.execute_script("document.querySelector(\"form.edit [name='publish.weight']\").value = 2")
    shown.driver.execute_script("document.querySelector('form.edit button[type=submit]').click()")
    shown.wait_for("form.edit .end .problem", text="Somebody else has changed this entry meanwhile")
    script = script.replace("[name='publish.weight']", "button[type=submit]").rpartition("return [")[0]
    assert shown.driver.execute_script(
        script + "return [inView(problem), inView(field), document.activeElement === field]"
    )
    described = "return document.querySelectorAll('form.edit [aria-describedby], form.edit [aria-invalid]').length"
    assert shown.driver.execute_script(described) == 0


@pytest.mark.parametrize("width", thorough_after(1, [400, 800, 1400]))
def test_large_numbers_of_a_group_have_room(shown: ShownPage, width: int) -> None:
    shown.resize(width)
    shown.sign_in()
    shown.wait_for("[data-group=gold] .figures dd")
    shown.faults.goes_on.clear()  # the figures stay as they are set
    script = """
        const figures = [...document.querySelectorAll("[data-group=gold] .figures dd")];
        const line = figures[0].clientHeight;
        for (const figure of figures) figure.textContent = arguments[0];
        return figures.every((figure) => figure.scrollWidth <= figure.clientWidth && figure.clientHeight === line);
    """
    assert shown.driver.execute_script(script, "93,600/s")
    assert shown.driver.execute_script(script, "26.8 MiB/s")
    shown.faults.goes_on.set()


def test_dialog_that_is_longer_than_the_window_begins_at_its_top_and_its_buttons_are_seen(shown: ShownPage) -> None:
    shown.resize(400)
    shown.sign_in()
    shown.click("#throttled tbody tr button.name", text="acme/a")
    shown.wait_for("#explanation[open] li")
    top, scrolled, height, bottom = shown.driver.execute_script("""
        const dialog = document.getElementById("explanation");
        const close = dialog.querySelector("form button").getBoundingClientRect();
        return [dialog.scrollTop, dialog.scrollHeight, dialog.clientHeight, close.bottom];
    """)
    assert (top, scrolled > height, bottom <= 900) == (0, True, True)


@pytest.mark.thorough
def test_quota_of_zero_under_delay_says_what_it_does(shown: ShownPage) -> None:
    shown.sign_in()
    shown.edit_entry("tenants", "acme", {"publish.messages_per_second": "0"})
    shown.wait_for(
        "#editor .hint", text="0 under delay admits nothing: rows wait until a bound of the queue is reached"
    )
    shown.type_into({"publish.on_excess": "reject"})
    shown.wait_until_empty("#editor .hint")
    shown.type_into({"publish.on_excess": "delay"})
    shown.save()
    shown.wait_for(
        "#confirmation[open] .losses li", text="under delay, rows wait until a bound of the queue is reached"
    )
    shown.click("#confirmation button[value=yes]")
    shown.wait_for("[data-entries=tenants] .notes li", text="on_excess: reject rejects them at once")
    shown.wait_for("[data-entries=tenants] tbody tr", text="0 admits nothing: rows wait until a bound")


def test_confirmation_shows_before_and_after_in_a_narrow_window(shown: ShownPage) -> None:
    shown.resize(400)
    shown.sign_in()
    shown.edit_entry("tenants", "acme", {"publish.messages_per_second": "0"})
    shown.wait_for("#editor .hint", text="0 under delay admits nothing")
    shown.save()
    shown.wait_for("#confirmation[open] td")
    cells = {}
    for title in ("What", "Before", "After"):
        selector = f"#confirmation td[data-label={title}]"
        left, right = shown.sides(selector)
        assert 0 <= left < right <= 400
        cells[title] = shown.driver.find_element("css selector", selector).text
    assert (cells["What"], cells["After"]) == ("publish.messages_per_second", "0")
    assert shown.driver.execute_script("return document.querySelector('#confirmation .scroll').scrollWidth") <= 400
    label = "return getComputedStyle(document.querySelector('#confirmation td[data-label=After]'), '::before').content"
    assert shown.driver.execute_script(label) == '"After"'
    shown.click("#confirmation button[value=yes]")
    shown.wait_for("[data-entries=tenants] .notes li", text="on_excess: reject rejects them at once")


@pytest.mark.parametrize("width", thorough_after(1, [400, 800, 1400]))
def test_long_names_leave_the_buttons_of_the_history_in_the_window(shown: ShownPage, width: int) -> None:
    author = Author(SUBJECT, 200 * "w", None, "api", f"signed in as {SUBJECT}")
    shown.served.service.put("tenant", "blue" + 190 * "e", {"resource_group": "gold"}, author)
    shown.served.service.put("tenant", "acme", {"resource_group": "gold", "publish": {"weight": 2}}, author)
    shown.resize(width)
    shown.sign_in()
    shown.wait_for("#history [aria-label='Roll back to revision 3']")
    left, right = shown.sides("#history [aria-label='Roll back to revision 3']")
    assert 0 <= left < right <= width
    left, right = shown.sides("[data-entries=tenants] tbody tr:nth-child(2) button")
    assert 0 <= left < right <= width
    assert shown.driver.find_elements("css selector", f"#history [title='{SUBJECT}']")
    assert shown.driver.execute_script("return document.documentElement.scrollWidth") <= width


def test_history_goes_back_to_the_first_revision(shown: ShownPage) -> None:
    for weight in range(2, 24):
        values = {"publish": {"messages_per_second": 20, "weight": weight}}
        shown.served.service.put("resource_group", "gold", values, Author("ann", f"weight {weight}"))
    shown.sign_in()
    shown.wait_for("#history tbody tr", text="weight 23")
    counts = [len(shown.driver.find_elements("css selector", "#history tbody tr"))]
    older = shown.driver.find_element("id", "older")
    for last in ("weight 6", "first customers"):
        shown.driver.execute_script("arguments[0].click()", older)
        shown.wait_for("#history tbody tr", text=last)
        counts.append(len(shown.driver.find_elements("css selector", "#history tbody tr")))
    assert counts == [10, 20, 23]
    assert not older.is_displayed()
    # A new change comes on top; what was shown stays.
    shown.served.service.put("tenant", "blue", {}, Author("ann", "one more"))
    shown.wait_for("#history tbody tr", text="one more")
    assert len(shown.driver.find_elements("css selector", "#history tbody tr")) == 24
    shown.wait_for("#history tbody tr", text="first customers")


def test_name_of_every_field_is_the_key_of_the_document_in_words(shown: ShownPage) -> None:
    shown.sign_in()
    shown.edit_entry("tenants", "acme", {})
    script = (
        "return [...document.querySelectorAll('#editor label:not(.why)')].map(label =>"
        " [label.querySelector('span').textContent, label.querySelector('input, select').name])"
    )
    found = shown.driver.execute_script(script)
    assert len(found) == 2 + 2 * len(Quota.model_fields)
    assert all(name.split(".")[-1] == title.lower().replace(" ", "_") for title, name in found)


@pytest.mark.parametrize("namespaces", thorough_after(2, [10_000, 0, 1]))
def test_page_of_many_and_of_no_namespaces(
    driver: Chrome, serve: Callable[..., ServedApp], tmp_path: Path, namespaces: int
) -> None:
    from spark_throttle.policy.codec import parse_document

    store = MemoryStore()
    names = [f"acme/n{number:05}" for number in range(namespaces)]
    if namespaces:
        document = {"namespaces": {name: {"publish": {"weight": 2}} for name in names}}
        PolicyService(store, clock_ms=lambda: 0).apply(parse_document(document), Author("ann"))
    served = serve(store)
    faults = Faults(served.app)
    with listening(faults) as address:
        shown = ShownPage(driver, address, served, MadeUpJob(tmp_path / "unused", store), faults)
        shown.sign_in()
        about = {
            0: "No namespace and no glob has an entry: the defaults apply to every namespace.",
            1: "1 entry, by name.", 10_000: "The first 10 entries by name.",
        }[namespaces]  # fmt: skip
        shown.wait_for("[data-entries=namespaces] .quiet", text=about)
        shown.wait_for("[data-entries=resource_groups] .quiet", text="There is no resource group yet.")
        shown.wait_for("#scopes-about", text="The server watches no job: start it with --job")
        shown.wait_for("#throttled-count", text="The server watches no job: start it with --job")
        shown.wait_for("#no-history" if not namespaces else "#history tbody tr")
        if namespaces == 10_000:
            shown.wait_for("[data-entries=namespaces] input").send_keys("acme/n0999")
            shown.click("[data-entries=namespaces] .find button")
            shown.wait_for("[data-entries=namespaces] .quiet", text="10 entries, by name.")
            assert shown.texts("[data-entries=namespaces] tbody th .long") == names[-10:]
        assert shown.complaints() == []
        driver.execute_script("sessionStorage.clear()")
        driver.get("about:blank")
