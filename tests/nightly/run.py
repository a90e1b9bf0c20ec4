"""A seed a night (`make nightly`): what looks longer than a test may, one part after the other, within some minutes.

The seed is the date unless it is given: lives are drawn from it, models are explored in its order, kills and kinds of
kills are drawn from it, and properties look at other examples. A part that fails, or that does not end, is told and
ends no other. What a part writes is in ``build/nightly/SEED/PART.log``; its last line is JSON, and so is the last line
of this program: the seed, the commit, and of each part the seconds, its counts, the violations and the command that
repeats it. The exit status is 1 if anything was violated or a part failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.crash.account import FAULTS
from tests.models.exploring import CASES
from tests.sessions import ROOT

Answer = Mapping[str, Any]

KINDS: Final = (
    ("files", "delta", "messages"), ("files", "delta-partitioned", "messages"), ("files", "function", "messages"),
    ("files", "paced", "messages"), ("files", "file-sink", "messages"), ("files", "parquet", "messages"),
    ("references", "delta", "messages"), ("references-delta", "delta", "messages"), ("files", "delta", "time"),
    ("files", "delta", "contracts"),
)  # fmt: skip
"""Source, sink and quotas of the jobs that may be killed."""

_MINUTES_OF_A_KIND: Final = 6
_SECONDS_OF_A_KILL: Final = 30
_GRACE_MINUTES: Final = 15
"""So long a part may go on when its time is over: a job that was killed has to drain, and a test to end."""

_STATES_OF_A_MINUTE: Final = 180_000
_FEWEST_MINUTES: Final = 1
_JSON_IS_MISSING: Final = "its last line is no JSON"


@dataclass(frozen=True)
class Part:
    """A program that looks for violations."""

    name: str
    arguments: tuple[str, ...]
    """Those of Python."""

    minutes: float
    violations: Callable[[Answer], int]
    """How many violations its last line tells of."""

    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def repeat(self) -> str:
        """The command that runs it again."""
        given = [f"{name}={value}" for name, value in self.environment.items()]
        return shlex.join([*given, "python", *self.arguments])


def parts_of(seed: int, minutes: float) -> list[Part]:
    """Return the parts that share the minutes; the rest of them is for `thorough_part`."""
    dice = random.Random(seed)
    kinds = dice.sample(KINDS, max(1, min(4, int(0.3 * minutes / _MINUTES_OF_A_KIND))))
    lives, models, search = (f"{share * minutes:.2f}" for share in (0.35, 0.1, 0.2))
    states = str(max(10_000, int(_STATES_OF_A_MINUTE * float(models) / len(CASES))))
    return [
        Part(
            "lives",
            ("-m", "tests.life.run", "--all", "--minutes", lives, "--seed", str(seed)),
            float(lives),
            lambda answer: int(answer["violations"]),
        ),
        Part(
            "models",
            ("-m", "tests.models.run", "--most-states", states, "--minutes", models, "--seed", str(seed)),
            float(models),
            lambda answer: int(answer["broken"] is not None),
        ),
        *(kills(*kind, dice.randrange(1, 1_000_000), 0.3 * minutes / len(kinds)) for kind in kinds),
        of_tests("search", seed, float(search), "not jvm and not kafka", {"HYPOTHESIS_PROFILE": "search"}),
    ]


def kills(source: str, sink: str, quotas: str, seed: int, minutes: float) -> Part:
    """Return the kills of a kind of job that some minutes are enough for."""
    count = max(1, int(60 * minutes / _SECONDS_OF_A_KILL))
    arguments = ("--kills", count, "--seed", seed, "--source", source, "--sink", sink, "--quotas", quotas)
    return Part(
        f"kills {source} {sink} {quotas}",
        ("-m", "tests.crash.run", *map(str, arguments)),
        minutes,
        lambda answer: sum(answer[name] or 0 for name in FAULTS),
    )


def of_tests(name: str, seed: int, minutes: float, marked: str, environment: Mapping[str, str]) -> Part:
    """Return tests in an order of their own, with other examples, as many as some minutes are enough for."""
    seeds = (f"--randomly-seed={seed % 2**32}", f"--hypothesis-seed={seed}")
    chosen = ("-m", "pytest", "-q", "-p", "tests.nightly.some_minutes", f"--minutes={minutes:.2f}", "-m", marked)
    return Part(name, (*chosen, *seeds), minutes, lambda answer: int(answer["failed"]), environment)


def thorough_part(seed: int, minutes: float) -> Part | None:
    """Return the thorough tests, if there is time left for them."""
    if minutes < _FEWEST_MINUTES:
        return None
    return of_tests("thorough", seed, minutes, "thorough and not kafka and not wide", {})


def run(part: Part, folder: Path, grace_minutes: float = _GRACE_MINUTES) -> dict[str, Any]:
    """Run a part to its end, or kill it, and return what is to be told of it."""
    log = folder / f"{part.name.replace(' ', '-')}.log"
    begun = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | dict(part.environment)
    with log.open("w") as out:
        # A session of its own: a part that is killed leaves no process behind.
        process = subprocess.Popen(
            [sys.executable, *part.arguments], cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(60 * (part.minutes + grace_minutes))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            _end(process)
    told: dict[str, Any] = {"seconds": round(time.monotonic() - begun, 1), "repeat": part.repeat}
    return told | _found(part, status, log)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _found(part: Part, status: int | None, log: Path) -> dict[str, Any]:
    """Return a part's counts and violations, or why there are none."""
    if status is None:
        return {"violations": 0, "failed": f"it did not end; see {log}"}
    try:
        answer = json.loads((log.read_text(errors="replace").splitlines() or [""])[-1])
        violations = part.violations(answer)
    except (ValueError, KeyError, TypeError):
        return {"violations": 0, "failed": f"{_JSON_IS_MISSING}, and its exit status is {status}; see {log}"}
    told: dict[str, Any] = {"violations": violations, "counts": answer}
    if violations:
        told["log"] = str(log)
    elif status:
        told["failed"] = f"its exit status is {status}, and no violation is told; see {log}"
    return told


def night(
    seed: int, minutes: float, parts: Sequence[Part], folder: Path, last: Callable[[int, float], Part | None]
) -> dict[str, Any]:
    """Run all parts, and one more in what is left of the time."""
    folder.mkdir(parents=True, exist_ok=True)
    begun, commit, told = time.monotonic(), _commit(), dict[str, dict[str, Any]]()
    for part in [*parts, None]:
        each = part or last(seed, minutes - (time.monotonic() - begun) / 60)
        if each is not None:
            _say(f"{each.name}: {each.repeat}")
            told[each.name] = run(each, folder)
            _say(f"{each.name}: {json.dumps(told[each.name])}")
    return {"seed": seed, "commit": commit, "minutes": minutes, "parts": told}


def is_quiet(answer: Answer) -> bool:
    """Return whether nothing was violated, and no part failed."""
    return not any(part["violations"] or "failed" in part for part in answer["parts"].values())


def _commit() -> str | None:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Look through a night."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120, help="shared by all parts")
    parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
    options = parser.parse_args(arguments)
    _say(f"seed {options.seed}: repeat with SEED={options.seed}")
    folder = ROOT / "build" / "nightly" / str(options.seed)
    answer = night(options.seed, options.minutes, parts_of(options.seed, options.minutes), folder, thorough_part)
    _say(json.dumps(answer))
    return int(not is_quiet(answer))


if __name__ == "__main__":
    sys.exit(main())
