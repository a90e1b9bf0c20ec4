"""What a night tells: of each part its counts or why there are none, and one line of JSON at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.crash.job import SINKS, SOURCES
from tests.models import run as models
from tests.models.exploring import CASES
from tests.nightly import run as nightly
from tests.nightly.run import KINDS, Part, is_quiet, night, parts_of, thorough_part
from tests.sessions import ROOT


def fake(name: str, program: str, minutes: float = 1) -> Part:
    return Part(name, ("-c", program), minutes, lambda answer: int(answer["bad"]))


GOOD = fake("good", "print('words'); print('{\"bad\": 0, \"seen\": 7}')")
BAD = fake("bad", "import sys; print('{\"bad\": 2}'); sys.exit(1)")
BROKEN = fake("broken", "raise SystemExit('no jars')")
ENDLESS = fake("endless", "import time; time.sleep(600)", 0.0)


def told(path: Path, *parts: Part, last: Part | None = None) -> dict[str, Any]:
    return night(5, 1.0, parts, path, lambda *_: last)


def test_counts_of_each_part_are_told_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    answer = told(tmp_path, GOOD, last=fake("rest", "print('{\"bad\": 0}')"))
    assert answer["seed"] == 5
    assert len(answer["commit"]) == 40
    assert list(answer["parts"]) == ["good", "rest"]
    part = answer["parts"]["good"]
    assert (part["counts"], part["violations"]) == ({"bad": 0, "seen": 7}, 0)
    assert part["repeat"].startswith("python -c ")
    assert part["seconds"] >= 0
    assert is_quiet(answer)


@pytest.mark.parametrize("part", [BAD, BROKEN])
def test_night_goes_on_after_a_part_that_finds_something_or_fails_and_is_not_quiet(tmp_path: Path, part: Part) -> None:
    answer = told(tmp_path, part, GOOD)
    assert answer["parts"]["good"]["violations"] == 0
    assert not is_quiet(answer)
    found = answer["parts"][part.name]
    if part is BAD:
        assert found["violations"] == 2
        assert "failed" not in found
    else:
        assert found["failed"].startswith("its last line is no JSON, and its exit status is 1; see ")
        assert "no jars" in (tmp_path / "broken.log").read_text()


def test_part_that_says_nothing_and_ends_badly_has_failed(tmp_path: Path) -> None:
    part = fake("odd", "import sys; print('{\"bad\": 0}'); sys.exit(3)")
    assert "its exit status is 3, and no violation is told" in told(tmp_path, part)["parts"]["odd"]["failed"]


def test_part_that_does_not_end_is_killed_and_told(tmp_path: Path) -> None:
    found = nightly.run(ENDLESS, tmp_path, grace_minutes=0.001)
    assert found["failed"].startswith("it did not end")
    assert found["seconds"] < 60


@pytest.mark.parametrize(("parts", "status"), [([GOOD], 0), ([GOOD, BAD], 1), ([BROKEN, GOOD], 1)])
def test_last_line_is_json_and_the_exit_status_says_whether_the_night_was_quiet(
    parts: list[Part], status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(nightly, "parts_of", lambda *_: parts)
    monkeypatch.setattr(nightly, "thorough_part", lambda *_: None)
    monkeypatch.setattr(nightly, "ROOT", tmp_path)
    assert nightly.main(["--seed", "20310506", "--minutes", "0"]) == status
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "seed 20310506: repeat with SEED=20310506"
    assert json.loads(last)["parts"].keys() == {part.name for part in parts}


def test_a_seed_draws_the_same_parts_and_another_one_other_kills() -> None:
    assert [part.repeat for part in parts_of(7, 120)] == [part.repeat for part in parts_of(7, 120)]
    kinds = {part.name for seed in range(30) for part in parts_of(seed, 120) if part.name.startswith("kills")}
    assert len(kinds) == len(KINDS)
    assert {(source, sink) for source, sink, _ in KINDS} <= {(source, sink) for source in SOURCES for sink in SINKS}


@pytest.mark.parametrize("minutes", [4, 30, 120, 600])
def test_parts_share_the_minutes_and_leave_some_for_the_thorough_tests(minutes: int) -> None:
    assert 0.9 * minutes < sum(part.minutes for part in parts_of(1, minutes)) <= 0.96 * minutes
    assert thorough_part(1, 0.5) is None
    assert thorough_part(1, 5) is not None


def test_models_begin_no_case_when_their_minutes_are_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert models.main(["--minutes", "-1", "--seed", "3"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer == {"cases": {}, "left": len(CASES), "broken": None}


FAILS = "def test_that_fails():\n    assert False\n"
PASSES = "def test_that_passes():\n    pass\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "minutes", "counts", "status"),
    [(PASSES, 1, (1, 0, 0), 0), (PASSES + FAILS, 1, (1, 1, 0), 1), (PASSES + FAILS, -1, (0, 0, 2), 0)],
)
def test_tests_end_when_their_minutes_are_over_and_are_counted(
    tmp_path: Path, text: str, minutes: int, counts: tuple[int, int, int], status: int
) -> None:
    (tmp_path / "test_made_up.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.nightly.some_minutes", f"--minutes={minutes}"]
    command += ["-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["passed"], answer["failed"], answer["left"]) == counts, done.stdout
    assert done.returncode == status, done.stdout
