"""What the command line shows of an explanation."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from spark_throttle.admin.cli.watch import _as_sheet
from spark_throttle.status.explain import explain_job
from tests.status.test_explain import run_batch


def test_explain_of_a_namespace_exempted_while_its_rows_wait_names_no_quota(tmp_path: Path) -> None:
    control = tmp_path / "control"
    run_batch(control, ["acme/x"] * 7)
    exempted = replace(explain_job(str(control), "acme/x"), rule="exempt", levels=(), predicted_release_ms=0)
    with io.StringIO() as screen:
        Console(file=screen, width=200).print(_as_sheet(exempted))
        assert "by the quota of" not in screen.getvalue()
