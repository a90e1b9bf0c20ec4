"""The audit log: who, by which door, what, from where, with what outcome; and no secret, in it or in the access log."""

from __future__ import annotations

import base64
import errno
import json
import logging
import os
import pwd
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send
from typer.testing import CliRunner

from spark_throttle.admin.api.request_audit import REFUSALS_AT_ONCE
from spark_throttle.admin.audit import AuditLog, Event
from spark_throttle.admin.redaction import without_secrets
from spark_throttle.admin.tokens import TokenFile
from spark_throttle.command_line.app import app
from spark_throttle.errors import FileUnusableError
from spark_throttle.store.file.file_store import FileStore
from spark_throttle.store.memory_store import MemoryStore
from tests.admin.conftest import ServedApp
from tests.admin.raw_http import asked, request
from tests.admin.server_process import server_process

GOLD = "/admin/v2/resourcegroup/gold"
ME = f"{pwd.getpwuid(os.getuid()).pw_name} (uid {os.getuid()})"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJodHRwczovL2xvZ2luIn0.c2lnbmF0dXJl"


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "audit", clock_ms=lambda: 0)


def event(**fields: Any) -> Event:
    given = {"door": "api", "caller": "token x", "who": "ann", "source": "192.0.2.7", "action": "PUT /x",
             "outcome": "done", **fields}  # fmt: skip
    return Event(**given)


def lines_of(log: AuditLog) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.path.read_text().splitlines()]


def token_id(served: ServedApp, role: str) -> str:
    return next(token.id for token in served.token_file.list() if token.role == role)


# ------------------------------------------------------------------------------------------------- over the API


def test_change_over_the_api_is_recorded_with_its_caller_source_and_revision(in_memory: ServedApp) -> None:
    assert in_memory.client().put(f"{GOLD}?why=first+customers", json={}).status_code == 200
    (line,) = in_memory.audited
    assert line == {
        "format": 1, "at": "2026-11-21T13:12:44.070Z", "door": "api", "caller": f"token {token_id(in_memory, 'admin')}",
        "who": "admin-of-test", "role": "admin", "source": "testclient", "action": f"PUT {GOLD}", "outcome": "done",
        "status": 200, "revision": 1, "why": "first customers",
        "changes": [{"path": "resource_groups.gold", "before": None, "after": {}}],
    }  # fmt: skip


def test_change_that_changes_nothing_is_recorded_as_such(in_memory: ServedApp) -> None:
    for _ in range(2):
        in_memory.client().put(GOLD, json={})
    assert [line["outcome"] for line in in_memory.audited] == ["done", "unchanged"]


@pytest.mark.parametrize(("role", "method", "path", "status"), [
    ("viewer", "PUT", GOLD, 403), ("tenant_admin", "DELETE", GOLD, 403), (None, "PUT", GOLD, 401),
    (None, "GET", "/admin/v2/status", 401), ("tenant_admin", "GET", "/admin/v2/history", 403),
    ("admin", "DELETE", GOLD, 404), ("admin", "PUT", "/admin/v2/policies/exempt/x", 422),
])  # fmt: skip
def test_refusal_is_recorded_with_its_reason(
    in_memory: ServedApp, role: str | None, method: str, path: str, status: int
) -> None:
    answer = in_memory.client(role).request(method, path, json=["x"] if method == "PUT" else None)
    assert answer.status_code == status
    (line,) = in_memory.audited
    assert (line["outcome"], line["status"], line["detail"]) == ("refused", status, answer.json()["detail"])
    assert line["action"] == f"{method} {path}"
    assert line.get("caller") == (None if role is None else f"token {token_id(in_memory, role)}")


def test_reading_is_not_recorded(in_memory: ServedApp) -> None:
    client = in_memory.client()
    for path in ("/admin/v2/status", "/admin/v2/history", "/healthz", "/", GOLD):
        client.get(path)
    assert not in_memory.audit or not in_memory.audit.path.exists()


def test_fault_of_the_server_is_recorded_as_a_failed_change(serve: Callable[..., ServedApp]) -> None:
    class Broken(MemoryStore):
        def commit(self, *_: Any, **__: Any) -> int:
            raise RuntimeError("a fault")

    served = serve(Broken())
    with pytest.raises(RuntimeError):
        served.client().put(GOLD, json={})
    (line,) = served.audited
    assert (line["outcome"], line["status"]) == ("failed", 500)


def test_change_by_the_page_has_the_pages_door_in_the_log_and_the_history(in_memory: ServedApp) -> None:
    in_memory.client().put(GOLD, json={}, headers={"Sec-Fetch-Site": "same-origin"})
    in_memory.client().delete(GOLD, headers={"Sec-Fetch-Site": "cross-site"})
    assert [line["door"] for line in in_memory.audited] == ["page", "api"]
    assert [entry["door"] for entry in in_memory.client().get("/admin/v2/history").json()] == ["api", "page"]


@pytest.mark.slow
def test_stranger_cannot_fill_the_log_and_what_is_left_out_is_counted(in_memory: ServedApp) -> None:
    stranger = in_memory.client(None)
    for _ in range(REFUSALS_AT_ONCE + 25):
        assert stranger.get("/admin/v2/status").status_code == 401
    recorded = len(in_memory.audited)
    assert REFUSALS_AT_ONCE <= recorded <= REFUSALS_AT_ONCE + 1
    viewer = in_memory.client("viewer")
    assert viewer.put(GOLD, json={}).status_code == 403
    assert in_memory.audited[-1]["who"] == "viewer-of-test"
    assert "omitted" not in in_memory.audited[-1]
    in_memory.monotonic[0] += 2000
    stranger.get("/admin/v2/status")
    assert in_memory.audited[-1]["omitted"] == REFUSALS_AT_ONCE + 25 - recorded


@pytest.mark.slow
def test_every_change_that_is_made_is_recorded_however_many_there_are(in_memory: ServedApp) -> None:
    admin = in_memory.client()
    for number in range(2 * REFUSALS_AT_ONCE):
        assert admin.put(GOLD, json={"publishRateInMsgs": number}).status_code == 200
    assert [line["revision"] for line in in_memory.audited] == list(range(1, 2 * REFUSALS_AT_ONCE + 1))


def test_line_is_on_the_disk_before_the_answer(in_memory: ServedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync = os.fsync

    def synced(descriptor: int) -> None:
        sync(descriptor)
        done.append(f"{len(in_memory.audited)} on the disk")

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            done.append(message["type"])
            await send(message)

        await in_memory.app(scope, receive, sent)

    in_memory.client().put(GOLD, json={})  # makes the file, and notes the use of the token
    monkeypatch.setattr(os, "fsync", synced)
    headers = {"Authorization": f"Bearer {in_memory.tokens['admin']}"}
    assert TestClient(watched, headers=headers).delete(GOLD).status_code == 200
    assert done == ["2 on the disk", "http.response.start", "http.response.body"]


@pytest.mark.parametrize("harm", ["mode", "folder", "link"])
def test_change_that_could_not_be_recorded_is_not_made(
    in_memory: ServedApp, harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert in_memory.audit is not None
    path = in_memory.audit.path
    if harm == "mode":
        path.touch()
        path.chmod(0o644)
    elif harm == "folder":
        path.mkdir()
    else:
        (tmp_path / "victim").touch(0o600)
        path.symlink_to(tmp_path / "victim")
    with caplog.at_level(logging.ERROR):
        answer = in_memory.client().put(GOLD, json={})
    assert answer.status_code == 503
    assert "nothing was changed" in answer.json()["detail"]
    assert str(path) not in answer.text
    assert str(path) in caplog.text
    assert in_memory.store.revision() == 0
    assert in_memory.client().get("/admin/v2/status").status_code == 200


def test_line_that_a_full_disk_refused_is_written_later_and_no_change_is_made_before(
    in_memory: ServedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = os.write
    client = in_memory.client()
    client.put(GOLD, json={})
    room = [10]

    def filling(descriptor: int, content: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = written(descriptor, content[: room[0]])
        room[0] -= taken
        return taken

    with monkeypatch.context() as patched:
        patched.setattr("spark_throttle.admin.audit.os.write", filling)
        # It is made already when its line is refused; its author is told that it is.
        assert client.put(GOLD, json={"publishRateInMsgs": 1}).status_code == 200
        assert client.put(GOLD, json={"publishRateInMsgs": 2}).status_code == 503
        assert in_memory.store.revision() == 2
    assert client.put(GOLD, json={"publishRateInMsgs": 3}).status_code == 200
    assert in_memory.audit is not None
    texts = in_memory.audit.path.read_text().splitlines()
    whole = [json.loads(text) for text in texts if text.endswith("}")]
    assert [line.get("revision") for line in whole if line["outcome"] == "done"] == [1, 2, 3]
    assert [line["status"] for line in whole if line["outcome"] == "failed"] == [503]
    assert len(texts) == len(whole) + 1  # the part that the disk took


# ---------------------------------------------------------------------------------------------------- the file


def test_log_is_its_owners_alone_and_only_grows(log: AuditLog) -> None:
    log.append(event())
    first = log.path.read_bytes()
    log.append(event(outcome="refused"))
    assert log.path.read_bytes().startswith(first)
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_log_that_was_moved_away_is_begun_anew(log: AuditLog, tmp_path: Path) -> None:
    log.append(event())
    log.path.rename(tmp_path / "audit.1")
    log.append(event())
    assert len(lines_of(log)) == 1


def test_writers_at_once_lose_no_line_and_mix_none(tmp_path: Path) -> None:
    def write(name: str) -> None:
        log = AuditLog(tmp_path / "audit", clock_ms=lambda: 0)
        for number in range(50):
            log.append(event(who=name, detail="x" * 900, revision=number))

    threads = [threading.Thread(target=write, args=(f"w{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = lines_of(AuditLog(tmp_path / "audit", clock_ms=lambda: 0))
    assert len(found) == 400
    for number in range(8):
        assert [line["revision"] for line in found if line["who"] == f"w{number}"] == list(range(50))


def test_line_is_one_line_of_ascii_whatever_its_fields_hold(log: AuditLog) -> None:
    log.append(event(who="a\nb\x1b[2J\u202eé", detail='"}\n{"format": 1'))
    (line,) = lines_of(log)
    assert log.path.read_bytes().isascii()
    assert line["who"] == "a\nb\x1b[2J\u202eé"


# ------------------------------------------------------------------------------------------------ the command line


def test_commands_on_policies_are_recorded_with_the_systems_user_whatever_who_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, store, audit = CliRunner(), f"file:{tmp_path / 'p.yaml'}", tmp_path / "audit"
    monkeypatch.setenv("SPARK_THROTTLE_AUDIT", str(audit))
    monkeypatch.setenv("USER", "root-of-all")
    monkeypatch.setenv("LOGNAME", "root-of-all")
    FileStore.create(tmp_path / "p.yaml")
    imitated = "ann (token 0123456789ab)"
    made = runner.invoke(app, ["tenant", "create", "acme", "--store", store, "--who", imitated, "-m", "a reason"])
    assert made.exit_code == 0, made.output
    refused = runner.invoke(app, ["tenant", "update", "acme", "publish.weight=0", "--store", store])
    assert refused.exit_code == 3
    done, not_done = lines_of(AuditLog(audit, clock_ms=lambda: 0))
    assert {**done, "at": ""} == {
        "format": 1, "at": "", "door": "cli", "caller": ME, "who": imitated, "source": socket.gethostname(),
        "action": "tenant create", "outcome": "done", "why": "a reason", "revision": 1,
        "changes": [{"path": "tenants.acme", "before": None, "after": {}}],
    }  # fmt: skip
    assert (not_done["action"], not_done["outcome"]) == ("tenant update", "refused")
    assert "weight" in not_done["detail"]
    (entry,) = json.loads(runner.invoke(app, ["policy", "history", "--store", store, "-o", "json"]).output)
    assert (entry["who"], entry["door"], entry["caller"]) == (imitated, "cli", ME)
    (first,) = FileStore(tmp_path / "p.yaml").history()
    assert (first.door, first.caller) == ("cli", ME)
    table = runner.invoke(app, ["policy", "history", "--store", store]).output
    assert "cli" in table
    assert ME.partition(" ")[0] in table


def test_author_that_is_not_named_is_the_systems_user_and_not_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "somebody-else")
    FileStore.create(tmp_path / "p.yaml")
    CliRunner().invoke(app, ["tenant", "create", "acme", "--store", f"file:{tmp_path / 'p.yaml'}"])
    (entry,) = FileStore(tmp_path / "p.yaml").history()
    assert entry.who == ME.partition(" (")[0]


def test_command_whose_change_could_not_be_recorded_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_THROTTLE_AUDIT", str(tmp_path))
    store = FileStore.create(tmp_path / "p.yaml")
    for command in (["tenant", "create", "acme", "--store", f"file:{tmp_path / 'p.yaml'}"],
                    ["token", "create", "ann", "--tokens", str(tmp_path / "tokens.json")]):  # fmt: skip
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 8
        assert "the audit log cannot be written" in result.output
    assert store.revision() == 0
    assert not (tmp_path / "tokens.json").exists()


def test_changes_of_tokens_are_recorded_beside_the_token_file_without_the_tokens(tmp_path: Path) -> None:
    runner, file = CliRunner(), tmp_path / "tokens.json"

    def run(*words: str) -> Any:
        return runner.invoke(app, ["token", *words, "--tokens", str(file), "-o", "json"])

    first = json.loads(run("create", "bob", "--role", "tenant_admin", "--tenant", "acme").output)["token"]
    old = first.split("_")[1]
    second = json.loads(run("rotate", old).output)["token"]
    new = second.split("_")[1]
    assert run("revoke", new).exit_code == 0
    assert run("revoke", new).exit_code == 4
    assert run("create", "ann", "--role", "boss").exit_code == 3
    log = AuditLog(tmp_path / "tokens.json.audit", clock_ms=lambda: 0)
    assert [(line["action"], line["outcome"], line["caller"]) for line in lines_of(log)] == [
        (f"token create bob tenant_admin acme {old}", "done", ME), (f"token rotate {old} {new}", "done", ME),
        (f"token revoke {new}", "done", ME), (f"token revoke {new}", "refused", ME),
        ("token create ann boss", "refused", ME),
    ]  # fmt: skip
    for text in (first, second):
        assert text.split("_", 2)[2] not in log.path.read_text()


# ----------------------------------------------------------------------------------------------------- secrets


@pytest.mark.parametrize("secret", ["throttle_0123456789ab_" + "S" * 43, "throttle_0123456789ab_SSSS", JWT, JWT[:40]])
@pytest.mark.parametrize("form", ["{}", "/a/{}/b", "x {} y", "?token={}", "Bearer {}"])
def test_token_is_hidden_wherever_it_stands_and_however_it_is_encoded(secret: str, form: str) -> None:
    encoded = "".join(f"%{byte:02x}" for byte in secret.encode())
    hidden = secret[-4:]
    for text in (secret, encoded, encoded.replace("%", "%25"), secret.replace("_", "%5F").replace(".", "%2E")):
        shown = without_secrets(form.format(text))
        assert hidden not in shown
        assert text not in shown
        assert "[hidden]" in shown


@pytest.mark.parametrize("rounds", [4, 5, 7, 8, 20, 3000])
def test_token_is_hidden_however_often_it_is_encoded(rounds: int) -> None:
    text = "throttle_0123456789ab_SSSS"
    once = "".join(f"%{byte:02x}" for byte in text.encode())
    for encoded in (once.replace("%", "%" + "25" * rounds), "%" + "25" * rounds + "74" + text[1:]):
        shown = without_secrets(f"/a/{encoded}/b")
        assert "SSSS" not in shown
        assert "hidden" in shown or rounds == 3000  # the cut leaves nothing of the token to hide
        assert "535353" not in shown.replace("25", "").replace("%", "")


@pytest.mark.parametrize("header", ['{ "alg": "RS256", "kid": "first" }', '{\n "alg": "RS256"}', ' {"alg":"RS256"}'])
def test_signed_token_is_hidden_however_its_header_is_written(header: str) -> None:
    first = base64.urlsafe_b64encode(header.encode()).rstrip(b"=").decode()
    text = f"{first}.eyJpc3MiOiJodHRwczovL2xvZ2luIn0.{'c2ln' * 20}"
    assert without_secrets(f"/a/{text}") == "/a/[hidden]"
    assert without_secrets("acme-production.orders-service.partition-0001") == (
        "acme-production.orders-service.partition-0001"
    )


def test_secret_in_a_path_a_reason_or_a_body_is_not_in_the_audit_log(in_memory: ServedApp) -> None:
    text = in_memory.tokens["viewer"]
    secret, client = text.split("_", 2)[2], in_memory.client()
    client.put(f"/admin/v2/policies/namespaces/{text}", json={})
    client.put(f"{GOLD}?why={text}", json={})
    client.put(f"{GOLD}?token={text}&{text}=1", json={})
    client.put(GOLD, json={text: 1})
    client.delete(f"/admin/v2/policies/tenants/{JWT}")
    assert in_memory.audit is not None
    written = in_memory.audit.path.read_text()
    assert len(written.splitlines()) == 5
    assert secret not in written
    assert JWT.rpartition(".")[2] not in written


@pytest.mark.slow
def test_token_in_a_url_is_neither_in_the_access_log_nor_in_the_audit_log(tmp_path: Path) -> None:
    tokens = TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    text = tokens.create("ann", "admin")
    secret = text.split("_", 2)[2]
    encoded = "".join(f"%{byte:02X}" for byte in text.encode())
    with server_process(tmp_path, tokens) as server:
        for target in (
            f"/admin/v2/status?token={text}",
            f"/admin/v2/{text}",
            f"/admin/v2/{encoded}?{encoded}",
            f"/?{JWT}",
        ):
            assert asked(server.port, request(None, f"GET {target} HTTP/1.1")).status in {401, 422}
        assert asked(server.port, request(None, f"{text} /x HTTP/1.1")).status == 401
        said = server.log.read_text() + (tmp_path / "tokens.json.audit").read_text()
    assert '"GET /admin/v2/status?[hidden] HTTP/1.1" 401' in said
    assert secret not in said
    assert encoded not in said
    assert JWT.rpartition(".")[2] not in said


def test_log_that_cannot_be_written_stops_the_server_before_it_begins(tmp_path: Path) -> None:
    from spark_throttle.command_line.serve import serve

    tokens = TokenFile(tmp_path / "tokens.json", clock_ms=lambda: 0)
    tokens.create("ann", "admin")
    with pytest.raises(FileUnusableError, match="audit"):
        serve(store="memory:", tokens=str(tokens.path), audit=str(tmp_path))


def test_refused_dry_run_is_told_from_a_refused_change(in_memory: ServedApp) -> None:
    viewer = in_memory.client("viewer")
    for query, begins in (("?dry_run=true", "dry run: "), ("?dry_run=false", ""), ("", "")):
        assert viewer.put(f"{GOLD}{query}", json={}).status_code == 403
        assert in_memory.audited[-1]["outcome"] == "refused"
        assert in_memory.audited[-1]["detail"].startswith("dry run: ") == bool(begins)
