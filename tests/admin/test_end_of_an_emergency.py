"""An emergency ends by the command that says so, and by a document or a rollback only if that is confirmed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_throttle.admin.refusals import Exit
from spark_throttle.command_line.app import app
from spark_throttle.store.file.file_store import FileStore
from tests.admin.conftest import ServedApp, served_over

V2 = "/admin/v2"
DOCUMENT = """
tenants: {acme: {publish: {messages_per_second: 100}}}
namespaces: {acme/*: {publish: {messages_per_second: 80}}}
"""
ENDS = [
    "tenants.acme.publish.messages_per_second is raised from 0 to 100",
    "namespaces.acme/x.publish.messages_per_second is raised from 0 to 80",
    "the lock of namespaces.acme/x is lifted",
]


def run(*arguments: str, code: Exit = Exit.DONE) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--output", "json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout or result.stderr)


@pytest.fixture
def document(tmp_path: Path) -> str:
    path = tmp_path / "acme.yaml"
    path.write_text(DOCUMENT)
    return str(path)


@pytest.fixture(autouse=True)
def store(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileStore:
    """A store with an emergency in a tenant, and in a namespace whose entry is locked."""
    monkeypatch.setenv("SPARK_THROTTLE_STORE", f"file:{tmp_path / 'policies.yaml'}")
    shut = ["publish.messages_per_second=0", "publish.on_excess=reject", "--yes"]
    run("policy", "apply", document, "--init")
    run("tenant", "update", "acme", *shut)
    run("namespace", "create", "acme/x", "locked=true", *shut)
    return FileStore(tmp_path / "policies.yaml")


def test_document_without_the_emergency_ends_it_only_if_that_is_confirmed(store: FileStore, document: str) -> None:
    assert sorted(run("policy", "apply", document, "--dry-run")["losses"]) == sorted(ENDS)
    assert sorted(run("policy", "apply", document, code=Exit.UNCONFIRMED)["losses"]) == sorted(ENDS)
    assert store.revision() == 3
    run("policy", "apply", document, "--yes")
    assert store.revision() == 4


def test_rollback_to_before_the_emergency_ends_it_only_if_that_is_confirmed(store: FileStore, tmp_path: Path) -> None:
    assert run("policy", "rollback", "1", code=Exit.UNCONFIRMED)["losses"] == ENDS
    served: ServedApp = served_over(store, tmp_path)
    admin = served.client()
    assert admin.get(f"{V2}/rollback/1").json()["losses"] == ENDS
    refused = admin.post(f"{V2}/rollback/1")
    assert (refused.status_code, refused.json()["losses"]) == (428, ENDS)
    assert store.revision() == 3
    assert admin.post(f"{V2}/rollback/1?yes=true").json()["revision"] == 4


def test_command_that_ends_the_emergency_asks_nobody(store: FileStore) -> None:
    run("tenant", "update", "acme", "publish.messages_per_second=100", "publish.on_excess=")
    run("namespace", "update", "acme/x", "locked=false")
    run("namespace", "delete", "acme/x")
    assert store.revision() == 6


def test_document_with_the_emergency_asks_nobody(store: FileStore, document: str) -> None:
    text = CliRunner().invoke(app, ["policy", "show"]).stdout
    Path(document).write_text(text)
    assert run("policy", "apply", document, "--dry-run")["losses"] == []
    run("policy", "apply", document)
    assert store.revision() == 3
