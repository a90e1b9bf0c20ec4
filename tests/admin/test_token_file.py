"""The token file of a running server: its mode, links, damage and full disks; expiry, rotation and last use."""

from __future__ import annotations

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spark_throttle.admin.tokens import DAY_MS, TokenFile
from spark_throttle.command_line.app import app
from spark_throttle.errors import ConfigurationError, DamagedError, FileUnusableError, NotFoundError
from tests.admin.conftest import START_MS, ServedApp

STATUS = "/admin/v2/status"


@pytest.fixture
def clock() -> list[int]:
    return [START_MS]


@pytest.fixture
def tokens(tmp_path: Path, clock: list[int]) -> TokenFile:
    return TokenFile(tmp_path / "tokens.json", clock_ms=lambda: clock[0])


def full_disk(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("harm", ["half", "mode", "pipe", "field", "version", "true"])
def test_file_that_cannot_be_believed_is_one_503_and_one_line_in_the_log(
    in_memory: ServedApp, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, text = in_memory.token_file.path, in_memory.token_file.path.read_text()
    if harm == "half":
        path.write_text(text[: len(text) // 2])
    elif harm == "mode":
        path.chmod(0o644)
    elif harm == "pipe":
        path.unlink()
        os.mkfifo(path, 0o600)
    elif harm == "field":
        path.write_text(text.replace('"admin"', "7"))
    else:
        path.write_text(text.replace('"format": 1', '"format": true' if harm == "true" else '"format": 99'))
    with caplog.at_level(logging.WARNING):
        for role in ("admin", "viewer", None, "admin"):
            answer = in_memory.client(role).get(STATUS)
            if role is None:
                assert answer.status_code == 401
                continue
            assert answer.status_code == 503
            assert answer.headers["Content-Type"] == "application/problem+json"
            assert answer.headers["Retry-After"] == "1"
            assert "Content-Security-Policy" in answer.headers
            assert "in its log" in answer.json()["detail"]
            assert str(path) not in answer.text
    (record,) = [record for record in caplog.records if record.name == "spark_throttle.admin.tokens"]
    assert str(path) in record.getMessage()
    assert record.exc_info is None
    path.unlink()
    path.touch(0o600)
    path.write_text(text)
    assert in_memory.client().get(STATUS).status_code == 200


def test_server_with_a_damaged_file_answers_what_needs_no_token(in_memory: ServedApp) -> None:
    in_memory.token_file.path.write_text("{")
    for path in ("/", "/healthz", "/openapi.json"):
        assert in_memory.client(None).get(path).status_code == 200


def test_mode_that_lets_others_read_is_refused_by_every_command_with_the_remedy(tmp_path: Path) -> None:
    runner, file = CliRunner(), tmp_path / "tokens.json"
    assert runner.invoke(app, ["token", "create", "ann", "--tokens", str(file)]).exit_code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.with_name("tokens.json.lock").stat().st_mode & 0o777 == 0o600
    file.chmod(0o640)
    before = file.read_bytes()
    for command in (["list"], ["create", "bob"], ["revoke", "x"], ["rotate", "x"]):
        result = runner.invoke(app, ["token", *command, "--tokens", str(file)])
        assert result.exit_code == 8
        assert f"chmod 600 {file}" in result.output
    assert file.read_bytes() == before


def test_link_in_the_place_of_the_file_or_its_lock_is_not_followed_for_writing(
    tokens: TokenFile, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for name in ("tokens.json", "tokens.json.lock"):
        link = tmp_path / name
        link.unlink(missing_ok=True)
        link.symlink_to(victim)
        with pytest.raises(FileUnusableError, match="is a link"):
            tokens.create("ann", "viewer")
        assert victim.read_text() == "kept"
        link.unlink()
    # A name that can be foretold is not written to.
    (tmp_path / "tokens.json.tmp").symlink_to(victim)
    tokens.create("ann", "viewer")
    assert victim.read_text() == "kept"


def test_full_disk_is_a_clear_error_and_no_token_is_lost(tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tokens.create("ann", "admin")
    monkeypatch.setattr(os, "fsync", full_disk)
    (token,) = tokens.list()
    for change in (
        lambda: tokens.create("bob", "viewer"), lambda: tokens.revoke(token.id), lambda: tokens.rotate(token.id)
    ):  # fmt: skip
        with pytest.raises(FileUnusableError, match=r"nothing was changed.*No space left on device"):
            change()
    assert tokens.list() == [token]
    assert tokens.judged(text)[0] is not None


def test_token_of_a_command_expires_in_a_year_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    runner, file = CliRunner(), str(tmp_path / "tokens.json")
    for options in ([], ["--days", "30"], ["--never-expires"]):
        assert runner.invoke(app, ["token", "create", "ann", *options, "--tokens", file]).exit_code == 0
    found = TokenFile(file, clock_ms=lambda: 0).list()
    assert sorted((each.lasts_ms is None, each.lasts_ms or 0) for each in found) == [
        (False, 30 * DAY_MS), (False, 365 * DAY_MS), (True, 0),
    ]  # fmt: skip


def test_rotated_token_is_replaced_at_once_by_one_of_the_same_owner_and_lifetime(
    tokens: TokenFile, clock: list[int]
) -> None:
    old = tokens.create("bob", "tenant_admin", tenant="acme", days=30)
    before = tokens.judged(old)[0]
    assert before is not None
    clock[0] += 29 * DAY_MS
    new = tokens.rotate(before.token_id)
    after = tokens.judged(new)[0]
    assert after is not None
    assert (after.name, after.role, after.tenant) == ("bob", "tenant_admin", "acme")
    assert after.token_id != before.token_id
    assert tokens.judged(old)[0] is None
    (token,) = tokens.list()
    assert (token.created_ms, token.expires_ms) == (clock[0], clock[0] + 30 * DAY_MS)


def test_rotated_token_is_accepted_beside_the_new_one_for_the_minutes_of_the_overlap(
    tokens: TokenFile, clock: list[int]
) -> None:
    old = tokens.create("ann", "admin")
    (token,) = tokens.list()
    new = tokens.rotate(token.id, overlap_minutes=10, days=7)
    clock[0] += 10 * 60_000 - 1
    assert tokens.judged(old)[0] is not None
    clock[0] += 1
    assert tokens.judged(old)[0] is None
    assert tokens.judged(new)[0] is not None
    clock[0] = START_MS + 7 * DAY_MS
    assert tokens.judged(new)[0] is None


def test_overlap_does_not_lengthen_the_life_of_a_token(tokens: TokenFile, clock: list[int]) -> None:
    old = tokens.create("ann", "admin", days=1)
    clock[0] += DAY_MS - 1
    tokens.rotate(tokens.list()[0].id, overlap_minutes=60)
    clock[0] += 1
    assert tokens.judged(old)[0] is None


@pytest.mark.parametrize("options", [{"days": 0}, {"overlap_minutes": -1}, {"overlap_minutes": 100_000}])
def test_rotation_that_makes_no_sense_changes_nothing(tokens: TokenFile, options: dict[str, int]) -> None:
    text = tokens.create("ann", "admin")
    with pytest.raises(ConfigurationError):
        tokens.rotate(tokens.list()[0].id, **options)
    with pytest.raises(NotFoundError):
        tokens.rotate("abc")
    assert tokens.judged(text)[0] is not None


def test_time_that_no_calendar_has_is_damage(tokens: TokenFile) -> None:
    tokens.create("ann", "admin")
    kept = json.loads(tokens.path.read_text())
    kept["tokens"][0]["expires_ms"] = 10**30
    tokens.path.write_text(json.dumps(kept))
    with pytest.raises(DamagedError, match="expires_ms"):
        tokens.list()


def test_token_that_was_replaced_is_not_rotated_again_with_its_shortened_life(
    tokens: TokenFile, clock: list[int]
) -> None:
    """Neither the life that the overlap leaves, nor a second successor, is what the owner means."""
    old = tokens.create("ann", "admin", days=365)
    first = tokens.list()[0].id
    new = tokens.rotate(first, overlap_minutes=10)
    second = new.split("_")[1]
    with pytest.raises(
        ConfigurationError, match=rf"the token {first} was replaced by {second} already; rotate {second}"
    ):
        tokens.rotate(first)
    assert tokens.judged(old)[0] is not None
    clock[0] += 1000
    newest = tokens.rotate(second)
    (ending, kept) = tokens.list()
    assert (ending.id, ending.replaced_by) == (first, second)
    assert kept.expires_ms == clock[0] + 365 * DAY_MS
    assert tokens.judged(newest)[0] is not None


def test_expired_token_is_not_rotated(tokens: TokenFile, clock: list[int]) -> None:
    tokens.create("ann", "admin", days=1)
    (token,) = tokens.list()
    clock[0] += DAY_MS
    with pytest.raises(ConfigurationError, match=f"the token {token.id} has expired; create a new one"):
        tokens.rotate(token.id)
    assert tokens.list() == [token]


@pytest.mark.parametrize("change", ["create", "revoke", "rotate"])
def test_token_that_was_replaced_leaves_the_file_with_the_first_change_after_the_overlap(
    tokens: TokenFile, clock: list[int], change: str
) -> None:
    def written() -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(tokens.path.read_text())
        return fields

    tokens.create("ann", "admin")
    tokens.create("bob", "viewer")
    ann, bob = (token.id for token in sorted(tokens.list(), key=lambda token: token.name))
    tokens.rotate(ann, overlap_minutes=10)
    clock[0] += 10 * 60_000 - 1
    tokens.create("cora", "viewer")
    assert ann in [each["id"] for each in written()["tokens"]]
    clock[0] += 1
    if change == "create":
        tokens.create("dora", "viewer")
    elif change == "revoke":
        tokens.revoke(bob)
    else:
        tokens.rotate(bob)
    assert ann not in [each["id"] for each in written()["tokens"]]


def test_token_that_expired_and_was_not_replaced_stays_in_the_list(tokens: TokenFile, clock: list[int]) -> None:
    tokens.create("ann", "admin", days=1)
    clock[0] += 2 * DAY_MS
    tokens.create("bob", "viewer")
    assert [token.name for token in tokens.list()] == ["ann", "bob"]
