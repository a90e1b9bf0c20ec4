"""The audit log tells what a change changed, every attempt of the command line, and why a caller was not known."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from spark_throttle.admin.audit import AuditLog, Event
from spark_throttle.admin.sign_in import SignIn
from spark_throttle.admin.sign_in_settings import SignInSettings
from spark_throttle.command_line.app import app
from spark_throttle.errors import StoreUnavailableError
from spark_throttle.store.file.file_store import FileStore
from spark_throttle.store.file.history import History
from spark_throttle.store.memory_store import MemoryStore
from tests.admin.conftest import ServedApp
from tests.admin.openid_provider import Provider, made_key, provider_on_loopback
from tests.admin.server_process import server_process

GOLD = "/admin/v2/policies/resource_groups/gold"
CALLER = "/admin/v2/caller"
PATH = "resource_groups.gold"
FIVE, SIX = ({"publish": {"messages_per_second": rate}} for rate in (5, 6))


# ------------------------------------------------------------------------------------------- what was changed


def test_line_of_a_change_has_the_entry_before_and_after(in_memory: ServedApp) -> None:
    client = in_memory.client()
    client.put(GOLD, json=FIVE)
    client.put(GOLD, json=SIX)
    client.put(GOLD, json=SIX)
    client.delete(GOLD)
    assert [line.get("changes") for line in in_memory.audited] == [
        [{"path": PATH, "before": None, "after": FIVE}], [{"path": PATH, "before": FIVE, "after": SIX}],
        None, [{"path": PATH, "before": SIX, "after": None}],
    ]  # fmt: skip


def test_line_of_a_change_has_the_entries_that_it_undoes(in_memory: ServedApp) -> None:
    client = in_memory.client()
    client.put("/admin/v2/policies/tenants/acme", json={"publish": {"messages_per_second": 100}})
    client.put("/admin/v2/policy/defaults", json={"publish": {"messages_per_second": 50}})
    in_memory.client("tenant_admin").put(
        "/admin/v2/policies/namespaces/acme%2Fx", json={"publish": {"messages_per_second": 40}}
    )
    client.put("/admin/v2/policy/defaults", json={"publish": {"messages_per_second": 10}})
    assert [change["path"] for change in in_memory.audited[-1]["changes"]] == ["defaults", "namespaces.acme/x"]


@pytest.mark.slow
def test_line_of_a_change_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_THROTTLE_AUDIT", str(tmp_path / "audit"))
    named = "\n".join(f"  t{number:04d}: {{publish: {{messages_per_second: 7}}}}" for number in range(500))
    (tmp_path / "many.yaml").write_text(f"tenants:\n{named}\n")
    store = f"file:{tmp_path / 'p.yaml'}"
    ran = CliRunner().invoke(app, ["policy", "apply", str(tmp_path / "many.yaml"), "--store", store, "--init"])
    assert ran.exit_code == 0, ran.output
    (line,) = _lines(tmp_path)
    assert (len(line["changes"]), line["changes_left_out"]) == (20, 480)
    assert (tmp_path / "audit").stat().st_size < 10_000


def test_long_entry_is_cut_and_a_secret_in_it_is_hidden(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit", clock_ms=lambda: 0)
    secret = "throttle_0123456789ab_" + "S" * 43
    changes = [{"path": f"tenants.{secret}", "before": {"x": "y" * 50_000}, "after": {secret: [secret]}}]
    log.append(Event("cli", "ann", "ann", "host", "policy apply", "done", changes=changes))
    assert "SSS" not in log.path.read_text()
    (line,) = _lines(tmp_path)
    assert len(line["changes"][0]["before"]) < 8400
    assert "[sha256 " in line["changes"][0]["before"]


def test_change_that_wants_a_confirmation_has_an_outcome_of_its_own(
    in_memory: ServedApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = in_memory.client()
    client.put("/admin/v2/policy/job", json=FIVE)
    assert client.put("/admin/v2/policies/exempt/*", json={}).status_code == 428
    assert in_memory.audited[-1]["outcome"] == "unconfirmed"
    store = f"file:{tmp_path / 'p.yaml'}"
    FileStore.create(tmp_path / "p.yaml")
    limit = ["job", "update", "publish.messages_per_second=5", "--store", store]
    assert CliRunner().invoke(app, limit).exit_code == 0
    monkeypatch.setenv("SPARK_THROTTLE_AUDIT", str(tmp_path / "cli"))
    assert CliRunner().invoke(app, ["exempt", "create", "*", "--store", store]).exit_code == 12
    (line,) = _lines(tmp_path, "cli")
    assert (line["outcome"], line["changes"]) == ("unconfirmed", [{"path": "exempt.*", "after": {}}])


# ---------------------------------------------------------------------------------- attempts of the command line


def _lines(folder: Path, name: str = "audit") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize(
    ("words", "outcome", "reason"),
    [
        (["policy", "apply", "bad.yaml"], "refused", "repeated"),
        (["policy", "apply", "nowhere.yaml"], "refused", "nowhere.yaml"),
        (["policy", "apply", "good.yaml", "--store", "file:/no/such/store.yaml"], "failed", "no such file"),
        (["policy", "apply", "good.yaml", "--expected", "7"], "refused", "revision 7"),
        (["policy", "rollback", "99"], "refused", "revision '99'"),
        (["group", "update", "nosuch", "publish.messages_per_second=1"], "refused", "nosuch"),
        (["group", "create", "g", "publish"], "refused", "setting"),
        (["group", "delete", "nosuch"], "refused", "nosuch"),
        (["tenant", "attach", "a", "nosuch"], "refused", "nosuch"),
        (["tenant", "detach", "a"], "refused", "resource group"),
        (["job", "update", "publish.weight=x"], "refused", "weight"),
        (["namespace", "create", "acme/x", "--store", ""], "refused", "no policy store"),
    ],
)
def test_attempt_of_the_command_line_that_fails_has_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], outcome: str, reason: str
) -> None:
    (tmp_path / "good.yaml").write_text("job: {publish: {messages_per_second: 5}}\n")
    (tmp_path / "bad.yaml").write_text("job: {publish: {messages_per_second: 5, messages_per_second: 6}}\n")
    FileStore.create(tmp_path / "p.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_THROTTLE_AUDIT", str(tmp_path / "audit"))
    monkeypatch.setenv("SPARK_THROTTLE_STORE", "file:p.yaml")
    assert CliRunner().invoke(app, [*words, "--who", "ann", "-m", "because"]).exit_code != 0
    (line,) = _lines(tmp_path)
    assert (line["action"], line["outcome"]) == (" ".join(words[:2]), outcome)
    assert reason in line["detail"]
    assert (line["who"], line["why"]) == ("ann", "because")


@pytest.mark.parametrize("harm", ["damage", "document", "lock"])
def test_attempt_on_a_store_that_cannot_be_read_has_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    store = f"file:{tmp_path / 'p.yaml'}"
    FileStore.create(tmp_path / "p.yaml")
    assert CliRunner().invoke(app, ["tenant", "create", "acme", "--store", store]).exit_code == 0
    if harm == "damage":
        (tmp_path / "p.yaml.history").write_text("nonsense\n" * 100)
    elif harm == "document":
        (tmp_path / "p.yaml").write_text("tenants: {acme: {publish: {weight: 0}}}\n")
    else:

        def refused(*_: Any, **__: Any) -> Any:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(History, "read", refused)
    monkeypatch.setenv("SPARK_THROTTLE_AUDIT", str(tmp_path / "audit"))
    assert CliRunner().invoke(app, ["tenant", "update", "acme", "--store", store]).exit_code != 0
    (line,) = _lines(tmp_path)
    assert (line["action"], line["outcome"]) == ("tenant update", "failed")


@pytest.mark.parametrize("harm", ["damage", "document", "away"])
def test_attempt_over_the_api_on_a_store_that_cannot_be_read_has_failed(
    serve: Callable[..., ServedApp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    store = FileStore.create(tmp_path / "p.yaml")
    served = serve(store)
    client = served.client()
    assert client.put(GOLD, json=FIVE).status_code == 200
    if harm == "damage":
        (tmp_path / "p.yaml.history").write_text("nonsense\n" * 100)
    elif harm == "document":
        (tmp_path / "p.yaml").write_text("tenants: {acme: {publish: {weight: 0}}}\n")
    else:

        def away(*_: Any, **__: Any) -> Any:
            raise StoreUnavailableError("file:p.yaml", "Permission denied")

        monkeypatch.setattr(store, "commit", away)
    assert client.put(GOLD, json=SIX).status_code == 503
    assert served.audited[-1]["outcome"] == "failed"


def test_what_only_reads_has_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_THROTTLE_AUDIT", str(tmp_path / "audit"))
    FileStore.create(tmp_path / "p.yaml")
    store = f"file:{tmp_path / 'p.yaml'}"
    for words in (["policy", "rollback", "9", "--dry-run"], ["group", "get", "nosuch"], ["policy", "validate", "no"]):
        assert CliRunner().invoke(app, [*words, *(["--store", store] if "validate" not in words else [])]).exit_code
    assert not (tmp_path / "audit").exists()


def test_contradiction_in_a_token_command_has_a_line(tmp_path: Path) -> None:
    words = ["token", "create", "ann", "--days", "5", "--never-expires", "--tokens", str(tmp_path / "t.json")]
    assert CliRunner().invoke(app, words).exit_code == 3
    (line,) = _lines(tmp_path, "t.json.audit")
    assert (line["outcome"], line["action"]) == ("refused", "token create ann viewer")


@pytest.mark.slow
def test_command_is_named_alike_however_the_program_was_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spark_throttle.command_line", "token", "revoke", "0123456789ab"]
    subprocess.run([*command, "--tokens", str(tmp_path / "t.json")], check=False, capture_output=True)
    (line,) = _lines(tmp_path, "t.json.audit")
    assert line["action"] == "token revoke 0123456789ab"


# ------------------------------------------------------------------------------------- callers that are not known


def _said(served: ServedApp, text: str) -> str:
    """Return the reason in the log; the answer is the same for all."""
    answer = TestClient(served.app).get(CALLER, headers={"Authorization": f"Bearer {text}"})
    assert answer.status_code == 401
    assert answer.json()["detail"].startswith("there is no token, or it is unknown or has expired")
    return str(served.audited[-1]["detail"])


def test_token_that_is_refused_is_recorded_by_its_id_and_why(in_memory: ServedApp) -> None:
    short = in_memory.token_file.create("ann", "admin", days=1)
    short_id = short.split("_")[1]
    wrong = f"throttle_{short_id}_{'A' * 43}"
    assert _said(in_memory, wrong) == f"the secret of the token {short_id} is wrong"
    in_memory.clock[0] += 2 * 86_400_000
    assert _said(in_memory, short) == f"the token {short_id} (ann) has expired"
    assert _said(in_memory, wrong) == f"the secret of the token {short_id} is wrong"
    assert _said(in_memory, f"throttle_0123456789ab_{'A' * 43}") == "there is no token 0123456789ab"
    assert _said(in_memory, "nonsense") == "it is no token of this server"
    assert in_memory.audit is not None
    assert "A" * 43 not in in_memory.audit.path.read_text()


@pytest.fixture
def believing(serve: Callable[..., ServedApp]) -> Any:
    with provider_on_loopback() as provider:
        given = {"issuer": provider.issuer, "audience": "spark-throttle", "roles": [
            {"claim": "groups", "value": "platform", "role": "admin"}]}  # fmt: skip
        clocks: list[list[int]] = []
        sign_in = SignIn(
            SignInSettings.model_validate(given), clock_ms=lambda: clocks[0][0], monotonic_ms=lambda: clocks[1][0]
        )
        served = serve(MemoryStore(), sign_in=sign_in)
        clocks += [served.clock, served.monotonic]
        yield served, provider


@pytest.mark.slow
def test_refusal_of_a_sign_in_is_recorded_with_its_reason(believing: tuple[ServedApp, Provider]) -> None:
    served, provider = believing
    now = served.clock[0]

    def token(**claims: Any) -> str:
        return provider.signed(provider.claims(now, **claims))

    good = provider.claims(now)
    unsigned = provider.signed(good).rpartition(".")[0] + "."
    for text, reason in (
        (token(exp=now // 1000 - 31), "sign-in: it has expired"),
        (token(aud="other"), "sign-in: its claim 'aud' is wrong"),
        (token(iss="https://other.example"), "sign-in: its claim 'iss' is wrong"),
        (token(nbf=now // 1000 + 60), "sign-in: its claim 'nbf' is wrong"),
        (token(sub=None), "sign-in: its claim 'sub' is missing"),
        (token(exp=None), "sign-in: its claim 'exp' is missing"),
        (token(sub="a\nb"), "sign-in: its claim 'sub' cannot be shown"),
        (provider.signed(good, key=made_key("evil"), kid="evil"), "sign-in: the provider has no such key"),
        (provider.signed(good, key=made_key("evil"), kid="first"), "sign-in: its signature is wrong"),
        (unsigned, "sign-in: its signature is wrong"),
        (provider.signed(good, typ="logout+jwt"), "sign-in: its type is not that of a caller's token"),
        ("x.y.z", "sign-in: it is no signed token"),
        ("nonsense", "sign-in: it is no signed token"),
    ):
        assert _said(served, text) == reason
        served.monotonic[0] += 60_000


def test_provider_that_is_away_is_named_in_the_audit_log(believing: tuple[ServedApp, Provider]) -> None:
    served, provider = believing
    text = provider.signed(provider.claims(served.clock[0]))
    provider.answers["/keys"] = (500, {}, b"")
    answer = TestClient(served.app).put(GOLD, json={}, headers={"Authorization": f"Bearer {text}"})
    assert answer.status_code == 503
    assert provider.issuer in served.audited[-1]["detail"]
    assert provider.issuer not in answer.text


@pytest.mark.slow
def test_provider_that_is_away_when_the_server_starts_is_in_the_servers_log(tmp_path: Path) -> None:
    from spark_throttle.admin.tokens import TokenFile

    (tmp_path / "openid.yaml").write_text(
        "issuer: http://127.0.0.1:1\naudience: x\nroles: [{claim: groups, value: a, role: admin}]\n"
    )
    tokens = TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    tokens.create("ann", "admin")
    with server_process(tmp_path, tokens, "--openid", str(tmp_path / "openid.yaml")) as server:
        server.process.terminate()
        server.process.wait(20)
        assert "the keys of the sign-in provider http://127.0.0.1:1 could not be asked for" in server.log.read_text()
