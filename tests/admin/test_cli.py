"""The command line: what each command answers, in both forms, and which exit code says what to do."""

from __future__ import annotations

import inspect
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spark_throttle.admin.cli.entries import named_app
from spark_throttle.admin.refusals import Exit
from spark_throttle.checkpoint.manifest import bind
from spark_throttle.command_line.app import app
from spark_throttle.core.names.visible_text import is_visible
from spark_throttle.files.storage import Directory
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.policy_location import load_policies
from tests.status.test_explain import run_batch

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_THROTTLE_STORE", f"delta:{tmp_path / 'store'}")
    monkeypatch.setenv("SPARK_THROTTLE_WHO", "ann")
    monkeypatch.setenv("COLUMNS", "200")
    DeltaStore.create(str(tmp_path / "store"))


def run(*arguments: str, code: Exit = Exit.DONE, stdin: str | None = None) -> Result:
    result = RUNNER.invoke(app, arguments, input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def answer(*arguments: str, code: Exit = Exit.DONE) -> Any:
    return json.loads(run(*arguments, "--output", "json", code=code).stdout)


def failure(*arguments: str, code: Exit) -> dict[str, Any]:
    result = run(*arguments, "--output", "json", code=code)
    assert result.stdout == ""
    said: dict[str, Any] = json.loads(result.stderr)
    assert said["exit_code"] == code
    return said


@pytest.fixture
def gold() -> None:
    run("group", "create", "gold", "publish.messages_per_second=500", "publish.bytes_per_second=8MiB", "-m", "tier")


@pytest.mark.slow
def test_created_group_is_got_and_listed(gold: None) -> None:
    says = {"publish": {"messages_per_second": 500, "bytes_per_second": 8388608}}
    assert answer("group", "get", "gold") == {
        "kind": "resource_group", "name": "gold", "revision": 1, "etag": '"1-a0eef945c81f392b"',
        "author": "administrator", "policy": says, "exception": None,
    }  # fmt: skip
    assert [each["name"] for each in answer("group", "list")] == ["gold"]
    assert "publish.bytes_per_second" in run("group", "get", "gold").stdout


@pytest.mark.slow
def test_update_changes_what_it_names_and_an_empty_value_takes_away(gold: None) -> None:
    run("group", "update", "gold", "publish.weight=3", "publish.bytes_per_second=")
    assert answer("group", "get", "gold")["policy"] == {"publish": {"messages_per_second": 500, "weight": 3}}
    run("group", "update", "gold", "dispatch.weight=2", "--replace", "--yes")
    assert answer("group", "get", "gold")["policy"] == {"dispatch": {"weight": 2}}


@pytest.mark.slow
def test_namespace_and_tenant_are_attached_and_detached(gold: None) -> None:
    made = answer("namespace", "attach", "acme/x", "gold")
    assert made["revision"] == 2
    assert "has an entry of its own now" in made["notes"][0]
    answer("tenant", "attach", "acme", "gold")
    assert answer("namespace", "get", "acme/x")["policy"] == {"resource_group": "gold"}
    assert [each["name"] for each in answer("tenant", "list", "--group", "gold")] == ["acme"]
    run("namespace", "detach", "acme/x", "--yes")
    run("tenant", "detach", "acme", "--yes")
    assert answer("namespace", "list") == answer("tenant", "list") == []


@pytest.mark.slow
def test_moved_namespace_needs_the_flag(gold: None) -> None:
    run("group", "create", "iron")
    run("namespace", "attach", "acme/x", "gold")
    said = failure("namespace", "attach", "acme/x", "iron", code=Exit.DUPLICATE)
    assert "is attached to 'gold'" in said["message"]
    run("namespace", "attach", "acme/x", "iron", "--move", "--yes")


@pytest.mark.slow
def test_single_entries_are_got_and_updated() -> None:
    assert answer("queue", "get")["policy"] == {}
    run("queue", "update", "messages=5")
    run("queue", "update", "age_seconds=1.5")
    assert answer("queue", "get")["policy"] == {"messages": 5, "age_seconds": 1.5}
    run("defaults", "update", "publish.messages_per_second=0.2")
    run("job", "update", "publish.bytes_per_second=1MiB")
    assert answer("job", "get")["policy"] == {"publish": {"bytes_per_second": 1048576}}


def test_what_does_nothing_is_noted() -> None:
    (note,) = answer("tenant", "create", "acme", "publish.burst_seconds=5")["notes"]
    said = "tenants.acme.publish.burst_seconds does nothing without"
    assert note == f"{said} messages_per_second, bytes_per_second, units_per_second or request_percentage"


def test_exemptions_are_listed() -> None:
    run("exempt", "create", "infra/*")
    assert [each["name"] for each in answer("exempt", "list")] == ["infra/*"]
    run("exempt", "delete", "infra/*")


@pytest.mark.slow
def test_list_goes_page_by_page_and_says_how_to_go_on() -> None:
    for name in ("a", "b", "c"):
        run("tenant", "create", name)
    result = run("tenant", "list", "--limit", "2")
    assert "--after 'b'" in result.stderr
    assert [each["name"] for each in answer("tenant", "list", "--after", "b")] == ["c"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["group", "get", "golt"], Exit.NOT_FOUND),
        (["group", "delete", "golt"], Exit.NOT_FOUND),
        (["group", "create", "gold"], Exit.DUPLICATE),
        (["group", "update", "gold", "publish.weight=0"], Exit.INVALID),
        (["group", "update", "gold", "publish.wait=1"], Exit.INVALID),
        (["group", "update", "gold", "nonsense"], Exit.INVALID),
        (["group", "update", "gold", "publish.weight=2", "--expected", "7"], Exit.CONFLICT),
        (["namespace", "create", "x" * 10_240], Exit.INVALID),
        (["namespace", "create", "acme/"], Exit.INVALID),
        (["namespace", "create", "acme/../x"], Exit.INVALID),
        (["namespace", "attach", "acme/\u202ex", "gold"], Exit.INVALID),
        (["exempt", "create", "acme/x/"], Exit.INVALID),
        (["namespace", "attach", "acme/x", "golt"], Exit.NOT_FOUND),
        (["namespace", "detach", "acme/x"], Exit.NOT_FOUND),
        (["policy", "rollback", "9"], Exit.NOT_FOUND),
        (["policy", "diff", "0", "9"], Exit.NOT_FOUND),
        (["group", "list", "--at", "9"], Exit.NOT_FOUND),
        (["group", "list", "--store", "s3://x"], Exit.INVALID),
        (["group", "list", "--store", ""], Exit.INVALID),
        (["group", "list", "--store", "delta:/nowhere/at/all"], Exit.UNAVAILABLE),
        (["group", "list", "--store", "file:/nowhere/at/all.yaml"], Exit.UNAVAILABLE),
        (["explain", ""], Exit.INVALID),
        (["status"], Exit.INVALID),
        (["capacity", "--tenants", "5"], Exit.INVALID),
        (["serve", "--tokens", "t", "--job", "x"], Exit.INVALID),
    ],
    ids=lambda part: " ".join(part)[:60] if isinstance(part, list) else part.name,
)
def test_exit_code_says_what_to_do(gold: None, arguments: list[str], code: Exit) -> None:
    result = run(*arguments, code=code)
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")


def test_group_in_use_names_its_users(gold: None) -> None:
    run("tenant", "attach", "acme", "gold")
    said = failure("group", "delete", "gold", code=Exit.IN_USE)
    assert said["error"] == "InUseError"
    assert "tenant acme" in said["message"]


def test_unknown_option_is_a_usage_error() -> None:
    run("group", "list", "--nonsense", code=Exit.USAGE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "acme/..x",
        "ÄÖÜ/中文",
        "a b",
        "a\u200bb",
        "a\u3164b\U000e0100",
        "a\nb\x1b[2J",
        "[bold]x[/bold]",
        "{}",
        "a.b=c",
        "x" * 1024,
    ],
)
def test_odd_names_are_kept_and_shown_without_harm(name: str) -> None:
    run("namespace", "create", name, "publish.weight=2")
    assert answer("namespace", "get", name)["name"] == name
    assert [each["name"] for each in answer("namespace", "list")] == [name]
    shown = run("namespace", "list").stdout
    assert is_visible(shown.replace("\n", ""))
    for form in ("json", "yaml"):
        assert is_visible(run("namespace", "list", "-o", form).stdout.replace("\n", ""))
    assert load_policies(run("policy", "show").stdout).namespaces.keys() == {name}
    assert is_visible(run("policy", "show").stdout.replace("\n", ""))
    assert answer("explain", name)["matched"] == name
    run("namespace", "delete", name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["acme/[/]", "acme/[red]x", "acme/[red]x[/red]", "acme/:smile:", "acme/a\\", "acme/a\\\\", "acme/\\[b]\\"]
)
def test_name_that_looks_like_markup_is_shown_as_it_is_by_every_command(name: str) -> None:
    assert f"no namespace {name!r}" in run("namespace", "get", name, code=Exit.NOT_FOUND).stderr
    said = [run("namespace", "create", name, "publish.messages_per_second=1").stdout]
    said += [run("namespace", *command).stdout for command in (["list"], ["get", name])]
    said += [run("namespace", "update", name, "publish.messages_per_second=2").stdout]
    said += [run("policy", "diff").stdout, run("explain", name).stdout]
    assert f"namespace {name!r} is there already" in run("namespace", "create", name, code=Exit.DUPLICATE).stderr
    said += [run("namespace", "delete", name, "--yes").stdout]
    for text in said:
        assert re.search(re.escape(name) + r"(?![\\\w])", text), text


def test_name_that_begins_with_a_dash_comes_after_two() -> None:
    run("namespace", "create", "--", "-x/y")
    assert answer("namespace", "list")[0]["name"] == "-x/y"


@pytest.mark.slow
def test_document_is_validated_applied_shown_and_rolled_back(tmp_path: Path) -> None:
    example = "conf/policies/example.yaml"
    assert answer("policy", "validate", example)["valid"]
    planned = answer("policy", "apply", example, "--dry-run")
    assert {each["path"] for each in planned["differences"]} >= {"resource_groups.gold", "job"}
    assert answer("policy", "apply", example, "-m", "first")["revision"] == 1
    shown = tmp_path / "shown.yaml"
    shown.write_text(run("policy", "show").stdout)
    assert load_policies(shown) == load_policies(Path(example))
    run("group", "update", "gold", "publish.weight=9")
    (difference,) = answer("policy", "diff")
    assert (difference["before"]["publish"]["weight"], difference["after"]["publish"]["weight"]) == (4, 9)
    assert "-   weight: 4" in run("policy", "diff", "1", "2").stdout
    run("policy", "diff", "--check", code=Exit.DIFFERENT)
    run("policy", "rollback", "1", "--yes")
    assert answer("policy", "diff", "1", "3") == []
    assert [each["why"] for each in answer("policy", "history")] == ["back to revision 1", "", "first"]
    assert "first" in run("policy", "history").stdout


def test_rollback_without_a_terminal_wants_yes_and_then_says_what_it_changed() -> None:
    run("group", "create", "gold", "publish.messages_per_second=5")
    run("group", "update", "gold", "publish.weight=9")
    assert "without a terminal it cannot: give --yes" in run("policy", "rollback", "1", code=Exit.INVALID).stderr
    said = run("policy", "rollback", "1", "--yes").stdout
    assert "-   weight: 9" in said
    assert said.endswith("rolled back to revision 1: revision 3\n")
    assert run("policy", "rollback", "1").stdout == "rolled back to revision 1: nothing to change\n"


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "revision"), [("n", 2), ("y", 3)])
def test_rollback_at_a_terminal_shows_what_changes_and_asks(tmp_path: Path, typed: str, revision: int) -> None:
    for rate in (5, 7):
        run("group", "update" if rate == 7 else "create", "gold", f"publish.messages_per_second={rate}")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "spark_throttle.command_line", "policy", "rollback", "1"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.write(ours, f"{typed}\n".encode())
        process.wait(60)
    said = os.read(ours, 100_000).decode()
    os.close(ours)
    os.close(theirs)
    assert "messages_per_second: 7" in said
    assert "Roll back 1 entry to revision 1? [y/N]" in said
    assert DeltaStore(str(tmp_path / "store")).revision() == revision


@pytest.mark.slow
def test_document_is_taken_from_stdin_by_every_command_that_takes_one() -> None:
    document = "resource_groups: {gold: {publish: {messages_per_second: 7}}}"
    said = run("policy", "validate", "-", stdin=document).stdout
    assert said.startswith("the document on stdin can be applied: 1 resource group, 0 tenants")
    assert "resource_groups.gold  new" in run("policy", "apply", "-", "--dry-run", stdin=document).stdout
    assert run("policy", "apply", "-", stdin=document).stdout == "the document on stdin applied: revision 1\n"
    for command in (["policy", "validate"], ["policy", "apply", "--yes"]):
        assert "nothing came on stdin" in run(*command, "-", code=Exit.INVALID, stdin="").stderr
        assert "- for stdin" in " ".join(run(*command[:2], "--help").stdout.replace("│", " ").split())


@pytest.mark.slow
def test_plan_says_to_which_rules_the_names_of_removed_entries_fall(tmp_path: Path) -> None:
    rules = ["'acme/*'", "'acme/*-eu'", "acme/a-eu", "acme/b", "other/c", "'acme/b*'"]
    texts = [f"namespaces: {{{', '.join(f'{name}: {{}}' for name in kept)}}}" for kept in (rules[:2], rules)]
    for text in texts:
        run("policy", "apply", "-", stdin=text)
    heirs = {
        "acme/a-eu": ["namespaces.acme/*-eu"], "acme/b": ["namespaces.acme/*"], "other/c": ["defaults"],
        "acme/b*": ["namespaces.acme/*-eu", "namespaces.acme/*"],
    }  # fmt: skip
    (tmp_path / "p.yaml").write_text(texts[0])
    for command in (["rollback", "1"], ["apply", str(tmp_path / "p.yaml")]):
        assert answer("policy", *command, "--dry-run")["heirs"] == heirs
        said = run("policy", *command, "--dry-run").stdout
        assert "namespaces.acme/b  removed: falls to namespaces.acme/*" in said
        assert "namespaces.acme/b*  removed: falls to namespaces.acme/*-eu and namespaces.acme/*" in said
    assert answer("policy", "rollback", "2", "--dry-run")["heirs"] == {}


def test_apply_makes_the_store_only_if_it_is_told_to(tmp_path: Path) -> None:
    example, where = "conf/policies/example.yaml", f"delta:{tmp_path / 'other'}"
    run("policy", "apply", example, "--store", where, code=Exit.UNAVAILABLE)
    run("policy", "apply", example, "--store", where, "--init")
    assert answer("policy", "history", "--store", where)[0]["revision"] == 1


def test_document_that_cannot_be_applied_is_named_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("tenants: {acme: {publish: {mesages_per_second: 5}}}")
    said = failure("policy", "validate", str(tmp_path / "bad.yaml"), code=Exit.INVALID)
    assert said["message"].startswith("tenants.acme.publish.mesages_per_second: unknown key; did you mean messages_per")


def test_deleted_store_is_an_error_of_every_command(gold: None, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "store")
    for command in (["group", "list"], ["tenant", "create", "x"], ["policy", "history"], ["explain", "a/b"]):
        assert "there is no policy store" in failure(*command, code=Exit.UNAVAILABLE)["message"]
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_explain_names_the_rule_that_won(gold: None) -> None:
    run("namespace", "create", "acme/*", "resource_group=gold")
    found = answer("explain", "acme/x")
    assert (found["rule"], found["matched"], found["resource_group"]) == ("glob", "acme/*", "gold")
    text = run("explain", "acme/x").stdout
    assert "glob: acme/* is the most specific that matches it" in text
    assert "500" in text


@pytest.mark.slow
def test_explain_shows_the_burst_the_largest_message_and_the_weight(gold: None, tmp_path: Path) -> None:
    quota = ["publish.messages_per_second=40", "publish.burst_seconds=2.5", "publish.max_message_bytes=3KiB"]
    run("tenant", "create", "blue", *quota, "publish.weight=7")
    level = next(each for each in answer("explain", "blue/x")["levels"] if each["level"] == "tenant")
    assert (level["burst"], level["weight"], level["bounds"]) == ([100, None, None], 7, {"max_message_bytes": 3072})
    lines = run("explain", "blue/x").stdout.splitlines()
    head = next(line for line in lines if line.startswith("level"))
    assert re.split(r"\s{2,}", head.strip()) == [
        "level", "scope", "messages/s", "bytes/s", "burst", "max message", "weight", "excess",
    ]  # fmt: skip
    row = next(line for line in lines if line.startswith("tenant"))
    assert re.split(r"\s{2,}", row.strip()) == ["tenant", "blue", "40", "no limit", "100", "3 KiB", "7", "delay"]
    run_batch(tmp_path / "control", ["acme/x"] * 7)
    assert "weight" in run("explain", "acme/x", "--control", str(tmp_path / "control")).stdout


def test_explain_shows_the_quota_on_processing_time_where_there_is_one(gold: None) -> None:
    run("tenant", "create", "blue", "publish.request_percentage=250")
    level = next(each for each in answer("explain", "blue/x")["levels"] if each["level"] == "tenant")
    assert level["request_percentage"] == 250
    lines = run("explain", "blue/x").stdout.splitlines()
    assert "core time" in next(line for line in lines if line.startswith("level"))
    assert "250 %" in next(line for line in lines if line.startswith("tenant"))


@pytest.mark.slow
def test_empty_value_removes_a_setting_and_the_help_says_so(gold: None) -> None:
    run(
        "tenant", "create", "blue", "publish.bytes_per_second=8MiB", "publish.messages_per_second=5", "publish.weight=3"
    )
    refused = failure("tenant", "update", "blue", "publish.bytes_per_second=", code=Exit.UNCONFIRMED)
    assert refused["losses"] == ["tenants.blue.publish.bytes_per_second is lifted (it was 8388608)"]
    run("tenant", "update", "blue", "publish.bytes_per_second=", "publish.weight=", "--yes")
    assert answer("tenant", "get", "blue")["policy"] == {"publish": {"messages_per_second": 5}}
    for command in ("create", "update"):
        said = " ".join(run("tenant", command, "--help").stdout.replace("│", " ").split())
        assert "An empty value, as in publish.messages_per_second=, removes a setting" in said


def test_explain_of_a_job_shows_its_last_batch(tmp_path: Path) -> None:
    control = tmp_path / "control"
    run_batch(control, ["acme/x"] * 7)
    found = answer("explain", "acme/x", "--control", str(control))
    assert found["last_batch"]["waiting"] == [4, 400, 0]
    assert found["predicted_release_ms"] == 2500
    text = run("explain", "acme/x", "--control", str(control)).stdout
    assert "time until the backlog is gone, if nothing more arrives: 2.5 s, by the quota of resource group gold" in text


def test_status_shows_the_scopes_with_most_waiting(tmp_path: Path) -> None:
    control = tmp_path / "control"
    run_batch(control, ["acme/x"] * 7 + ["blue/y"], problem="revision 13 cannot be applied")
    found = answer("status", "--control", str(control), "--level", "namespace", "--limit", "1")
    assert [(each["scope"], each["waiting_messages"]) for each in found["scopes"]] == [("acme/x", 4)]
    assert (found["store_revision"], found["problem"]) == (12, "revision 13 cannot be applied")
    text = run("status", "--control", str(control)).stdout
    assert "the newest policies are not in force: revision 13 cannot be applied" in text
    assert "store revision 12" in text
    run("status", "--control", str(control), "--level", "group", code=Exit.INVALID)


def test_status_before_the_first_batch_says_so(tmp_path: Path) -> None:
    bind(Directory(str(tmp_path)), direction="publish")
    assert "no batch has reported yet" in run("status", "--control", str(tmp_path)).stdout
    assert answer("status", "--control", str(tmp_path))["batch_age_ms"] is None


def test_import_prints_a_document_and_lists_what_it_cannot_say(tmp_path: Path) -> None:
    envs = '{"temp": {"replica.write_throttling": "2K*delay*100", "default_ttl": "86400"}}'
    result = run("import", "pegasus", "-", code=Exit.DIFFERENT, stdin=envs)
    assert load_policies(result.stdout).namespaces["temp"].write_throttling == "2K*delay*100"
    assert result.stderr.splitlines() == [
        "imported: 1 namespace", "not imported, or not as it was (1 point, exit code 10):",
        "  temp: default_ttl = 86400 is not a quota of a policy",
    ]  # fmt: skip
    assert "imported: nothing" in run("import", "pegasus", "-", stdin='{"temp": {}}', code=Exit.DIFFERENT).stderr
    file = tmp_path / "groups.json"
    file.write_text('{"gold": {"publishRateInMsgs": 100}}')
    assert answer("import", "pulsar", str(file))["policy"]["resource_groups"]["gold"] == {
        "publish": {"messages_per_second": 100}
    }
    file.write_text("Quota configs for user-principal 'a', client-id 'b' are producer_byte_rate=5.0")
    assert answer("import", "kafka", str(file))["unexpressed"] == []
    run("import", "kafka", str(tmp_path / "none"), code=Exit.INVALID)


@pytest.mark.slow
def test_command_line_starts_without_spark_pandas_or_a_java_machine() -> None:
    script = (
        "import os, sys; os._exit = sys.exit\n"  # the command ends at once, and the question is asked after it
        "from spark_throttle.command_line.app import main; sys.argv = ['spark-throttle', 'group', 'list']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "print(sorted({'pyspark', 'pandas', 'py4j', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_shell_completion_is_offered() -> None:
    asked = {"_SPARK_THROTTLE_COMPLETE": "complete_bash", "COMP_WORDS": "spark-throttle gr", "COMP_CWORD": "1"}
    assert RUNNER.invoke(app, [], prog_name="spark-throttle", env=asked).stdout.split() == ["group"]


def test_every_command_that_answers_takes_the_output_option() -> None:
    from typer.main import get_command

    def commands(group: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
        if hasattr(group, "commands"):
            return [found for name, sub in group.commands.items() for found in commands(sub, (*path, name))]
        return [(path, group)]

    without = [
        path
        for path, command in commands(get_command(app))
        if "--output" not in {o for p in command.params for o in p.opts}
    ]
    assert without == [("serve",)]


@pytest.mark.slow
def test_entry_is_locked_and_unlocked() -> None:
    run("namespace", "create", "acme/x", "locked=true", "publish.messages_per_second=0", "--yes")
    assert answer("namespace", "get", "acme/x")["policy"] == {"publish": {"messages_per_second": 0}, "locked": True}
    assert "locked=true" in run("namespace", "list").stdout
    assert re.search(r"^locked +true$", run("namespace", "get", "acme/x").stdout.replace(" \n", "\n"), re.MULTILINE)
    run("namespace", "update", "acme/x", "publish.messages_per_second=1")
    assert answer("namespace", "get", "acme/x")["policy"]["locked"] is True
    run("namespace", "update", "acme/x", "locked=false")
    assert "locked" not in answer("namespace", "get", "acme/x")["policy"]
    said = failure("namespace", "update", "acme/x", "locked=maybe", code=Exit.INVALID)
    assert said["message"].endswith("'maybe' is neither true nor false")


def test_help_of_status_has_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert "by default 600 s" in " ".join(run("status", "--help").stdout.replace("│", " ").split())


def test_help_of_commands_has_no_line_that_is_broken_in_the_middle() -> None:
    helps = [each.help or inspect.getdoc(each.callback) or "" for each in app.registered_commands]
    assert len(helps) > 4
    below = [text for each in helps for text in inspect.cleandoc(each).split("\n\n")[1:]]  # the first one is joined
    assert [text for text in below if "\n" in text] == []


def test_help_on_exemptions_has_the_right_article() -> None:
    helps = [command.help or "" for command in named_app("exempt", "exemption").registered_commands]
    assert "Delete an exemption." in helps
    assert not any("a exemption" in text for text in helps)
