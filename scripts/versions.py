"""Runs the tests on several versions of Spark, each in an environment of its own, and writes the table of versions.

The table is in docs/install.md. An environment is kept in build/versions/, 1.2 GB each; `make versions ARGS="4.3.0"`
runs one version alone, and leaves the other lines of the table. Where there is no Delta for a Spark, tests that need it
are skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = ROOT / "build" / "versions"
PAGE: Final = ROOT / "docs" / "install.md"
DELTA: Final = {"4.1": "delta-4.1", "4.2": "delta"}
"""The jars of Delta (a configuration of scripts/jars/ivy.xml) for a minor version of Spark; there are no others."""

ICEBERG: Final = {"4.1": "iceberg-4.1"}
"""The same of Iceberg."""

VERSIONS: Final = ("4.1.4", "4.2.0", "4.2.1", "4.3.0")
TESTS: Final = ("tests/integration", "tests/spark", "tests/load")
WITHOUT: Final = "not kafka and not wide and not thorough"
_OWN: Final = re.compile(r"(pyspark|py4j|pandas-stubs)==")
_HEAD: Final = "| Spark | Delta | passed | skipped | failed |\n|---|---|---|---|---|\n"


@dataclass(frozen=True)
class Outcome:
    """What became of the tests on one version."""

    passed: int
    skipped: int
    failed: int

    @classmethod
    def read(cls, report: Path) -> Outcome:
        """Return the counts of pytest's report."""
        (suite,) = ET.parse(report).getroot().iter("testsuite")  # noqa: S314 - pytest's own file
        total, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
        failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
        return cls(total - skipped - failed, skipped, failed)


def environment(version: str) -> Path:
    """Return the Python of a version's environment; make it if it is missing."""
    place = PLACE / version
    python = place / "bin" / "python"
    stamp = place / ".stamp"
    if stamp.exists():
        return python
    venv.create(place, with_pip=True)
    lock = (ROOT / "requirements.lock").read_text().splitlines(keepends=True)
    constraints = place / "constraints.txt"
    constraints.write_text("".join(line for line in lock if not _OWN.match(line)))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    chosen = ["--constraint", str(constraints), "--editable", f"{ROOT}[tests]", f"pyspark=={version}"]
    subprocess.run([*pip, *chosen], check=True)
    stamp.touch()
    return python


def tried(version: str, more: list[str]) -> Outcome:
    """Run the tests on a version."""
    delta, iceberg = (of.get(version.rpartition(".")[0], "") for of in (DELTA, ICEBERG))
    report = PLACE / f"{version}.xml"
    report.unlink(missing_ok=True)
    environ = {
        **os.environ,
        "TESTS_DELTA": delta,
        "TESTS_ICEBERG": iceberg,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        str(environment(version)),
        "-m",
        "pytest",
        "-q",
        "--randomly-seed=1",
        "-m",
        WITHOUT,
        "--numprocesses",
        "2",
    ]
    command += ["--dist", "loadfile", f"--junitxml={report}", *TESTS, *more]
    subprocess.run(command, cwd=ROOT, env=environ, check=False)
    return Outcome.read(report)


def written(version: str, outcome: Outcome) -> None:
    """Write a version's line into the table."""
    minor = version.rpartition(".")[0]
    delta = ivy_version(DELTA[minor]) if minor in DELTA else "none"
    line = f"| {version} | {delta} | {outcome.passed:,} | {outcome.skipped:,} | {outcome.failed:,} |"
    page = PAGE.read_text()
    before, table, after = page.partition(_HEAD)
    if not table:
        msg = f"{PAGE} has no table that begins with {_HEAD!r}"
        raise ValueError(msg)
    lines = after.splitlines(keepends=True)
    count = next(number for number, each in enumerate(lines) if not each.startswith("|"))
    rows = {row.split("|")[1].strip(): row for row in lines[:count]} | {version: f"{line}\n"}
    kept = "".join(rows[each] for each in sorted(rows, key=lambda text: [*map(int, text.split("."))]))
    PAGE.write_text(f"{before}{table}{kept}{''.join(lines[count:])}")


def ivy_version(use: str) -> str:
    """Return the version of Delta among the jars of a use."""
    tree = ET.parse(ROOT / "scripts" / "jars" / "ivy.xml")  # noqa: S314 - our own file
    (found,) = (
        each for each in tree.iter("dependency") if each.attrib["conf"] == use and "delta" in each.attrib["name"]
    )
    return found.attrib["rev"]


def main() -> int:
    """Try the versions, and return 1 if a test failed on one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS, help=f"by default {' '.join(VERSIONS)}")
    asked, more = parser.parse_known_args()
    failed = 0
    for version in asked.versions:
        outcome = tried(version, more)
        written(version, outcome)
        failed += outcome.failed
        print(f"Spark {version}: {outcome}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
