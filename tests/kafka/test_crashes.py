"""The crash program in small, behind a broker; `make crash SOURCE=kafka` runs it in full."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest

from demos.tables import read_offsets
from tests.crash.run import crash
from tests.crash.topic import BROKER, PARTITIONS
from tests.kafka.broker import STOP_SECONDS, Broker
from tests.sessions import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

OFFERING: Final = """\
import sys
from pathlib import Path
from tests.crash.topic import Topic

Topic(Path(sys.argv[1]))
print("offering", flush=True)
sys.stdin.read()
"""
"""A program with a broker of its own, which ends with its input."""


@pytest.mark.timeout(900)
def test_job_that_reads_a_topic_and_is_killed_loses_and_doubles_nothing(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "delta"
    account = crash(root, "delta", kills=2, seed=1, source="kafka", session=spark)
    assert account.keeps_the_laws, account
    assert account.admitted + account.rejected == account.offered
    assert min(account.admitted, account.rejected) > 0
    (end,) = (
        offset["offered"] for offset in read_offsets(root / "checkpoint", account.batches - 1) if "epoch" not in offset
    )
    assert (len(end), sum(end.values())) == (PARTITIONS, account.offered)
    assert not Broker(int((root / BROKER).read_text())).answers()


def test_broker_does_not_outlive_a_program_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OFFERING, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"offering\n"
        broker = Broker(int((tmp_path / BROKER).read_text()))
        assert broker.answers()
        program.kill()
    deadline = time.monotonic() + 2 * STOP_SECONDS
    while broker.answers() and time.monotonic() < deadline:
        threading.Event().wait(0.1)
    assert not broker.answers()
