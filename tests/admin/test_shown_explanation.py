"""What the command line shows of an explanation, and of quotas that jobs share."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from spark_throttle.admin.cli.watch import _as_sheet, status_lines, status_table, status_values
from spark_throttle.files.storage import Directory
from spark_throttle.sharing.status import write_observation
from spark_throttle.status.budget_status import BudgetStatus
from spark_throttle.status.explain import explain_job
from spark_throttle.status.status import read_status
from tests.status.test_explain import run_batch
from tests.status.test_shared_status import OBSERVATION, directory

__all__ = ["directory"]


def on_screen(shown: object) -> str:
    with io.StringIO() as screen:
        Console(file=screen, width=200).print(shown)
        return screen.getvalue()


def test_explain_of_a_namespace_exempted_while_its_rows_wait_names_no_quota(tmp_path: Path) -> None:
    control = tmp_path / "control"
    run_batch(control, ["acme/x"] * 7)
    exempted = replace(explain_job(str(control), "acme/x"), rule="exempt", levels=(), predicted_release_ms=0)
    assert "by the quota of" not in on_screen(_as_sheet(exempted))


def test_explain_shows_a_share_beside_its_quota(tmp_path: Path) -> None:
    run_batch(tmp_path, ["acme/x"] * 7)
    found = explain_job(str(tmp_path), "acme/x")
    assert " share " not in on_screen(_as_sheet(found))
    with_share = replace(found, levels=tuple(replace(level, share=(0.5, None, None)) for level in found.levels))
    heads, *_ = (line for line in on_screen(_as_sheet(with_share)).splitlines() if line.startswith("level"))
    assert heads.split()[:6] == ["level", "scope", "messages/s", "bytes/s", "share", "burst"]


def test_explain_shows_budgets_in_the_unit_of_the_policy(tmp_path: Path) -> None:
    run_batch(tmp_path, ["acme/x"] * 7)
    found = explain_job(str(tmp_path), "acme/x")
    bounds = {"messages_per_hour": 2000, "bytes_per_day": 2048, "units_per_month": 50_000_000}
    spent = BudgetStatus("units_per_month", 50_000_000, 1_000_000, 49_000_000, resets_in_ms=0, lasts_ms=None)
    of_one = replace(found.levels[0], bounds=bounds, budgets=(spent,))
    shown = on_screen(_as_sheet(replace(found, levels=(of_one, *found.levels[1:]), unit="tokens")))
    for part in ("2,000 messages an hour", "2 KiB a day", "49,000,000 left of 50,000,000 tokens a month"):
        assert part in " ".join(shown.split())


def test_status_shows_shares_and_what_is_wrong_with_the_exchange(tmp_path: Path, directory: Directory) -> None:
    alone = read_status(str(tmp_path))
    assert "share" not in on_screen(status_table(alone, list(alone.scopes)))
    assert status_values(alone, [])["exchange"] is None
    write_observation(directory, OBSERVATION)
    found = read_status(str(tmp_path))
    screen, lines = (
        on_screen(status_table(found, list(found.scopes))),
        list(status_lines(found, list(found.scopes), at_ms=0)),
    )
    for text in ("shares quotas with 1 live job; gamma is dead", "the exchange: OSError: unreachable"):
        assert text in screen
        assert f"1970-01-01 00:00:00 {text}" in lines
    (gold,) = (line.split() for line in screen.splitlines() if "gold" in line)
    assert gold[:5] == ["resource", "group", "gold", "100", "40"]  # its quota, and this job's share
    assert status_values(found, [])["exchange"]["problem"] == "OSError: unreachable"


def test_explain_of_a_tenant_shows_which_of_its_namespaces_wait_and_what_holds_each(tmp_path: Path) -> None:
    run_batch(tmp_path, [f"acme/{number:02}" for number in range(15) for _ in range(number + 1)])
    screen = on_screen(_as_sheet(explain_job(str(tmp_path), "acme")))
    assert "acme (publish): tenant acme" in screen
    assert "by the quota of resource group gold" in screen
    heads, first, *_ = screen[screen.index("waits") :].splitlines()
    assert heads.split() == ["waits", "group", "waiting", "rejected", "held", "by", "may", "leave", "in"]
    assert first.split()[:2] == ["acme/14", "gold"]
    assert "resource group gold" in first
    (more,) = (line for line in screen.splitlines() if line.startswith("and "))
    assert more.split()[0:3:2] == ["and", "more"]
