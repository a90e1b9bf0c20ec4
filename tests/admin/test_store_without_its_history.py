"""A YAML store whose history is gone or damaged, at every door: the command line, the admin API, the metrics."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from spark_throttle.admin.refusals import Exit
from spark_throttle.command_line.app import app
from spark_throttle.store.file.file_store import FileStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.conftest import ServedApp, served_over

EXAMPLE = "conf/policies/example.yaml"
V2 = "/admin/v2"
ACME = f"{V2}/policies/tenants/acme"


@pytest.fixture
def history(tmp_path: Path) -> Path:
    return tmp_path / "policies.yaml.history"


@pytest.fixture
def served(tmp_path: Path, history: Path) -> ServedApp:
    """The server of a store that has lost its history while it was served."""
    store = FileStore.create(tmp_path / "policies.yaml")
    PolicyService(store, clock_ms=lambda: 0).put("tenant", "acme", {"publish": {"weight": 2}}, Author("ann"))
    history.unlink()
    return served_over(store, tmp_path)


def test_command_line_reads_and_refuses_to_change(served: ServedApp, history: Path) -> None:
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
        assert f"its history {history} is not there" in said
        assert "restore the history from a backup, or, if it may begin anew, make an empty file" in said
    assert not history.exists()
    history.touch()
    assert run("tenant", "create", "late")[0] == Exit.DONE


def test_server_reads_and_refuses_to_change(served: ServedApp, history: Path) -> None:
    admin = served.client()
    assert admin.get(ACME).json()["policy"] == {"publish": {"weight": 2}}
    for answer in (
        admin.put(ACME, json={}), admin.delete(f"{ACME}?yes=true"), admin.get(f"{V2}/history"),
        admin.get(f"{V2}/rollback/0"), admin.post(f"{V2}/rollback/0?yes=true"),
    ):  # fmt: skip
        assert answer.status_code == 503, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert f"is damaged: its history {history} is not there" in answer.json()["detail"]
    of_tenant = served.client("tenant_admin").put(f"{V2}/policies/namespaces/acme%2Fx", json={})
    assert (of_tenant.status_code, str(history) in of_tenant.text) == (503, False)
    assert not history.exists()


def test_status_and_metrics_say_that_the_history_is_gone(served: ServedApp, history: Path) -> None:
    admin = served.client()
    status = admin.get(f"{V2}/status").json()
    assert status["store_revision"] is None
    assert f"its history {history} is not there" in status["store_problem"]
    assert "spark_throttle_store_up 0.0" in admin.get("/metrics").text
    history.touch()
    status = admin.get(f"{V2}/status").json()
    assert (status["store_revision"], status["store_problem"]) == (1, None)
    assert "spark_throttle_store_up 1.0" in admin.get("/metrics").text


# ------------------------------------------------------------------------------------ a history that cannot be read


@pytest.fixture
def damaged(tmp_path: Path, history: Path) -> ServedApp:
    """The server of a store whose history is no history any more while it is served."""
    store = FileStore.create(tmp_path / "policies.yaml")
    service = PolicyService(store, clock_ms=lambda: 0)
    for name in ("acme", "blue", "cora"):
        service.put("tenant", name, {"publish": {"weight": 2}}, Author("ann"))
    history.write_bytes(bytes(20_000))
    return served_over(store, tmp_path)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def test_change_by_the_command_line_deletes_nothing_where_the_history_cannot_be_read(
    damaged: ServedApp, tmp_path: Path, history: Path
) -> None:
    document, store = tmp_path / "policies.yaml", ("--store", damaged.store.location)
    before = document.read_bytes(), history.read_bytes()
    shown = _run("policy", "show", *store)
    assert all(name in shown.stdout for name in ("acme", "blue", "cora"))
    for command in (
        ("group", "create", "other", "publish.messages_per_second=1"), ("policy", "history"),
        ("policy", "apply", EXAMPLE), ("policy", "apply", EXAMPLE, "--init"),
        ("policy", "apply", EXAMPLE, "--dry-run"), ("policy", "apply", EXAMPLE, "--init", "--dry-run"),
        ("policy", "rollback", "1"), ("policy", "rollback", "0", "--dry-run"),
    ):  # fmt: skip
        ran = _run(*command, *store)
        assert ran.exit_code == Exit.FAULT, ran.output
        assert f"its history {history} cannot be read: SQLite says of it: " in ran.stderr
        assert "restore the history from a backup, or, if" in ran.stderr
    assert (document.read_bytes(), history.read_bytes()) == before


def test_server_says_that_the_history_cannot_be_read(damaged: ServedApp, tmp_path: Path, history: Path) -> None:
    admin, document = damaged.client(), (tmp_path / "policies.yaml").read_bytes()
    assert admin.get(ACME).json()["policy"] == {"publish": {"weight": 2}}
    for answer in (admin.put(ACME, json={}), admin.delete(f"{ACME}?yes=true"), admin.get(f"{V2}/history")):
        assert answer.status_code == 503, answer.text
        assert f"its history {history} cannot be read" in answer.json()["detail"]
    assert f"its history {history} cannot be read" in admin.get(f"{V2}/status").json()["store_problem"]
    assert "spark_throttle_store_up 0.0" in admin.get("/metrics").text
    assert (tmp_path / "policies.yaml").read_bytes() == document


def test_folder_in_place_of_the_history_ends_with_the_exit_code_of_damage(tmp_path: Path, history: Path) -> None:
    store = FileStore.create(tmp_path / "policies.yaml").location
    history.unlink()
    history.mkdir()
    ran = _run("tenant", "create", "late", "--store", store)
    assert ran.exit_code == Exit.FAULT
    assert f"its history {history} is a folder or no file at all" in ran.stderr


# ------------------------------------------------------------------------------------------------------- --init


def test_init_follows_the_remedy_of_a_lost_document_and_a_refusal_makes_no_empty_store(
    tmp_path: Path, history: Path
) -> None:
    document = tmp_path / "policies.yaml"
    init = ("policy", "apply", EXAMPLE, "--init", "--store", f"file:{document}")
    assert _run(*init).exit_code == Exit.DONE
    document.unlink()
    for command in (init, (*init, "--dry-run")):
        assert "move the history away first" in _run(*command).stderr
        assert not document.exists()
    history.rename(tmp_path / "old.history")
    assert "would be made" in _run(*init, "--dry-run").stdout
    assert not document.exists()
    assert _run(*init).exit_code == Exit.DONE
    assert "       1  " in _run("policy", "history", "--store", f"file:{document}").stdout


@pytest.mark.parametrize("scheme", ["file", "delta"])
def test_init_that_is_refused_makes_no_store(tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    init = ("policy", "apply", EXAMPLE, "--init", "--store", f"{scheme}:{tmp_path / 'none' / 'policies.yaml'}")
    assert _run(*init, "--expected", "3").exit_code == Exit.CONFLICT
    assert not (tmp_path / "none").exists()
    monkeypatch.setenv("SPARK_THROTTLE_AUDIT", str(tmp_path))
    assert _run(*init).exit_code != Exit.DONE
    assert not (tmp_path / "none").exists()
    monkeypatch.delenv("SPARK_THROTTLE_AUDIT")
    assert _run(*init, "--expected", "0").exit_code == Exit.DONE


@pytest.mark.parametrize(
    ("content", "code"),
    [("tenants: {acme: {}}\n", Exit.DONE), ("", Exit.INVALID), (None, Exit.UNAVAILABLE)],
    ids=["document", "empty", "folder"],
)
@pytest.mark.parametrize("options", [("--init",), ()])
def test_dry_run_and_refusal_make_no_file_beside_a_document_that_is_no_store(
    tmp_path: Path, content: str | None, code: Exit, options: tuple[str, ...]
) -> None:
    document = tmp_path / "policies.yaml"
    if content is None:
        document.mkdir()
    else:
        document.write_text(content)
    command = ("policy", "apply", EXAMPLE, *options, "--store", f"file:{document}")
    assert _run(*command, "--dry-run").exit_code == code
    assert list(tmp_path.iterdir()) == [document]
    if code != Exit.DONE:
        assert _run(*command).exit_code == code
        assert list(tmp_path.iterdir()) == [document]
