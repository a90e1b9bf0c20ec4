"""The page in a real browser while the server fails, refuses or takes its time: it says what to do."""

from __future__ import annotations

import pytest
from starlette.responses import HTMLResponse, JSONResponse, Response

from spark_throttle.errors import StoreUnavailableError
from spark_throttle.store.store import Author
from tests.admin.browser import MISSING
from tests.admin.shown_page import ShownPage
from tests.effort import thorough_after

pytestmark = [pytest.mark.skipif(MISSING is not None, reason=str(MISSING)), pytest.mark.filterwarnings("ignore")]


def problem(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status)


@pytest.mark.parametrize(
    ("answer", "said"),
    thorough_after(
        1,
        [
            (
                problem(500, "the server failed"),
                "The server failed. The page tries again by itself. If this lasts, tell",
            ),
            (problem(503, "the store is away"), "The store is away. The page tries again by itself."),
            (problem(429, "too many requests"), "Too many requests. The page tries again by itself."),
            (HTMLResponse("<h1>Bad gateway</h1>", 502), "The server answered 502. The page tries again by itself."),
            (HTMLResponse("<h1>Sign in</h1>"), "What answered is not the admin API. The page tries again by itself."),
        ],
    ),
)
def test_page_that_gets_no_news_says_so_and_goes_on(shown: ShownPage, answer: Response, said: str) -> None:
    shown.sign_in()
    shown.wait_for("[data-group=gold] canvas")
    shown.faults.answers["GET"] = answer
    shown.wait_for("#alerts", text=said)
    assert shown.driver.find_element("css selector", "[data-group=gold] canvas").is_displayed()
    shown.faults.answers.clear()
    shown.wait_until_empty("#alerts")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "The token is unknown or has expired. Sign in with one that is valid"),
        (403, "This page needs a token that may read. No."),
    ],
)
def test_page_whose_token_counts_no_longer_signs_out_and_says_why(shown: ShownPage, status: int, said: str) -> None:
    shown.sign_in()
    shown.wait_for("[data-group=gold] canvas")
    shown.faults.answers["GET"] = problem(status, "no")
    shown.wait_for("#sign-in-problem", text=said)
    assert shown.driver.execute_script("return sessionStorage.length") == 0


def test_reload_while_the_server_fails_keeps_the_token(shown: ShownPage) -> None:
    shown.sign_in()
    shown.wait_for("[data-group=gold] canvas")
    shown.faults.answers["GET"] = problem(500, "the server failed")
    shown.driver.refresh()
    shown.wait_for("#sign-in-problem", text="The server failed. The page tries again by itself.")
    shown.faults.answers.clear()
    shown.wait_for("[data-group=gold] canvas")


@pytest.mark.parametrize(
    ("status", "said"),
    thorough_after(
        2,
        [
            (500, "No. It is unknown whether the change was made: look at the list of changes"),
            (403, "No. Nothing was changed. An administrator may do this, or give you a token that may."),
            (409, "No. Nothing was changed. Look at what is there, and edit that."),
            (503, "No. Nothing was changed. Try again in a moment."),
            (504, "No. It is unknown whether the change was made: look at the list of changes"),
            (401, "No. Nothing was changed. Sign in with a token that is valid."),
        ],
    ),
)
def test_change_that_fails_says_whether_it_was_made(shown: ShownPage, status: int, said: str) -> None:
    shown.sign_in()
    shown.edit_entry("tenants", "acme", {"publish.weight": "2"})
    shown.faults.answers["PUT"] = problem(status, "no")
    shown.save()
    text = shown.wait_for("#editor .problem", text=said)
    assert text.is_displayed()
    shown.faults.answers.clear()
    shown.save()
    shown.wait_for("[data-entries=tenants] .acted", text="Revision 3 is committed")


def test_change_that_must_be_confirmed_and_still_is_not_taken_says_so(shown: ShownPage) -> None:
    shown.sign_in()
    shown.edit_entry("tenants", "acme", {"publish.weight": "2"})
    shown.faults.answers["PUT"] = problem(428, "no")
    shown.save()
    shown.click("#confirmation[open] button[value=yes]")
    shown.wait_for("#editor .problem", text="No. Nothing was changed. It must be confirmed.")


def test_store_that_could_not_be_read_is_read_anew(shown: ShownPage, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        raise StoreUnavailableError("the store", "its disk is gone")

    shown.sign_in()
    shown.wait_for("[data-entries=tenants] tbody tr", text="acme")
    with monkeypatch.context() as broken:
        broken.setattr(shown.served.store, "revision", fail)
        shown.wait_for("#facts", text="the policy store cannot be read")
        shown.wait_for("#job-problem", text="its disk is gone")
        # What was shown stays.
        assert shown.wait_for("[data-entries=tenants] tbody tr", text="acme").is_displayed()
    shown.wait_for("#facts", text="store revision 2")
    shown.wait_until_empty("#job-problem")
    shown.served.service.put("tenant", "blue", {}, Author("ann"))
    shown.wait_for("[data-entries=tenants] tbody tr", text="blue")


@pytest.mark.thorough
def test_slow_server_is_said_to_be_slow(shown: ShownPage) -> None:
    shown.sign_in()
    shown.wait_for("[data-group=gold] canvas")
    shown.faults.goes_on.clear()
    shown.wait_for(
        "#alerts", text="The server is slow: the page has waited for its answer for 3 s. The numbers below are"
    )
    shown.faults.goes_on.set()
    shown.wait_until_empty("#alerts")


def test_slow_change_shows_that_it_is_under_way(shown: ShownPage) -> None:
    shown.sign_in()
    shown.edit_entry("tenants", "acme", {"publish.weight": "2"})
    shown.faults.goes_on.clear()
    shown.save()
    button = shown.wait_for("#editor button[type=submit]", text="Saving…")
    assert not button.is_enabled()
    shown.faults.goes_on.set()
    shown.wait_for("[data-entries=tenants] .acted", text="Revision 3 is committed")


def test_answers_that_come_after_signing_out_are_not_shown(shown: ShownPage) -> None:
    shown.sign_in()
    shown.wait_for("[data-group=gold] canvas")
    shown.faults.goes_on.clear()
    shown.wait_for("#alerts", text="The server is slow")
    shown.click("#sign-out")
    shown.faults.goes_on.set()
    # A call that began later is answered: so are those that waited.
    script = "const done = arguments[0]; fetch('/admin/v2/status').then(() => setTimeout(done, 0))"
    shown.driver.execute_async_script(script)
    left = shown.driver.execute_script("return document.body.innerHTML")
    assert [word for word in ("acme", "gold", "ingest", "first customers") if word in left] == []
    assert shown.driver.find_element("id", "alerts").text == ""
