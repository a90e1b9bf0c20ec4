"""The jobs start as `spark-submit` starts them: as files, with the package installed, and the clone not on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sessions import ROOT

_AS_A_FILE = """
import runpy, sys
from pathlib import Path
sys.path[:] = [where for where in sys.path if Path(where).resolve() != Path({root!r})]
sys.argv[:] = [{script!r}, "--help"]
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.slow
def test_job_starts_from_any_folder_where_only_the_package_is_installed(tmp_path: Path) -> None:
    (tmp_path / "spark_throttle").symlink_to(ROOT / "spark_throttle")
    code = _AS_A_FILE.format(root=str(ROOT), script=str(ROOT / "jobs" / "throttle_stream.py"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "usage:" in ran.stdout
