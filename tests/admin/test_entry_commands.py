"""The commands on entries: their help has the settings of their kind, and a program is given all of a list."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spark_throttle.admin.refusals import Exit
from spark_throttle.command_line.app import app
from spark_throttle.errors import PolicyError
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.entries import parse_policy, paths_of
from spark_throttle.store.store import KINDS, SINGLE_KINDS, Kind

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_THROTTLE_STORE", f"delta:{tmp_path / 'store'}")
    monkeypatch.setenv("COLUMNS", "200")
    DeltaStore.create(str(tmp_path / "store"))


def run(*arguments: str, code: Exit = Exit.DONE) -> Result:
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.mark.slow
def test_list_for_a_program_has_all_entries_unless_it_is_told_how_many(tmp_path: Path) -> None:
    document = tmp_path / "many.yaml"
    document.write_text("tenants:\n" + "".join(f"  t{at:03}: {{}}\n" for at in range(299)))
    run("policy", "apply", str(document), "--yes")
    for form in ("json", "yaml"):
        assert run("tenant", "list", "--output", form).stdout.count("revision") == 299
    assert len(json.loads(run("tenant", "list", "--limit", "7", "--output", "json").stdout)) == 7
    page = run("tenant", "list")
    assert "t099" in page.stdout
    assert "t100" not in page.stdout
    assert "--after 't099'" in page.stderr


def test_exception_is_given_listed_first_and_taken_back(tmp_path: Path) -> None:
    document = tmp_path / "few.yaml"
    document.write_text(
        "tenants: {acme: {publish: {messages_per_second: 5}}, zeta: {publish: {messages_per_second: 7}}}"
    )
    run("policy", "apply", str(document))
    sets = "exception.publish.messages_per_second=21"
    past = run("tenant", "update", "zeta", "exception.until=2025-12-04T18:00Z", "exception.reason=x", sets,
               code=Exit.INVALID)  # fmt: skip
    assert "2025-12-04T18:00:00Z is past: it is 20" in past.stderr
    run("tenant", "update", "zeta", "exception.until=2999-12-04T18:00+01:00", "exception.reason=a move", sets)
    rows = run("tenant", "list").stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["name", "zeta", "acme"]
    assert "until 2999-12-04T17:00:00Z: publish.messages_per_second=21 (a move)" in rows[1]
    listed = json.loads(run("tenant", "list", "--output", "json").stdout)
    assert [(each["name"], each["exception"]) for each in listed] == [("zeta", "in_force"), ("acme", None)]
    shown = run("policy", "show").stdout
    assert shown.startswith("# until 2999-12-04T17:00:00Z, tenants.zeta has an exception: a move\nversion: 1")
    document.write_text(shown)
    assert "nothing to change" in run("policy", "apply", str(document)).stdout
    assert "tenants.zeta  in force  2999-12-04T17:00:00Z" in run("policy", "exceptions").stdout
    explained = run("explain", "zeta/x").stdout
    assert "until 2999-12-04T17:00:00Z, tenants.zeta has an exception: a move" in explained
    run("tenant", "update", "zeta", "exception=")
    assert "no entry has an exception" in run("policy", "exceptions").stdout
    history = run("policy", "history").stdout
    assert "tenants.zeta: given, until 2999-12-04T17:00:00Z (a move)" in history
    assert "tenants.zeta: taken back, until 2999-12-04T17:00:00Z (a move)" in history


def test_reason_of_an_exception_is_taken_to_the_letter(tmp_path: Path) -> None:
    document = tmp_path / "one.yaml"
    document.write_text("tenants: {acme: {publish: {messages_per_second: 5}}}")
    run("policy", "apply", str(document))
    reason = "ticket: #4711 [b"
    run("tenant", "update", "acme", "exception.until=2999-12-04T18:00Z", f"exception.reason={reason}",
        "exception.publish.messages_per_second=21")  # fmt: skip
    (found,) = json.loads(run("policy", "exceptions", "--output", "json").stdout)
    assert found["reason"] == reason


def test_document_with_an_exception_that_has_ended_is_noted_and_its_dry_run_is_refused_as_the_change_is(
    tmp_path: Path,
) -> None:
    document = tmp_path / "one.yaml"
    document.write_text("tenants: {acme: {publish: {messages_per_second: 5}}}")
    run("policy", "apply", str(document))
    exception = "{until: 2020-01-01T00:00Z, reason: old, publish: {messages_per_second: 7}}"
    document.write_text(f"tenants: {{acme: {{publish: {{messages_per_second: 5}}, exception: {exception}}}}}")
    assert "the exception of tenants.acme has ended" in run("policy", "validate", str(document)).stdout
    for more in ("--dry-run", "--yes"):
        assert "is past" in run("policy", "apply", str(document), more, code=Exit.INVALID).stderr


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "exempt"])
def test_help_has_the_settings_of_its_kind_and_no_others(kind: Kind) -> None:
    command = "group" if kind == "resource_group" else kind
    text = " ".join(run(command, "update", "--help").stdout.replace("│", "").split())
    elsewhere = ("dispatch.", "exception.publish.", "exception.dispatch.")
    known = {path for path in paths_of(kind) if not path.startswith(elsewhere)}
    listed = text.partition("Its settings: ")[2].partition(". An empty value")[0]
    said = " (and dispatch. instead; exception.publish. and exception.dispatch. until a certain time)"
    assert set(re.split("[,;] ", listed.replace(said, ""))) == known
    for path in known:
        with pytest.raises(PolicyError) as caught:
            parse_policy(kind, "" if kind in SINGLE_KINDS else "acme", nested(path))
        assert "unknown key" not in str(caught.value)


def nested(path: str) -> dict[str, Any]:
    """Return values that have a wrong one at a path."""
    head, _, tail = path.partition(".")
    return {head: nested(tail) if tail else ["wrong"]}


def test_exemption_has_no_settings() -> None:
    assert "PATH=VALUE" not in run("exempt", "create", "--help").stdout
    run("exempt", "update", "x", code=Exit.USAGE)


CHANGES = [
    ["group", "create", "silver", "publish.messages_per_second=5"],
    ["group", "update", "gold", "publish.messages_per_second=0"],
    ["tenant", "create", "blue", "resource_group=gold"],
    ["tenant", "update", "acme", "publish.weight=3"],
    ["tenant", "delete", "acme"],
    ["tenant", "detach", "acme"],
    ["namespace", "attach", "blue/x", "gold"],
    ["exempt", "create", "solo/x"],
    ["defaults", "update", "publish.messages_per_second=1"],
    ["job", "update", "publish.bytes_per_second=1MiB"],
    ["queue", "update", "messages=10"],
]


@pytest.mark.slow
@pytest.mark.parametrize("command", CHANGES, ids=[" ".join(command[:2]) for command in CHANGES])
def test_dry_run_of_a_command_shows_what_the_command_then_changes_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    document = tmp_path / "policies.yaml"
    quota = "{publish: {messages_per_second: 9}}"
    document.write_text(f"resource_groups: {{gold: {quota}}}\ntenants: {{acme: {{resource_group: gold}}}}\n")
    run("policy", "apply", str(document))
    log = tmp_path / "audit"
    monkeypatch.setenv("SPARK_THROTTLE_AUDIT", str(log))
    before = run("policy", "show").stdout
    plan = json.loads(run(*command, "--dry-run", "--output", "json").stdout)
    assert run("policy", "show").stdout == before
    assert not log.exists() or not log.read_text()
    run(*command, "--yes")
    made = json.loads(run("policy", "diff", "--output", "json").stdout)
    assert plan["revision"] == 1
    assert [plan["differences"], plan["changes"]] == [made, len(made)]
