"""A YAML store whose log is gone, at every door: the command line, the admin API, the metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_throttle.admin.cli.app import app
from spark_throttle.admin.cli.output import Exit
from spark_throttle.store.file_store import FileStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.conftest import ServedApp, served_over

V2 = "/admin/v2"
ACME = f"{V2}/policies/tenants/acme"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "policies.yaml.log"


@pytest.fixture
def served(tmp_path: Path, log: Path) -> ServedApp:
    """The server of a store that has lost its log while it was served."""
    store = FileStore.create(tmp_path / "policies.yaml")
    PolicyService(store, clock_ms=lambda: 0).put("tenant", "acme", {"publish": {"weight": 2}}, Author("ann"))
    log.unlink()
    return served_over(store, tmp_path)


def test_command_line_reads_and_refuses_to_change(served: ServedApp, log: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*arguments, "--store", served.store.location])
        return result.exit_code, result.stdout or result.stderr

    assert run("tenant", "get", "acme")[0] == run("policy", "show")[0] == Exit.DONE
    for arguments in (
        ("tenant", "create", "late"), ("tenant", "delete", "acme", "--yes"), ("policy", "history"),
        ("policy", "rollback", "1"), ("policy", "diff"),
    ):  # fmt: skip
        code, said = run(*arguments)
        assert code == Exit.FAULT, said
        assert f"its log {log} is not there" in said
        assert "restore the log from a backup, or, if the history may begin anew, make an empty file" in said
    assert not log.exists()
    log.touch()
    assert run("tenant", "create", "late")[0] == Exit.DONE


def test_server_reads_and_refuses_to_change(served: ServedApp, log: Path) -> None:
    admin = served.client()
    assert admin.get(ACME).json()["policy"] == {"publish": {"weight": 2}}
    for answer in (
        admin.put(ACME, json={}), admin.delete(f"{ACME}?yes=true"), admin.get(f"{V2}/history"),
        admin.get(f"{V2}/rollback/0"), admin.post(f"{V2}/rollback/0?yes=true"),
    ):  # fmt: skip
        assert answer.status_code == 503, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert f"is damaged: its log {log} is not there" in answer.json()["detail"]
    of_tenant = served.client("tenant_admin").put(f"{V2}/policies/namespaces/acme%2Fx", json={})
    assert (of_tenant.status_code, str(log) in of_tenant.text) == (503, False)
    assert not log.exists()


def test_status_and_metrics_say_that_the_log_is_gone(served: ServedApp, log: Path) -> None:
    admin = served.client()
    status = admin.get(f"{V2}/status").json()
    assert status["store_revision"] is None
    assert f"its log {log} is not there" in status["store_problem"]
    assert "spark_throttle_store_up 0.0" in admin.get("/metrics").text
    log.touch()
    status = admin.get(f"{V2}/status").json()
    assert (status["store_revision"], status["store_problem"]) == (1, None)
    assert "spark_throttle_store_up 1.0" in admin.get("/metrics").text
