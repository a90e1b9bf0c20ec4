"""Mistakes at the command line: each is an error that says what to do, and nothing is changed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from spark_throttle.admin.refusals import Exit
from spark_throttle.admin.tokens import TokenFile
from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.checkpoint.manifest import bind
from spark_throttle.command_line.app import app
from spark_throttle.control.clock import Clock
from spark_throttle.files.storage import Directory
from spark_throttle.store.delta.delta_store import DeltaStore
from tests.admin.conftest import served_over
from tests.sessions import ROOT
from tests.status.test_explain import run_batch

RUNNER = CliRunner()
EXAMPLE = "conf/policies/example.yaml"


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DeltaStore:
    monkeypatch.setenv("SPARK_THROTTLE_STORE", f"delta:{tmp_path / 'store'}")
    monkeypatch.setenv("SPARK_THROTTLE_WHO", "ann")
    monkeypatch.setenv("COLUMNS", "200")
    return DeltaStore.create(str(tmp_path / "store"))


def run(*arguments: str, code: Exit = Exit.DONE) -> Result:
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def answer(*arguments: str, code: Exit = Exit.DONE) -> Any:
    return json.loads(run(*arguments, "--output", "json", code=code).stdout)


# ------------------------------------------------------------------------------------------------- stores


@pytest.mark.parametrize("scheme", ["delta", "file"])
def test_server_refuses_a_store_that_is_not_there_and_makes_none(tmp_path: Path, scheme: str) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    tokens.create("ann", "admin")
    where = tmp_path / "none" / "policies.yaml"
    said = run("serve", "--tokens", str(tokens.path), "--store", f"{scheme}:{where}", code=Exit.UNAVAILABLE).stderr
    assert "is not available: there is no" in said
    assert not where.parent.exists()


@pytest.mark.parametrize(
    "command",
    [
        ["group", "list"], ["group", "create", "gold"], ["group", "update", "gold"], ["tenant", "delete", "acme"],
        ["namespace", "attach", "acme/x", "gold"], ["defaults", "get"], ["job", "update"], ["policy", "show"],
        ["policy", "diff"], ["policy", "history"], ["policy", "rollback", "0"], ["explain", "acme/x"],
        ["policy", "apply", EXAMPLE], ["policy", "apply", EXAMPLE, "--dry-run"],
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("scheme", ["delta", "file"])
def test_no_command_makes_a_store_that_is_not_there(tmp_path: Path, scheme: str, command: list[str]) -> None:
    where = tmp_path / "none" / "policies.yaml"
    said = run(*command, "--store", f"{scheme}:{where}", code=Exit.UNAVAILABLE).stderr
    assert said.endswith("; make one with `spark-throttle policy apply --init`, or correct the path\n")
    assert not where.parent.exists()


@pytest.mark.parametrize("scheme", ["delta", "file"])
def test_dry_run_says_what_it_would_make_and_makes_nothing(tmp_path: Path, scheme: str) -> None:
    where = tmp_path / "none" / "policies.yaml"
    command = ["policy", "apply", EXAMPLE, "--init", "--dry-run", "--store", f"{scheme}:{where}"]
    planned = answer(*command)
    assert (planned["makes_store"], planned["revision"], planned["losses"]) == (True, 0, [])
    assert planned["differences"][0]["before"] is None
    said = run(*command).stdout
    assert said.startswith(f"the policy store {scheme}:{where} would be made, with\n")
    assert planned["differences"][0]["path"] in said
    assert answer(*command, "--expected", "0") == planned
    assert "is at revision 0 and the change was made for revision 3" in run(
        *command, "--expected", "3", code=Exit.CONFLICT).stderr  # fmt: skip
    assert not where.parent.exists()
    run("policy", "apply", EXAMPLE, "--init", "--store", f"{scheme}:{where}")
    again = answer(*command)
    assert (again["makes_store"], again["revision"], again["differences"]) == (False, 1, [])


def test_dry_run_of_a_store_that_is_there_and_cannot_be_read_makes_up_none(tmp_path: Path) -> None:
    where = tmp_path / "policies.yaml"
    where.mkdir()
    said = run("policy", "apply", EXAMPLE, "--init", "--dry-run", "--store", f"file:{where}", code=Exit.UNAVAILABLE)
    assert "Is a directory" in said.stderr


@pytest.mark.slow
def test_server_says_of_a_truncated_commit_what_the_command_line_says(tmp_path: Path) -> None:
    path = tmp_path / "store"
    served = served_over(DeltaStore(str(path), clock_ns=lambda: 0), tmp_path)
    admin = served.client()
    for number in range(24):
        assert admin.put(f"/admin/v2/policies/tenants/t{number}", json={}).json()["revision"] == number + 1
    commits = sorted((path / "_delta_log").glob("*.json"))
    os.truncate(commits[-1], 100)
    said = json.loads(run("tenant", "list", "-o", "json", code=Exit.FAULT).stderr)["message"]
    assert f"the policy store delta:{path} is damaged: " in said
    assert said.endswith("; restore it from a backup of the store")
    for answered in (admin.put("/admin/v2/policies/tenants/late", json={}), admin.get("/admin/v2/policies/tenants")):
        assert (answered.status_code, answered.json()["detail"]) == (503, said)
    assert sorted((path / "_delta_log").glob("*.json")) == commits


# ---------------------------------------------------------------------------------------------- arguments


def test_doubled_name_of_a_job_is_an_error_that_names_both_directories(tmp_path: Path) -> None:
    said = run("serve", "--tokens", "t", "--job", "a=/one", "--job", "a=/two", code=Exit.INVALID).stderr
    assert "--job a: the name is given twice, for /one and /two" in said


@pytest.mark.parametrize(
    "settings",
    [
        ["publish.weight=2", "publish.weight=3"],
        ["publish.weight=2", "publish="],
        ["publish=2", "publish.weight=3"],
        ["resource_group=a", "resource_group="],
    ],
    ids=" ".join,
)
def test_setting_given_twice_is_an_error(store: DeltaStore, settings: list[str]) -> None:
    said = run("tenant", "create", "acme", *settings, code=Exit.INVALID).stderr
    assert "is set twice" in said
    assert store.revision() == 0


def test_version_is_that_of_the_package() -> None:
    assert re.fullmatch(r"spark-throttle \d+\.\d+\.\d+\S*\n", run("--version").stdout)


def test_directory_without_a_job_is_not_found_by_every_command_that_takes_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for where in ("/nowhere", str(tmp_path / "empty")):
        for command in (["status"], ["explain", "acme/x"]):
            assert "there is no control directory" in run(*command, "--control", where, code=Exit.NOT_FOUND).stderr
    bind(Directory(str(tmp_path / "begun")), direction="publish")
    said = run("explain", "acme/x", "--control", str(tmp_path / "begun"), code=Exit.NOT_FOUND).stderr
    assert "the job has begun and planned none yet" in said


# --------------------------------------------------------------------------------------------------- port


def test_default_port_is_one_and_the_docs_have_it() -> None:
    from inspect import signature

    from spark_throttle.command_line.serve import serve

    port = signature(serve).parameters["port"].default
    named = re.compile(r"(?<!sc://)(?:127\.0\.0\.1|localhost|--port)[: ](\d{4,5})")
    texts = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *(ROOT / "conf").rglob("*.*")]
    found = {port for path in texts for port in named.findall(path.read_text())}
    assert found == {str(port)}


# --------------------------------------------------------------------------------------------------- YAML


@pytest.mark.slow
def test_yaml_says_the_same_as_json() -> None:
    run("group", "create", "gold", "publish.messages_per_second=0.5", "publish.bytes_per_second=8MiB")
    run("tenant", "create", "acme", "resource_group=gold")
    for command in (
        ["group", "get", "gold"], ["tenant", "list"], ["policy", "history"], ["policy", "diff"], ["policy", "show"],
        ["explain", "acme/x"], ["policy", "validate", "conf/policies/example.yaml"],
        ["capacity", "--cores", "32", "--tenants", "50"], ["tenant", "update", "acme"],
    ):  # fmt: skip
        assert yaml.safe_load(run(*command, "-o", "yaml").stdout) == answer(*command), command
    failed = run("group", "get", "golt", "-o", "yaml", code=Exit.NOT_FOUND)
    assert failed.stdout == ""
    assert yaml.safe_load(failed.stderr)["exit_code"] == Exit.NOT_FOUND


# -------------------------------------------------------------------------------------------- confirmation


@pytest.fixture
def acme() -> None:
    run("group", "create", "gold", "publish.messages_per_second=500", "publish.bytes_per_second=8MiB")
    run("tenant", "create", "acme", "resource_group=gold", "dispatch.messages_per_second=50")
    run("defaults", "update", "publish.messages_per_second=50")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "costs"),
    [
        (["policy", "rollback", "0"], "no limit is left in the whole policy"),
        (["policy", "rollback", "2"], "defaults.publish.messages_per_second is lifted (it was 50)"),
        (
            ["group", "update", "gold", "publish.bytes_per_second="],
            "publish.bytes_per_second is lifted (it was 8388608)",
        ),
        (["group", "update", "gold", "publish.weight=2", "--replace"], "publish.messages_per_second is lifted"),
        (["group", "update", "gold", "publish.on_excess=observe"], "publish.messages_per_second is lifted"),
        (["group", "update", "gold", "publish.messages_per_second=0"], "becomes 0 (it was 500)"),
        (["tenant", "detach", "acme"], "of resource_groups.gold is lifted"),
        (["tenant", "delete", "acme"], "tenants.acme.dispatch.messages_per_second is lifted (it was 50)"),
        (["namespace", "create", "acme/x"], "publish.messages_per_second of defaults is lifted (it was 50)"),
        (["namespace", "create", "acme/*"], "publish.messages_per_second of defaults is lifted (it was 50)"),
        (["defaults", "update", "publish.messages_per_second="], "defaults.publish.messages_per_second is lifted"),
        (["job", "update", "publish.bytes_per_second=0"], "job.publish.bytes_per_second becomes 0 (it was unlimited)"),
        (["exempt", "create", "acme/x"], "publish.messages_per_second of defaults is lifted (it was 50)"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_change_that_costs_protection_says_so_and_wants_yes(
    acme: None, store: DeltaStore, command: list[str], costs: str
) -> None:
    failed = run(*command, "-o", "json", code=Exit.UNCONFIRMED)
    said = json.loads(failed.stderr)
    assert (said["error"], said["exit_code"]) == ("UnconfirmedError", 12)
    assert any(costs in loss for loss in said["losses"]), said
    assert (failed.stdout, store.revision()) == ("", 3)
    assert answer(*command, "--yes")["revision"] == 4


@pytest.mark.slow
def test_document_that_leaves_no_policy_wants_yes(acme: None, store: DeltaStore, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("{}")
    apply = ["policy", "apply", str(tmp_path / "empty.yaml")]
    assert "no limit is left in the whole policy" in run(*apply, code=Exit.UNCONFIRMED).stderr
    assert answer(*apply, "--dry-run")["losses"][0].startswith("no limit is left")
    assert store.revision() == 3
    run(*apply, "--yes")
    assert answer("policy", "show") == {"version": 1}


@pytest.mark.slow
def test_rollback_is_shown_first_and_made_only_on_the_revision_that_was_seen(acme: None, store: DeltaStore) -> None:
    planned = answer("policy", "rollback", "2", "--dry-run")
    assert planned == {
        "revision": 3,
        "changes": 1,
        "all_losses": 1,
        "differences": [
            {"kind": "defaults", "name": "", "path": "defaults",
             "before": {"publish": {"messages_per_second": 50}}, "after": None},
        ],
        "losses": ["defaults.publish.messages_per_second is lifted (it was 50)"],
        "heirs": {},
    }  # fmt: skip
    text = run("policy", "rollback", "2", "--dry-run").stdout
    assert "defaults  removed" in text
    assert "costs protection (--yes): defaults.publish.messages_per_second is lifted (it was 50)" in text
    assert store.revision() == 3
    run("tenant", "update", "acme", "publish.weight=3")
    for rollback in (
        ["policy", "rollback", "2", "--expected", "3"],
        ["policy", "rollback", "2", "--dry-run", "--expected", "3"],
    ):
        assert (
            "is at revision 4 and the change was made for revision 3"
            in run(*rollback, "--yes", code=Exit.CONFLICT).stderr
        )
    assert answer("policy", "rollback", "2", "--expected", "4", "--yes")["revision"] == 5


@pytest.mark.slow
def test_tightening_wants_no_confirmation(acme: None) -> None:
    run("group", "update", "gold", "publish.messages_per_second=5")
    run("tenant", "update", "acme", "publish.messages_per_second=5")
    run("namespace", "create", "acme/x", "publish.messages_per_second=5")
    run("group", "create", "iron")
    run("group", "delete", "iron")


# ----------------------------------------------------------------------------------------- names of fields


@pytest.mark.slow
def test_fields_have_the_same_names_at_the_command_line_and_in_the_api(
    acme: None, store: DeltaStore, tmp_path: Path
) -> None:
    admin = served_over(store, tmp_path).client()
    v2 = "/admin/v2"
    for command, path in (
        (["group", "get", "gold"], "policies/resource_groups/gold"), (["job", "get"], "policy/job"),
        (["explain", "acme/x"], "explain/acme%2Fx"), (["policy", "rollback", "1", "--dry-run"], "rollback/1"),
        (["policy", "diff", "0", "3"], "diff?before=0&after=3"), (["policy", "history"], "history"),
    ):  # fmt: skip
        assert answer(*command) == admin.get(f"{v2}/{path}").json(), command
    listed = admin.get(f"{v2}/policies/tenants").json()["policies"]
    assert answer("tenant", "list") == listed
    changed = answer("tenant", "update", "acme", "publish.weight=2")
    made = admin.put(
        f"{v2}/policies/tenants/acme", json={"resource_group": "gold", "dispatch": {"messages_per_second": 5}}
    )
    assert changed.keys() == made.json().keys() - {"acting", "plan", "what_if"}  # what jobs do, and a dry run says
    control = tmp_path / "control"
    run_batch(control, ["acme/x"] * 7)
    watch = JobWatch({"ingest": str(control)}, clock=Clock.system())
    watch.look()
    folder = tmp_path / "watched"
    folder.mkdir()
    (job,) = served_over(store, folder, watch=watch).client().get(f"{v2}/status").json()["jobs"]
    shown = answer("status", "--control", str(control), "--level", "job")
    assert shown.keys() - job.keys() == {"epoch"}
    of_share = {
        "share_messages_per_second",
        "share_bytes_per_second",
        "share_units_per_second",
        "utilisation",
    }  # `shared` has them there
    assert job["scopes"][0].keys() - shown["scopes"][0].keys() == {
        "balance_messages", "balance_bytes", "balance_units", *of_share,
    }  # fmt: skip
    assert {key: shown[key] for key in ("batch", "batch_time_ms", "store_revision", "listening")} == {
        key: job[key] for key in ("batch", "batch_time_ms", "store_revision", "listening")
    }


@pytest.mark.slow
def test_locked_entries_are_listed_and_followed(store: DeltaStore, tmp_path: Path) -> None:
    served = served_over(store, tmp_path)
    admin, path = served.client(), "/admin/v2/policies/namespaces"
    for name in ("acme/a", "acme/b", "blue/*"):
        run("namespace", "create", name, "locked=true")
    run("namespace", "create", "acme/open")

    def locked(role: str = "admin", **query: str) -> list[str]:
        page = served.client(role).get(path, params={"locked": "true", **query}).json()
        return [entry["name"] for entry in page["policies"]]

    assert (locked(), locked("tenant_admin")) == (["acme/a", "acme/b", "blue/*"], ["acme/a", "acme/b"])
    assert (locked(limit="1"), locked(limit="1", after="acme/a")) == (["acme/a"], ["acme/b"])
    run("namespace", "update", "acme/a", "locked=false")
    run("namespace", "delete", "acme/b")
    assert locked() == ["blue/*"]
    refused = admin.get("/admin/v2/policies/tenants", params={"locked": "true"})
    assert (refused.status_code, refused.json()["path"]) == (422, "locked")


# ---------------------------------------------------------------------------------------------------- remedies


@pytest.mark.slow
def test_remedies_are_flags_of_the_command_line(tmp_path: Path) -> None:
    run("group", "create", "gold", "publish.messages_per_second=5")
    run("group", "create", "iron", "publish.messages_per_second=5")
    run("tenant", "create", "acme", "resource_group=gold")
    unconfirmed = answer_to_stderr("tenant", "delete", "acme", code=Exit.UNCONFIRMED)
    assert unconfirmed.endswith("; confirm it with --yes if it is meant")
    assert "attach it with --move" in answer_to_stderr("tenant", "attach", "acme", "iron", code=Exit.DUPLICATE)
    nowhere = answer_to_stderr("group", "list", "--store", f"delta:{tmp_path / 'none'}", code=Exit.UNAVAILABLE)
    assert nowhere.endswith("make one with `spark-throttle policy apply --init`, or correct the path")
    (tmp_path / "rates.json").write_text('{"publishRateInMsgs": 5}')
    assert answer_to_stderr("import", "pulsar", str(tmp_path / "rates.json"), code=Exit.INVALID).endswith("--group")
    assert not re.search(r"is_confirmed|is_moved|\(yes\)", unconfirmed)


def answer_to_stderr(*arguments: str, code: Exit) -> str:
    message: str = json.loads(run(*arguments, "--output", "json", code=code).stderr)["message"]
    return message
