"""Streams that are closed, full, or read by nobody: the command does its work, and its exit code is true."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_throttle.admin.cli import streams
from spark_throttle.admin.refusals import Exit
from spark_throttle.command_line.app import app
from spark_throttle.store.policy_location import open_store
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.effort import crossed, thorough_after

CREATE = "tenant create blue publish.messages_per_second=5"


@pytest.fixture
def store(tmp_path: Path) -> str:
    return made(f"file:{tmp_path / 'policies.yaml'}")


def made(location: str) -> str:
    """Make a store with one tenant."""
    service = PolicyService(open_store(location, is_created=True), clock_ms=lambda: 0)
    service.put("tenant", "acme", {"publish": {"messages_per_second": 9}}, Author("ann"))
    return location


def run(command: str, streams: str, store: str) -> tuple[int, str, str]:
    line = (
        f"{shlex.quote(sys.executable)} -m spark_throttle.command_line {command} --store {shlex.quote(store)} {streams}"
    )
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr
    return ended.returncode, ended.stdout, ended.stderr


def tenants_of(store: str) -> list[str]:
    return [entry.name for entry in open_store(store).page("tenant")]


@pytest.mark.slow
@pytest.mark.parametrize("streams", thorough_after(1, [">&- 2>&-", ">&-", "2>&-", "2>/dev/full"]))
def test_change_with_a_stream_that_nobody_reads_is_done(store: str, streams: str) -> None:
    assert run(CREATE, streams, store)[0] == Exit.DONE
    assert tenants_of(store) == ["acme", "blue"]
    assert run("tenant get nobody", streams, store)[0] == Exit.NOT_FOUND


@pytest.mark.slow
def test_change_of_a_delta_store_without_streams_is_done(tmp_path: Path) -> None:
    store = made(f"delta:{tmp_path / 'store'}")
    assert run(CREATE, ">&- 2>&-", store)[0] == Exit.DONE
    assert tenants_of(store) == ["acme", "blue"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["", "-o json"])
def test_change_whose_answer_cannot_be_written_says_that_it_was_made(store: str, form: str) -> None:
    code, _, said = run(f"{CREATE} {form}", ">/dev/full", store)
    assert code == Exit.UNWRITTEN
    message = json.loads(said)["message"] if form else said
    assert "the answer could not be written (No space left on device)" in message
    assert "what it changes is changed" in message
    assert len(message.splitlines()) == 1
    assert tenants_of(store) == ["acme", "blue"]


@pytest.mark.slow
def test_refused_command_keeps_its_code_where_the_answer_would_be_lost(store: str) -> None:
    assert run("tenant get nobody", ">/dev/full", store)[0] == Exit.NOT_FOUND
    assert run("tenant get nobody", ">/dev/full 2>/dev/full", store)[0] == Exit.NOT_FOUND


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json"])
def test_answer_that_nobody_reads_to_its_end_is_no_failure(store: str, form: str) -> None:
    code, _, said = run(f"{CREATE} -o {form}", "| true; exit ${PIPESTATUS[0]}", store)
    assert (code, said) == (Exit.DONE, "")


@pytest.mark.slow
def test_version_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    line = f"{shlex.quote(sys.executable)} -m spark_throttle.command_line --version > /dev/full"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, "Traceback" in ended.stderr) == (Exit.UNWRITTEN, False)


# ----------------------------------------------------------------------------------------------------------- stdin

READ_STDIN = ["policy validate -", "policy apply -", "policy apply - --dry-run", "import pegasus -", "import kafka -"]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "stdin"), crossed(READ_STDIN, ["<&-", "0>/dev/null"], of=3))
def test_stdin_that_cannot_be_read_is_told_in_words(tmp_path: Path, command: str, stdin: str) -> None:
    more = "" if "apply" not in command else f" --store file:{tmp_path / 'policies.yaml'}"
    line = f"{shlex.quote(sys.executable)} -m spark_throttle.command_line {command}{more} {stdin}"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (Exit.INVALID, ""), ended.stderr
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "stdin" in ended.stderr
    assert "name a file" in ended.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", READ_STDIN)
def test_stdin_is_read_to_its_bound_and_no_further(store: str, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setattr(streams, "MOST_STDIN_BYTES", 100)
    more = ["--store", store] if "apply" in command else []
    empty = "{}" if "import" not in command else '{"temp": {}}'
    result = CliRunner().invoke(app, [*command.split(), *more], input=empty.ljust(101))
    assert result.exit_code == Exit.INVALID
    assert "more than 100 bytes came on stdin, which is the most that is read; name a file instead" in result.stderr
    assert (
        "more than 100 bytes" not in CliRunner().invoke(app, [*command.split(), *more], input=empty.ljust(100)).stderr
    )
