"""Idle jobs give signs of life, hung ones say so, no decision reads them; a value that no job writes is damage."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from spark_throttle.checkpoint.manifest import bind, read_manifest
from spark_throttle.control.clock import Clock
from spark_throttle.control.notes import (
    NAME,
    SIGN_INTERVAL_MS,
    NextPolicies,
    Pulse,
    SignOfLife,
    read_next_policies,
    read_sign_of_life,
    write_next_policies,
    write_sign_of_life,
)
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.run_fence import RunFence
from spark_throttle.errors import DamagedError, UnknownVersionError
from spark_throttle.files.storage import Directory
from tests.control.queries import Query

WALL_MS = 1_760_000_000_000


class CountedDirectory(Directory):
    """A directory that counts what an object store would bill, and that fails or hangs if it is told to."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def read(self, name: str) -> bytes | None:
        self.calls.append(f"read {name}")
        return super().read(name)

    def write(self, name: str, content: bytes) -> None:
        self.calls.append(f"write {name}")
        self.may_go_on.wait()
        if self.error is not None:
            raise self.error
        super().write(name, content)


@dataclass
class Run:
    """One run of a job, and its clocks."""

    path: Path
    wall_ms: int = WALL_MS
    steady_ms: int = 86_400_000
    directory: CountedDirectory = field(init=False)

    def __post_init__(self) -> None:
        self.directory = CountedDirectory(str(self.path))
        self.clock = Clock(lambda: self.wall_ms, lambda: self.steady_ms, "this boot")
        self.fence = RunFence(self.directory)
        self.pulse = Pulse(self.directory, self.fence, self.clock)

    def pass_ms(self, passed_ms: int) -> None:
        self.wall_ms += passed_ms
        self.steady_ms += passed_ms

    def sign(self) -> SignOfLife:
        found = read_sign_of_life(self.directory)
        assert found is not None
        return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "control")
    run.fence.begin()
    return run


def test_job_that_is_idle_gives_signs_of_life(run: Run) -> None:
    """It is asked for batches, and plans none."""
    for number in range(3):
        run.pulse.note_call()
        assert run.pulse.beat()
        assert run.sign() == SignOfLife(
            run.fence.run, number, SIGN_INTERVAL_MS, run.wall_ms, run.steady_ms, "this boot", 0,
            SIGN_INTERVAL_MS if number else 0,
        )  # fmt: skip
        run.pass_ms(SIGN_INTERVAL_MS)


def test_sign_of_a_query_that_hangs_says_how_long_spark_has_asked_for_nothing(run: Run) -> None:
    for _ in range(2):
        run.pulse.note_call()
        run.pass_ms(1_500)
    run.pass_ms(600_000)
    run.pulse.beat()
    assert (run.sign().asked_ms, run.sign().longest_pause_ms) == (601_500, 1_500)


def test_sign_costs_one_read_and_one_write(run: Run) -> None:
    run.directory.calls.clear()
    run.pulse.beat()
    assert run.directory.calls == ["read run", f"write {NAME}"]


def test_run_that_was_taken_over_gives_no_sign_any_more(run: Run) -> None:
    run.pulse.beat()
    other = Run(run.path)
    other.fence.begin()
    other.pulse.beat()
    assert not run.pulse.beat()
    assert not run.pulse.beat(has_ended=True)
    assert (other.sign().run, other.sign().has_ended) == (other.fence.run, False)


def test_sign_does_not_bring_a_deleted_directory_back(run: Run) -> None:
    (run.path / "run").unlink()
    run.path.rmdir()
    assert run.pulse.beat()
    assert not run.path.exists()


def test_sign_that_cannot_be_written_is_one_warning_and_no_failure(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.directory.error = OSError("no space left")
    with caplog.at_level(logging.WARNING):
        assert run.pulse.beat()
        assert run.pulse.beat()
    assert caplog.messages == [
        "no sign of life could be given: OSError: no space left; the job goes on, and seems silent"
    ]
    run.directory.error = None
    assert run.pulse.beat()
    assert run.sign().number == 0


def test_query_that_ends_says_so(run: Run) -> None:
    run.pulse.start()
    run.pulse.stop()
    assert run.sign().has_ended


def test_end_of_a_query_does_not_wait_for_a_directory_that_hangs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_throttle.control.notes._LAST_SIGN_SECONDS", 0.01)
    run.directory.may_go_on.clear()
    run.pulse.start()
    run.pulse.stop()
    assert read_sign_of_life(run.directory) is None
    run.directory.may_go_on.set()


@pytest.mark.parametrize(
    ("content", "error"),
    [(b"{", DamagedError), (b'{"format": 1, "run": "r"}', DamagedError), (b'{"format": 99}', UnknownVersionError)],
)
def test_damaged_sign_is_a_clear_error(run: Run, content: bytes, error: type[Exception]) -> None:
    run.directory.write(NAME, content)
    with pytest.raises(error, match="sign of life"):
        read_sign_of_life(run.directory)


def test_machine_may_have_run_just_as_long_as_spark_has_asked_for_nothing() -> None:
    assert replace(SIGN, steady_ms=4_000, asked_ms=4_000).asked_ms == 4_000
    with pytest.raises(ValueError, match="longest_pause_ms is 4000, and the machine has run for 3999 ms"):
        replace(SIGN, steady_ms=3_999)


@pytest.mark.slow
@pytest.mark.parametrize("left", [None, b"damaged", b"another run's"])
def test_sign_of_life_is_no_input_of_a_decision(tmp_path: Path, left: bytes | None) -> None:
    """The epochs are the same bytes whether signs are given, and whatever stands in the file."""
    plain, watched = Query(tmp_path / "plain"), Query(tmp_path / "watched")
    fence = RunFence(watched.directory)
    clock = Clock(lambda: watched.now_ms, lambda: watched.now_ms)
    pulse = Pulse(watched.directory, fence, clock)
    watched.plane = ControlPlane(watched.directory, watched.policies, "publish", clock, fence=fence, pulse=pulse)
    for _ in range(4):
        for query in (plain, watched):
            query.trigger()
            query.busy_batch(5, waiting=1, due_ms=query.now_ms)
        pulse.beat()
        if left is not None:
            watched.directory.write(NAME, left)
    contents = [
        [query.directory.read(f"epochs/{name}") for name in query.directory.names("epochs")]
        for query in (plain, watched)
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) > 1


SIGN = SignOfLife("5eed", 7, 10_000, 1_760_000_000_000, 5_000_000, "boot", 20, 4_000)
HUGE = 10**30


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return Directory(str(tmp_path))


def _changed(folder: Path, name: str, field: str, value: object) -> None:
    fields = json.loads((folder / name).read_text())
    del fields["checksum"]  # as who edits a note does
    (folder / name).write_text(json.dumps({**fields, field: value}))


ABSURD: list[tuple[str, Any]] = [
    ("run", 5), ("run", ""), ("run", "x" * 5_000), ("number", -1), ("number", HUGE), ("number", "7"), ("number", 7.5),
    ("number", True), ("number", None), ("interval_ms", 0), ("interval_ms", -5), ("interval_ms", 10**18),
    ("interval_ms", HUGE), ("interval_ms", 10**400), ("wall_ms", -1), ("wall_ms", HUGE), ("wall_ms", 10**15),
    ("steady_ms", -1), ("steady_ms", HUGE), ("boot", None), ("boot", "x" * 5_000), ("asked_ms", -(10**15)),
    ("asked_ms", HUGE), ("asked_ms", 5_000_001), ("longest_pause_ms", -1), ("longest_pause_ms", 10**15),
    ("cores", 0), ("cores", "2"), ("cores", HUGE), ("has_ended", "false"), ("has_ended", 0), ("has_ended", None),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), ABSURD)
def test_absurd_field_of_a_sign_of_life_is_damage_that_names_it(
    directory: Directory, tmp_path: Path, field: str, value: object
) -> None:
    write_sign_of_life(directory, SIGN)
    assert read_sign_of_life(directory) == SIGN
    _changed(tmp_path, NAME, field, value)
    with pytest.raises(DamagedError, match=rf"the sign of life .*{field}"):
        read_sign_of_life(directory)


@pytest.mark.parametrize(
    ("field", "value"),
    [("store_revision", "7"), ("store_revision", -1), ("store_revision", HUGE), ("store_revision", True),
     ("store_revision", 7.0), ("revision", 5), ("revision", "x" * 5_000), ("problem", 5), ("problem", ["x"])],
)  # fmt: skip
def test_absurd_field_of_the_followed_policies_is_damage_that_names_it(
    directory: Directory, tmp_path: Path, field: str, value: object
) -> None:
    followed = NextPolicies("0123456789abcdef", 7, None)
    write_next_policies(directory, followed)
    assert read_next_policies(directory) == followed
    _changed(tmp_path, "followed.json", field, value)
    with pytest.raises(DamagedError, match=field):
        read_next_policies(directory)


@pytest.mark.parametrize(
    ("field", "value"),
    [("direction", "both"), ("direction", 1),
     ("query", 7), ("query", "")],
)  # fmt: skip
def test_absurd_field_of_the_manifest_is_damage_that_names_it(
    directory: Directory, tmp_path: Path, field: str, value: object
) -> None:
    bind(directory, direction="publish")
    _changed(tmp_path, "manifest.json", field, value)
    with pytest.raises(DamagedError, match=field):
        read_manifest(directory)
