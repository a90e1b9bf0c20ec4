"""The commands on entries: their help has the settings of their kind, and a program is given all of a list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner, Result

from spark_throttle.admin.cli.entries import KEYS
from spark_throttle.admin.cli.output import Exit
from spark_throttle.command_line.app import app
from spark_throttle.policy.model import DestinationPolicy, Quota
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.entries import EMPTY
from spark_throttle.store.store import Kind

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


def leaves(part: type[BaseModel], prefix: str = "") -> set[str]:
    """Return the paths of the settings of a part of a policy."""
    found = set()
    for name, field in part.model_fields.items():
        inner = next((each for each in (Quota, DestinationPolicy) if each.__name__ in str(field.annotation)), None)
        found |= {f"{prefix}{name}"} if inner is None else leaves(inner, f"{prefix}{name}.")
    return found


@pytest.mark.parametrize("kind", KEYS)
def test_help_has_the_settings_of_its_kind_and_no_others(kind: Kind) -> None:
    known = leaves(type(EMPTY[kind]))
    quotas = {f"{direction}.{key}" for direction in ("publish", "dispatch") for key in Quota.model_fields}
    assert known == ({*KEYS[kind]} if kind == "queue" else {*KEYS[kind], *quotas})
    group = {"resource_group": "group"}.get(kind, kind)
    text = " ".join(run(group, "update", "--help").stdout.split())
    assert all(key.rpartition(".")[2] in text for key in known)
    assert ("write_throttling" in text) == (kind in ("namespace", "defaults"))


def test_exemption_has_no_settings() -> None:
    assert "PATH=VALUE" not in run("exempt", "create", "--help").stdout
    run("exempt", "update", "x", code=Exit.USAGE)
