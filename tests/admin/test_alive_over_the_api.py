"""What the API says of a job that is dead, idle, hung, ended, or gives no sign."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_throttle.admin.watch.job_watch import JobWatch
from spark_throttle.control.clock import Clock
from spark_throttle.files.storage import Directory
from tests.admin.conftest import ServedApp
from tests.admin.job_world import OFFERED, World
from tests.admin.made_up_job import MadeUpJob


@pytest.fixture
def world(serve: Callable[..., ServedApp], tmp_path: Path) -> World:
    world = World(serve, tmp_path)
    world.run(4)
    return world


def test_dead_job_is_shown_as_silent(world: World) -> None:
    job = world.status()
    assert (job["state"], job["listening"], job["sign_age_ms"], job["batch_age_ms"]) == ("reporting", True, 0, 0)
    world.wait(60)
    job = world.status()
    assert (job["state"], job["listening"]) == ("silent", False)
    assert (job["sign_age_ms"], job["batch_age_ms"]) == (60_000, 60_000)
    assert job["life"] == "no sign of life for 60 s (the bound is 30 s)"
    assert job["problem"] is None


@pytest.mark.slow
def test_explanation_and_status_agree_on_whether_the_job_lives(world: World) -> None:
    """The watch measures the age of a sign; another reading would date it by the clocks of this machine, years off."""
    path = "/admin/v2/explain/acme%2Fa?job=ingest"
    (backlog,) = world.client.get(path).json()["notes"]
    assert "does not shrink" in backlog
    world.wait(60)
    (note,) = (each for each in world.client.get(path).json()["notes"] if each != backlog)
    assert note == f"no job is listening: {world.status()['life']}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("batches/notes~", "of an editor"),
        ("alive.json", '{"format": 1, "run": "r", "number": 1, "interval_ms": Infinity}'),
        ("alive.json", "[" * 200_000),
        ("followed.json", '{"format": 1, "revision": "r", "store_revision": "two", "problem": null}'),
    ],
)
def test_odd_file_does_not_end_the_watch_of_a_job(world: World, tmp_path: Path, name: str, content: str) -> None:
    place = tmp_path / "control" / name
    before = place.read_bytes() if place.exists() else None
    place.write_text(content)
    world.wait(1)
    assert world.change(30)["state"] in ("unknown", "next_batch")
    place.unlink() if before is None else place.write_bytes(before)
    world.run(2)
    job = world.status()
    assert (job["state"], job["problem"], job["batch"]) == ("reporting", None, 5)


@pytest.mark.slow
def test_change_of_a_dead_job_is_answered_with_no_job_is_listening(world: World) -> None:
    world.wait(300)
    acting = world.change(30)
    assert (acting["state"], acting["store_revision"]) == ("not_listening", 2)
    assert acting["detail"] == (
        "no job is listening: no sign of life for 300 s (the bound is 30 s); the change acts when the job goes on"
    )
    world.run()
    assert world.status()["store_revision"] == 3
    assert world.change(31)["state"] == "next_batch"


@pytest.mark.slow
def test_idle_job_that_runs_no_batch_is_listening(world: World) -> None:
    for _ in range(60):
        world.job.now_ms += 10_000
        world.job.pulse.note_call()
        world.job.pulse.beat()
        world.watch.look()
    job = world.status()
    assert (job["state"], job["sign_age_ms"], job["batch_age_ms"]) == ("reporting", 0, 600_000)
    assert world.change(30)["state"] == "next_batch"


@pytest.mark.slow
def test_job_that_hangs_is_not_listening_though_it_gives_signs(world: World) -> None:
    for _ in range(61):
        world.job.now_ms += 10_000
        world.job.pulse.beat()
        world.watch.look()
    job = world.status()
    assert (job["state"], job["listening"], job["asked_age_ms"]) == ("hanging", False, 610_000)
    assert world.change(30)["state"] == "not_listening"
    text = world.client.get("/metrics").text  # the alert of a job that hangs asks for both
    assert 'spark_throttle_job_reporting{spark_job="ingest"} 0.0' in text
    assert 'spark_throttle_job_up{spark_job="ingest"} 1.0' in text


def test_job_that_ended_is_not_listening(world: World) -> None:
    world.job.pulse.beat(has_ended=True)
    world.wait(1)
    assert world.status()["state"] == "ended"
    assert "the query ended 1.0 s ago" in world.change(30)["detail"]


@pytest.mark.slow
def test_job_without_a_sign_is_shown_with_the_age_of_its_last_batch(
    serve: Callable[..., ServedApp], tmp_path: Path, world: World
) -> None:
    """A change is answered as before."""
    (tmp_path / "control" / "alive.json").unlink()
    world.job.now_ms += 60_000
    world.watch = JobWatch({"ingest": str(tmp_path / "control")}, clock=world.job.clock)
    world.watch.look()
    world.client = serve(world.store, watch=world.watch).client()
    job = world.status()
    assert (job["state"], job["listening"], job["sign_age_ms"], job["batch_age_ms"]) == ("unknown", True, None, 60_000)
    assert world.change(30)["state"] == "next_batch"
    text = world.client.get("/metrics").text
    assert 'spark_throttle_job_up{spark_job="ingest"} 1.0' in text
    assert "spark_throttle_job_reporting{" not in text


def test_damaged_sign_of_life_hides_no_number_of_the_job(world: World, tmp_path: Path) -> None:
    (tmp_path / "control" / "alive.json").write_bytes(b"nonsense")
    world.job.batch(OFFERED)
    world.watch.look()
    job = world.status()
    assert (job["state"], job["batch"], job["problem"]) == ("unknown", 4, None)
    assert "damaged" in job["life"]


def test_wall_clock_that_is_set_makes_no_live_job_silent_and_no_dead_one_alive(world: World) -> None:
    wall_ms = [world.job.now_ms]
    world.watch = JobWatch(
        {"ingest": str(world.job.control_path)},
        clock=Clock(lambda: wall_ms[0], lambda: world.job.now_ms, world.job.clock.boot),
    )
    for step_ms in (-3_600_000, 7_200_000):
        wall_ms[0] += step_ms
        world.run()
        (view,) = world.watch.views()
        assert (view.liveness().state, view.batch_age_ms()) == ("reporting", 0)
    world.wait(31)
    wall_ms[0] -= 7_200_000
    (view,) = world.watch.views()
    assert (view.liveness().state, view.batch_age_ms()) == ("silent", 31_000)


@pytest.mark.slow
def test_directory_that_hangs_makes_no_other_job_silent(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MadeUpJob(tmp_path / "hung", world.store)
    looked, may_go_on = threading.Event(), threading.Event()

    def names(directory: Directory, folder: str, of: Callable[..., list[str]] = Directory.names) -> list[str]:
        if "hung" in directory.location:
            may_go_on.wait()
        elif folder == "batches":
            looked.set()
        return of(directory, folder)

    monkeypatch.setattr(Directory, "names", names)
    monkeypatch.setattr("spark_throttle.admin.watch.job_watch._STOP_SECONDS", 0.01)
    watch = JobWatch({"hung": str(tmp_path / "hung"), "ingest": str(tmp_path / "control")}, clock=world.job.clock)
    watch.start()
    assert looked.wait(60)
    watch.stop()
    may_go_on.set()
    monkeypatch.undo()
    watch.stop()  # or the look that hung reads on while the next test counts


def test_watch_reads_a_sign_of_life_once_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(directory: Directory, name: str, of: Callable[..., bytes | None] = Directory.read) -> bytes | None:
        if directory.location == str(world.job.control_path):
            read.append(name)
        return of(directory, name)

    monkeypatch.setattr(Directory, "read", counted)
    for _ in range(40):
        world.job.now_ms += 250
        world.watch.look()
    assert (read.count("alive.json"), read.count("run")) == (10, 10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "field", [("interval_ms", -5), ("interval_ms", 10**400), ("asked_ms", -(10**15)), ("wall_ms", 10**30),
              ("steady_ms", -(10**400)), ("has_ended", "false"), ("number", "seven")],
)  # fmt: skip
def test_absurd_sign_of_one_job_is_its_own_damage_and_the_others_are_listed(
    serve: Callable[..., ServedApp], world: World, tmp_path: Path, field: tuple[str, object]
) -> None:
    bad = MadeUpJob(tmp_path / "bad", world.store, now_ms=world.job.now_ms)
    bad.batch(OFFERED)
    bad.pulse.beat()
    alive = tmp_path / "bad" / "alive.json"
    written = json.loads(alive.read_text())
    del written["checksum"]  # what is judged is the field
    alive.write_text(json.dumps({**written, field[0]: field[1]}))
    jobs = {"bad": str(tmp_path / "bad"), "ingest": str(tmp_path / "control")}
    watch = JobWatch(jobs, clock=world.job.clock)
    watch.look()
    client = serve(world.store, watch=watch).client()
    found = {job["job"]: job for job in client.get("/admin/v2/status").json()["jobs"]}
    assert (found["bad"]["state"], found["ingest"]["state"]) == ("unknown", "reporting")
    assert field[0] in found["bad"]["life"]
    assert client.get("/metrics").status_code == 200
    made = client.put("/admin/v2/resourcegroup/gold", json={"publishRateInMsgs": 30}).json()
    assert {each["job"] for each in made["acting"]} == {"bad", "ingest"}


def test_job_that_never_began_does_not_listen(serve: Callable[..., ServedApp], world: World, tmp_path: Path) -> None:
    MadeUpJob(tmp_path / "bound", world.store)  # its directory is bound, and no batch was ever asked for
    jobs = {name: str(tmp_path / name) for name in ("nowhere", "bound", "control")}
    watch = JobWatch(jobs, clock=world.job.clock)
    watch.look()
    client = serve(world.store, watch=watch).client()
    made = client.put("/admin/v2/resourcegroup/gold", json={"publishRateInMsgs": 30}).json()
    assert {each["job"]: each["state"] for each in made["acting"]} == {
        "nowhere": "not_listening", "bound": "not_listening", "control": "next_batch",
    }  # fmt: skip
    assert made["acting"][1]["detail"] == "no job is listening: no run has begun; the change acts when one begins"
    found = {job["job"]: job for job in client.get("/admin/v2/status").json()["jobs"]}
    assert [found[name]["listening"] for name in jobs] == [False, False, True]
    text = client.get("/metrics").text
    assert 'spark_throttle_job_up{spark_job="bound"} 0.0' in text


def test_directory_that_cannot_be_read_does_not_say_that_no_run_has_begun(
    world: World, tmp_path: Path, serve: Callable[..., ServedApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    watch = JobWatch({"ingest": str(tmp_path / "control")}, clock=world.job.clock)
    with monkeypatch.context() as patched:
        patched.setattr(Directory, "read", hidden)
        watch.look()
    client = serve(world.store, watch=watch).client()
    (job,) = client.get("/admin/v2/status").json()["jobs"]
    assert (job["state"], job["listening"]) == ("unknown", True)
    assert "no run has begun" not in job["life"]
