"""Takes mends back, one at a time, and lets the machine look for the fault: ``python -m tests.life.taken_back``.

A machine that finds nothing may be blind. So each mend that it is to guard is undone in a copy of the package, and
drawn lives are played there until a law is broken. If they break none in the time, the written lives are asked, each of
which is a test. The last line is JSON: by mend, after how many steps a drawn life found it, or the test that did, or
`null`. The exit status is 0 if all were found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.life.mends import MENDS, Mend

ROOT: Final = Path(__file__).parents[2]
_FOUND: Final = re.compile(r"violation of (\S+?):?\s(?s:.*)found after (\d+) steps, (\d+) lives, ([\d.]+) CPU s")
_FAILED: Final = re.compile(r"^FAILED (\S+)", re.MULTILINE)


def without(mend: Mend, folder: Path) -> None:
    """Copy the package and the machine into a folder, and take a mend back there.

    Raises
    ------
    ValueError
        If what it changed does not stand there once.
    """
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("spark_throttle", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "*.bin", "*.png")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for file, with_it, without_it in mend.changes:
        path = folder / "spark_throttle" / file
        text = path.read_text(encoding="utf-8")
        if text.count(with_it) != 1:
            raise ValueError(f"{mend.name}: {with_it!r} stands {text.count(with_it)} times in {path}, not once")
        path.write_text(text.replace(with_it, without_it), encoding="utf-8")


def search(mend: Mend, seed: int, minutes: float) -> dict[str, object] | None:
    """Let the machine look for what goes wrong without a mend."""
    with tempfile.TemporaryDirectory() as folder:
        without(mend, Path(folder))
        return by_drawn_lives(mend, Path(folder), seed, minutes) or by_written_lives(Path(folder))


def by_drawn_lives(mend: Mend, folder: Path, seed: int, minutes: float) -> dict[str, object] | None:
    """Draw lives, and return what the first violation is and after how many steps it came."""
    done = _python(folder, "tests.life.run", "--seed", str(seed), "--minutes", str(minutes), "--by-cpu")
    found = _FOUND.search(done.stdout)
    if found is None and done.returncode:
        raise RuntimeError(f"{mend.name}: the machine failed: {done.stderr[-2000:]}")
    if found is None:
        return None
    return {"law": found[1], "steps": int(found[2]), "lives": int(found[3]), "cpu_seconds": float(found[4])}


def by_written_lives(folder: Path) -> dict[str, object] | None:
    """Play the written lives, and return the test that fails."""
    tests = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests/life").glob("test_*.py"))]
    written = [test for test in tests if not test.endswith(("test_life.py", "test_taken_back.py"))]
    done = _python(folder, "pytest", "-x", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", *written)
    found = _FAILED.search(done.stdout)
    return None if found is None else {"test": found[1]}


def _python(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder), "CI": "true"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take all mends back, one at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, help="of CPU time, for each mend at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", help="the mends to take back, by name, with commas between")
    options = parser.parse_args(arguments)
    names = options.only.split(",") if options.only else [mend.name for mend in MENDS]
    mends, results = [mend for mend in MENDS if mend.name in names], {}
    with ThreadPoolExecutor(options.workers) as workers:
        searches = workers.map(lambda mend: search(mend, options.seed, options.minutes), mends)
        for mend, found in zip(mends, searches, strict=True):
            results[mend.name] = found
            sys.stdout.write(f"{mend.name}: {mend.says}: {found or 'NOT FOUND'}\n")
            sys.stdout.flush()
    sys.stdout.write(json.dumps(results) + "\n")
    return int(None in results.values())


if __name__ == "__main__":
    sys.exit(main())
