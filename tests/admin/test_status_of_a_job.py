"""`status`: whether the job lives, rates beside rates, lines where there is no terminal, and an exit code for each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from spark_throttle.admin.refusals import Exit
from spark_throttle.command_line.app import app
from spark_throttle.control.clock import Clock
from spark_throttle.control.notes import read_next_policies, write_next_policies
from spark_throttle.status.explain import explain_job
from spark_throttle.store.memory_store import MemoryStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author
from tests.admin.made_up_job import MadeUpJob

RUNNER = CliRunner()


class PauseOfAUser:
    """In place of the pause of --watch: it lets a few looks pass, and then interrupts as a user does."""

    def __init__(self, looks: int, between: Callable[[], object] = lambda: None) -> None:
        self.left = looks
        self.between = between

    def wait(self, _: float) -> bool:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        self.between()
        return False


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeUpJob:
    store = MemoryStore()
    service = PolicyService(store, clock_ms=lambda: 0)
    gold = {"publish": {"messages_per_second": 20, "burst_seconds": 10}}
    service.put("resource_group", "gold", gold, Author("ann"))
    service.put("tenant", "acme", {"resource_group": "gold"}, Author("ann"))
    job = MadeUpJob(tmp_path / "control", store)
    monkeypatch.setattr(Clock, "system", lambda: job.clock)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("SPARK_THROTTLE_CONTROL", str(job.control_path))
    return job


def run(*arguments: str, code: Exit = Exit.DONE) -> Result:
    result = RUNNER.invoke(app, ["status", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def answer(*arguments: str, code: Exit = Exit.DONE) -> Any:
    return json.loads(run(*arguments, "--output", "json", code=code).stdout)


def test_status_of_a_directory_that_is_not_there_exits_with_4(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        result = run("--control", str(path), code=Exit.NOT_FOUND)
        assert "there is no control directory" in result.output
        assert "<checkpoint>/throttle" in result.output
        run("--control", str(path), "--watch", code=Exit.NOT_FOUND)
    assert list(tmp_path.iterdir()) == []


def test_status_of_a_dead_job_says_so_in_words_and_by_its_exit_code(job: MadeUpJob) -> None:
    job.batch({"acme/a": 30})
    job.pulse.beat()
    assert "it gave a sign of life 0.0 s ago, its last batch began 0 ms ago" in run().stdout
    job.now_ms += 60_000
    result = run(code=Exit.SILENT)
    assert "no job is listening: no sign of life for 60 s (the bound is 30 s)" in result.stdout
    assert result.stdout.count("no sign of life") == 1
    found = answer(code=Exit.SILENT)
    assert (found["state"], found["sign_age_ms"], found["batch_age_ms"]) == ("silent", 60_000, 60_000)
    assert answer("--silent-after", "61")["state"] == "reporting"
    run("--silent-after", "0", code=Exit.INVALID)


def test_status_of_a_job_in_its_first_batch_is_that_it_lives(job: MadeUpJob) -> None:
    job.plane.next_epoch(job.epoch)
    job.pulse.beat()
    assert "no batch has reported yet; it gave a sign of life 0.0 s ago" in run().stdout


def test_status_of_an_idle_job_is_that_it_lives(job: MadeUpJob) -> None:
    job.batch({"acme/a": 30})
    job.now_ms += 3_600_000
    job.pulse.note_call()
    job.pulse.beat()
    found = answer()
    assert (found["state"], found["sign_age_ms"], found["batch_age_ms"]) == ("reporting", 0, 3_600_000)


def test_status_of_a_job_that_ended_or_hangs_has_the_same_exit_code(job: MadeUpJob) -> None:
    job.batch({"acme/a": 30})
    job.now_ms += 700_000
    job.pulse.beat()
    assert answer(code=Exit.SILENT)["state"] == "hanging"
    assert answer("--hanging-after", "701")["state"] == "reporting"
    job.pulse.beat(has_ended=True)
    assert answer(code=Exit.SILENT)["state"] == "ended"
    said = run(code=Exit.SILENT).stdout
    assert "the query ended 0.0 s ago" in said
    assert "no job is listening" not in said, "it ended as it should"


def test_status_of_a_job_of_an_older_release_is_read(job: MadeUpJob) -> None:
    job.batch({"acme/a": 30})
    found = answer()
    assert (found["state"], found["sign_age_ms"], found["batch"]) == ("unknown", None, 0)


@pytest.mark.slow
def test_status_shows_rates_beside_quotas_at_any_trigger(job: MadeUpJob) -> None:
    """At a trigger of 10 s, 300 messages a batch are 30 a second, of which a quota of 20 a second lets 20 pass."""
    for _ in range(8):
        job.batch({"acme/a": 300}, seconds=10)
    job.pulse.beat()
    gold = next(each for each in answer()["scopes"] if each["scope"] == "gold")
    assert (gold["messages_per_second"], gold["offered_messages_per_second"]) == (20, 30)
    assert gold["admitted_messages_per_second"] == 20
    assert (gold["offered_messages"], gold["offered_bytes_per_second"]) == (300, 30_000)
    text = run("--level", "resource_group").stdout
    assert re.search(r"quota/s +offered/s +admitted/s +rejected/s +waiting", text)
    assert re.search(r"gold +20 +30 / 29.3 KiB +20 / 19.5 KiB +0 ", text)


def test_status_of_the_first_batch_says_that_it_counts_by_batch(job: MadeUpJob) -> None:
    job.batch({"acme/a": 300}, seconds=10)
    text = run("--level", "job").stdout
    assert re.search(r"offered at first +admitted at first", text)
    job_scope = answer("--level", "job")["scopes"][0]
    assert (job_scope["offered_messages"], job_scope["offered_messages_per_second"]) == (300, None)


def test_watch_without_a_terminal_writes_lines(job: MadeUpJob, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        job.batch({"acme/a": 30})
    job.pulse.beat()

    def dies() -> None:
        job.now_ms += 31_000

    pauses = SimpleNamespace(Event=lambda: PauseOfAUser(2, dies))
    monkeypatch.setattr("spark_throttle.admin.cli.watch.threading", pauses)
    lines = run("--watch", "--level", "job").stdout.splitlines()
    assert [line.partition(" ")[2].partition(" ")[2] for line in lines] == [
        "reporting: it gave a sign of life 0.0 s ago, its last batch began 0 ms ago, 1.0 s after the one before",
        "batch 1: job: quota/s no limit, offered/s 30 / 29.3 KiB, admitted/s 30 / 29.3 KiB, rejected/s 0, waiting 0",
        (
            "silent: no job is listening: no sign of life for 31 s (the bound is 30 s), its last batch began 31.0 s "
            "ago, 1.0 s after the one before"
        ),
        "batch 1: job: quota/s no limit, offered/s 30 / 29.3 KiB, admitted/s 30 / 29.3 KiB, rejected/s 0, waiting 0",
    ]
    assert all(re.match(r"2026-11-\d\d \d\d:\d\d:\d\d ", line) for line in lines)


def test_explain_promises_no_next_batch_of_a_dead_job(job: MadeUpJob) -> None:
    job.batch({"acme/a": 30})
    job.pulse.beat()
    followed = read_next_policies(job.directory)
    assert followed is not None
    write_next_policies(job.directory, replace(followed, revision="0123456789abcdef"))
    control = str(job.control_path)
    promise = "revision 0123456789abcdef takes effect with the next batch"
    assert explain_job(control, "acme/a").notes == (promise,)
    job.now_ms += 60_000
    (note,) = explain_job(control, "acme/a").notes
    assert note == "no job is listening: no sign of life for 60 s (the bound is 30 s)"


@pytest.mark.slow
def test_status_shows_processing_time_beside_its_quota_where_there_is_one(job: MadeUpJob) -> None:
    job.batch({"acme/a": 4})
    assert "core time" not in run().stdout
    assert answer()["time"] is None
    quota = {"request_percentage": 50, "burst_seconds": 1}
    PolicyService(job.store, clock_ms=lambda: 0).put("tenant", "acme", {"publish": quota}, Author("ann"))
    job.batch({"acme/a": 4})
    job.batch({"acme/a": 4}, used_ms={"acme/a": 1_200}, unattributed_ms=5)
    job.batch({"acme/a": 4}, seconds=0.4)
    table = run("--level", "tenant").stdout
    assert "core time: exempt 0 %, of no namespace 1.25 %" in table
    assert re.search(r"tenant +acme +50 % of a core .* 300 % +1\.0 s", table), table
    (acme,) = [scope for scope in answer()["scopes"] if (scope["level"], scope["scope"]) == ("tenant", "acme")]
    assert (acme["time"]["used_ns"], acme["time"]["throttle_ms"]) == (1_200_000_000, 1_000)
    assert answer()["time"]["unattributed_ns"] == 5_000_000


def test_status_of_a_level_that_the_policies_do_not_name_says_why_it_is_empty(job: MadeUpJob) -> None:
    service = PolicyService(job.store, clock_ms=lambda: 0)
    said = "tenants and groups are shown if the policies name them"
    job.batch({"acme/a": 4})
    assert said not in run("--level", "tenant").stdout
    service.delete("tenant", "acme", Author("ann"))
    job.batch({"acme/a": 4})
    assert said in run("--level", "tenant").stdout
    assert said not in run().stdout
