"""A command that has read a Delta table ends by itself: threads of Arrow do not outlive the interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from spark_throttle.admin.refusals import Exit
from spark_throttle.store.delta.delta_store import DeltaStore
from spark_throttle.store.service import PolicyService
from spark_throttle.store.store import Author

PROGRAM = """
import atexit, sys
from spark_throttle.command_line.app import main
atexit.register(lambda: print("the interpreter ends", file=sys.stderr))
main()
"""


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("acme", Exit.DONE), ("other", Exit.NOT_FOUND)])
def test_command_on_a_delta_store_ends_whole_and_before_the_interpreter(tmp_path: Path, name: str, code: Exit) -> None:
    store = DeltaStore.create(str(tmp_path / "store"))
    PolicyService(store, clock_ms=lambda: 0).put("tenant", "acme", {}, Author("ann"))
    result = ended("tenant", "get", name, "-o", "json", "--store", f"delta:{tmp_path / 'store'}")
    assert result.returncode == code, result.stderr
    said = json.loads(result.stdout if code is Exit.DONE else result.stderr)
    assert said.get("name", said.get("exit_code")) in {"acme", int(code)}
    assert "the interpreter ends" not in result.stderr


@pytest.mark.slow
def test_command_without_arrow_ends_as_every_program() -> None:
    result = ended("--version")
    assert result.returncode == 0
    assert "the interpreter ends" in result.stderr
